package refresh

import (
	"context"
	"hash/fnv"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Verdict says what became of a wake-up. A wake-up that was dropped costs time:
// the scan finds the task.
type Verdict string

// The verdicts.
const (
	KickQueued  Verdict = "QUEUED"
	KickMerged  Verdict = "MERGED" // the task waits already
	KickTail    Verdict = "TAIL"   // it runs, and runs once more after that
	KickOff     Verdict = "OFF"    // a switch is off
	KickGrey    Verdict = "GREY"   // outside of the stage's percentage
	BucketFull  Verdict = "BUCKET_FULL"
	QueueFull   Verdict = "QUEUE_FULL"
	greyBuckets         = 100
)

// Kicker is the lossy, bounded way in which a committed request is worked on
// soon. Tasks are kept apart by stage and a stable hash of their id; a bucket is
// run by one worker at a time. Offer never waits and never runs anything.
type Kicker struct {
	set KickSettings
	run func(ctx context.Context, stage string, id uuid.UUID)
	now func() time.Time

	queue   chan *bucket
	mu      sync.Mutex
	buckets map[bucketKey]*bucket
}

type bucketKey struct {
	stage string
	grey  int
}

// bucket holds the tasks that wait, in order, and the one that runs. It is in
// the queue, or with a worker, as long as it holds one.
type bucket struct {
	key     bucketKey
	waiting []uuid.UUID
	running uuid.UUID // Nil: none
	tail    bool      // run it once more
}

// NewKicker makes a kicker; run works on a task, in a worker's goroutine.
func NewKicker(set KickSettings, run func(ctx context.Context, stage string, id uuid.UUID)) *Kicker {
	return &Kicker{set: set, run: run, now: time.Now, queue: make(chan *bucket, set.Queue), buckets: map[bucketKey]*bucket{}}
}

// Grey is the stable bucket of a task, 0 to 99: percentages let the lower ones through.
func Grey(stage string, id uuid.UUID) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(stage)) // a hash takes everything
	_, _ = h.Write(id[:])
	return int(h.Sum32() % greyBuckets)
}

// Offer wakes a task.
func (k *Kicker) Offer(stage string, id uuid.UUID) Verdict {
	if on := k.set.Stages[stage]; !k.set.Enabled || !k.set.Admission || !on.Enabled {
		return KickOff
	}
	grey := Grey(stage, id)
	if grey >= k.set.Stages[stage].Grey {
		return KickGrey
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	key := bucketKey{stage: stage, grey: grey}
	b, active := k.buckets[key]
	if !active {
		b = &bucket{key: key}
	}
	if b.running == id {
		b.tail = true
		return KickTail
	}
	for _, waits := range b.waiting {
		if waits == id {
			return KickMerged
		}
	}
	if len(b.waiting) >= k.set.Bucket {
		return BucketFull
	}
	if !active {
		select {
		case k.queue <- b:
			k.buckets[key] = b
		default:
			return QueueFull
		}
	}
	b.waiting = append(b.waiting, id)
	return KickQueued
}

// Run works until ctx ends. What waits then is left to the scan.
func (k *Kicker) Run(ctx context.Context) {
	if !k.set.Enabled {
		return
	}
	var workers sync.WaitGroup
	for range k.set.Workers {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case b := <-k.queue:
					k.round(ctx, b)
				}
			}
		})
	}
	workers.Wait()
}

// round runs a bucket's tasks until it is empty or the budget is spent; the
// budget is looked at before the next task. Other buckets have their turn then.
func (k *Kicker) round(ctx context.Context, b *bucket) {
	end := k.now().Add(k.set.RoundBudget)
	for ctx.Err() == nil {
		if !k.now().Before(end) && k.requeue(b) {
			return
		}
		id, ok := k.pop(b)
		if !ok {
			return
		}
		k.run(ctx, b.key.stage, id)
		k.ran(b)
	}
}

// requeue puts the bucket behind the others; where the queue is full its worker
// goes on with it, so that nothing is stranded.
func (k *Kicker) requeue(b *bucket) bool {
	select {
	case k.queue <- b:
		return true
	default:
		return false
	}
}

// pop takes the next task of the bucket; an empty bucket is forgotten.
func (k *Kicker) pop(b *bucket) (uuid.UUID, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(b.waiting) == 0 {
		delete(k.buckets, b.key)
		return uuid.Nil, false
	}
	b.running, b.tail = b.waiting[0], false
	b.waiting = b.waiting[1:]
	return b.running, true
}

func (k *Kicker) ran(b *bucket) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if b.tail {
		b.waiting = append(b.waiting, b.running)
	}
	b.running, b.tail = uuid.Nil, false
}
