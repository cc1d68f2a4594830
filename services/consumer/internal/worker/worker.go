// Package worker works accepted instructions: one claimed row at a time, from
// its checkpoint to an acknowledged report.
//
// It promises that nothing is compared before the manifest is proved to be the
// instruction's, that no transaction is open around the loop, that a round
// leaves either its checkpoint or nothing but ledger rows, and that a row whose
// claim was lost is dropped at once. Loop and step are apart: Run waits, the
// steps do one unit of work each.
package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/consumer/internal/center"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/report"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/internal/load"
	"lockstep.dev/services/internal/tracing"
)

// Settings of the worker.
type Settings struct {
	Enabled      bool
	Lease        time.Duration
	ScanInterval time.Duration
	InitialDelay time.Duration
	MaxPerScan   int
	ReportRounds int
	MaxItems     int
	MaxTries     int
	// StallLimit: a run that gave no sign of life for so long is taken over.
	StallLimit    time.Duration
	Retention     time.Duration // 0 keeps everything
	VerifyContent bool
	// HeapRows is how many rows a task has at least whose contents are hashed as the
	// table lies; 0 is a number at which that pays.
	HeapRows int64
	// HeapPages of the table are read by one statement then; 0 is as many as have the
	// rows of a round.
	HeapPages int64
	// RowWise compares every row of both sides, without the digests of pages.
	RowWise bool
}

const (
	// stopGrace is what a stopping worker may still use, below the 10 s a stop may take.
	stopGrace = 8 * time.Second
	// purgeBatch keeps a purge's transaction short.
	purgeBatch = 5000
	// waitingBatch bounds the WAITING reports of one step.
	waitingBatch = 50
	// maxHold bounds how long the load guard makes a run stand still between two
	// checkpoints before it does its next piece all the same.
	maxHold = 30 * time.Second
	// maxPause bounds the wait after a scan that failed.
	maxPause = time.Minute
)

// Worker works the store's rows.
type Worker struct {
	Name       string // in claimed_by
	Self       string // the consumer's app key
	Store      *store.Store
	Center     *center.Client
	Projection *projection.Projection
	Repairer   *repair.Repairer
	Reporter   *report.Reporter
	SourceKeys func() []evidence.Key
	Set        Settings
	Now        func() time.Time
	Log        *zap.Logger
	Tracer     tracing.Tracer
	// Withheld, if set, is told why a run's retirements were not made.
	Withheld func(fault.Reason)
	// Guard says when the host's database has enough to do; nil never does.
	Guard *load.Guard

	// onPages, if set, is called before pages of the table are read from one on, and
	// onHashed once contents were hashed as it lies, before they are scanned.
	onPages  func(int64)
	onHashed func()

	kick chan struct{}
	// guarded: the guard's last word was that the database is busy.
	guarded *atomic.Bool
	// kept is what was hashed of a row that was given back; it goes on from there.
	kept *atomic.Pointer[hashed]
	// current is the task that is being worked.
	current *atomic.Pointer[running]
}

// running is a task in work, for those who only look.
type running struct {
	id   uuid.UUID
	task *repair.Task
}

// New makes a worker of its parts.
func New(w Worker) *Worker {
	w.kick, w.guarded = make(chan struct{}, 1), new(atomic.Bool)
	w.kept, w.current = new(atomic.Pointer[hashed]), new(atomic.Pointer[running])
	return &w
}

// Kick wakes the loop: something may be claimable. It never blocks and may be
// lost; the timed scan is the durable way.
func (w *Worker) Kick() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// Run works until ctx ends: whatever is claimable, then it waits for a kick or
// the next scan. A database that is away only makes it wait longer.
func (w *Worker) Run(ctx context.Context) error {
	return w.loop(ctx, "work", w.Set.ScanInterval, w.scan)
}

// RunWaiting tells the center about rows that wait, while Run works another.
func (w *Worker) RunWaiting(ctx context.Context) error {
	every := min(w.Set.ScanInterval, w.Set.Lease/3)
	return w.loop(ctx, "waiting", every, func(ctx context.Context) (bool, error) {
		more, err := w.WaitingOnce(ctx)
		if err != nil || more {
			return more, err
		}
		return w.ParkedOnce(ctx)
	})
}

// RunPurge deletes old outcomes.
func (w *Worker) RunPurge(ctx context.Context) error {
	if w.Set.Retention == 0 {
		return nil
	}
	return w.loop(ctx, "purge", w.Set.ScanInterval, func(ctx context.Context) (bool, error) {
		return w.Store.Purge(ctx, w.Set.Retention, purgeBatch)
	})
}

// scan works at most MaxPerScan rows.
func (w *Worker) scan(ctx context.Context) (more bool, err error) {
	for range w.Set.MaxPerScan {
		if more, err = w.WorkOnce(ctx); !more || err != nil {
			return more, err
		}
	}
	return more, nil
}

// loop calls step until there is nothing more, then waits. Errors pause it,
// twice as long each time, with jitter.
func (w *Worker) loop(ctx context.Context, name string, every time.Duration, step func(context.Context) (bool, error)) error {
	timer := time.NewTimer(w.Set.InitialDelay)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-w.kicks(name):
		}
		more, err := step(ctx)
		wait := every
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			w.Log.Error("scan failed", zap.String("loop", name), zap.Error(err))
			wait = pause(failures)
			failures++
		case more:
			wait, failures = 0, 0
		case w.guarded.Load():
			wait, failures = min(every, w.Guard.Interval()), 0
		default:
			failures = 0
		}
		timer.Reset(wait)
	}
}

// kicks wake only the loop that works.
func (w *Worker) kicks(loop string) <-chan struct{} {
	if loop == "work" {
		return w.kick
	}
	return nil
}

// pause after n failures in a row: 1 s, 2 s, 4 s … with jitter.
func pause(n int) time.Duration {
	d := min(time.Second<<min(n, 10), maxPause)
	return d/2 + rand.N(d/2) //nolint:gosec // jitter needs no secrecy
}

// busy asks the guard.
func (w *Worker) busy(ctx context.Context) bool {
	why := w.Guard.Busy(ctx)
	if was := w.guarded.Swap(why != ""); was != (why != "") {
		w.Log.Info("the load guard", zap.Bool("holds_back", why != ""), zap.String("why", why))
	}
	return why != ""
}

// WorkOnce takes one due row and works it as far as it goes. worked is false
// where none was due.
func (w *Worker) WorkOnce(ctx context.Context) (worked bool, err error) {
	if _, err := w.Store.Sweep(ctx); err != nil {
		return false, err
	}
	// What has been scanned is reported all the same.
	c, row, err := w.Store.Claim(ctx, w.Name, !w.Set.Enabled || w.busy(ctx))
	if err != nil || row == nil {
		return false, err
	}
	ctx, ended := w.Tracer.Continue(ctx, row.TraceContext, "work", tracing.Task(row.ID()), tracing.Attempt(row.Attempt))
	j := newJob(w, ctx, c, row)
	defer j.stop()
	w.current.Store(&running{row.TaskID, j.task})
	defer w.current.Store(nil)
	err = j.work()
	ended(err)
	if h := w.kept.Load(); h != nil && row.State == work.Queued {
		h.until = w.Now().Add(keptFor)
	} else {
		w.kept.Store(nil)
	}
	if errors.Is(err, claim.ErrFenced) || errors.Is(context.Cause(j.ctx), claim.ErrFenced) {
		// Another worker owns it now; neither a failure nor a retry.
		w.Log.Info("fenced", zap.Stringer("task", c))
		return true, nil
	}
	if err != nil {
		// What became of the row could not be written. Where it can be given back
		// now, nobody has to wait for the end of its lease.
		if back := j.step(work.GivenBack, ""); back != nil {
			w.Log.Info("not given back", zap.Stringer("task", c), zap.Error(back))
		}
	}
	return true, err
}
