package worker

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/lockstep"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/internal/tracing"
)

const (
	// defaultHeapRows are several rounds: fewer visit each page of the table a few
	// times only.
	defaultHeapRows = 4 * roundRows
	// mostPagesRead, 16 MB, are read by one statement at most.
	mostPagesRead = 2048
	// mostUnsound: where more than one row of so many is unsound, a good part of the
	// ranges would be read once more. Fewer rows than leastSeen, or than the share of
	// all that seenShare gives, say nothing: unsound ones may lie together.
	mostUnsound, leastSeen, seenShare = 256, 1024, 16
	// keptFor is how long a row may be out of the worker's hands, and what was hashed
	// still counts.
	keptFor = time.Hour
)

// hashed is what is known of contents that were hashed as the table lies.
type hashed struct {
	task, manifest uuid.UUID
	attempt        int
	heap           pg.Heap // as it was when it was begun
	next           int64   // the first page that is not hashed yet
	until          time.Time
	sums           *lockstep.Sums
}

// hash hashes the contents of the local rows as the table lies. The scan then
// reads their stored hashes alone, and hashes only what those rows do not vouch for:
// what is unsound, and what was written since with another hash or revision. In
// key order each row's page is visited for that row alone. nil where contents are
// not to be hashed, or where the scan does it as well.
//
// A row is believed if it was sound when it was read. One whose content alone is
// changed after that is seen by the next task, as is one behind the scan.
func (j *job) hash(x *lockstep.Index, due <-chan time.Time) (*hashed, error) {
	if !j.Set.VerifyContent || j.Set.RowWise || j.row.Scope != protocol.Collection {
		return nil, nil //nolint:nilnil // not an error: the scan hashes
	}
	h, err := j.begin(x)
	if err != nil || h == nil || h.next >= h.heap.Pages {
		return h, err
	}
	began := j.Now()
	ctx, ended := j.Tracer.Start(j.ctx, "hash contents", tracing.Count("table_pages", int(h.heap.Pages-h.next)))
	err = j.hashPages(ctx, h, due)
	given := errors.Is(err, errUnsound)
	if given {
		ended(nil)
	} else {
		ended(err)
	}
	rows, unsound := h.sums.Count()
	log := j.Log.With(zap.String("task", j.row.ID()), zap.Int64("rows", rows), zap.Int64("unsound", unsound), zap.Duration("took", j.Now().Sub(began)))
	switch {
	case given:
		log.Info("too many contents do not have their stored hash: they are hashed in key order")
		j.kept.Store(nil)
		return nil, nil //nolint:nilnil // not an error: the scan hashes
	case err != nil:
		return nil, unproven(err)
	}
	log.Info("contents are hashed")
	if j.onHashed != nil {
		j.onHashed()
	}
	return h, nil
}

// begin gives what this attempt has hashed before its row was given back, or
// nothing yet; nil where the scan hashes.
func (j *job) begin(x *lockstep.Index) (*hashed, error) {
	h := j.kept.Swap(nil)
	if h != nil && h.task == j.row.TaskID && h.manifest == j.row.ManifestID && h.attempt == j.row.Attempt && j.Now().Before(h.until) {
		j.kept.Store(h)
		return h, nil
	}
	// A run that goes on from a checkpoint has lost what an earlier one had hashed.
	// If each did it again, and each got as far as the next checkpoint, it would
	// never come to an end of it.
	if j.saved.NextPage > 0 {
		return nil, nil //nolint:nilnil // not an error: the scan hashes
	}
	heap, err := j.heap(x.Rows())
	if err != nil || heap.Pages == 0 {
		return nil, err
	}
	j.Log.Info("contents are hashed as the table lies", zap.String("task", j.row.ID()), zap.Int64("table_pages", heap.Pages))
	h = &hashed{task: j.row.TaskID, manifest: j.row.ManifestID, attempt: j.row.Attempt, heap: heap, sums: lockstep.NewSums(x)}
	j.kept.Store(h)
	return h, nil
}

// heap looks whether reading the table as it lies is the cheapest way to so many
// rows: it has no pages where it isn't.
func (j *job) heap(rows int64) (pg.Heap, error) {
	least := j.Set.HeapRows
	if least == 0 {
		least = defaultHeapRows
	}
	if rows < least {
		return pg.Heap{}, nil
	}
	heap, err := j.Projection.Heap(j.ctx)
	if err != nil || !heap.Cheapest(rows) {
		return pg.Heap{}, err
	}
	return heap, nil
}

var (
	// errUnsound: reading on would be for nothing.
	errUnsound = errors.New("too many rows are unsound")
	// errNobody: all who read have ended.
	errNobody = errors.New("nobody reads any more")
)

// hashPages reads the pages that the table had when it was begun, as many by one
// statement as have the rows of a round. What is written into later ones is not
// vouched for. What was read before it ends counts, unless a statement failed.
func (j *job) hashPages(ctx context.Context, h *hashed, due <-chan time.Time) error {
	step := j.Set.HeapPages
	if step == 0 {
		step = min(max(int64(float64(imageRows*h.heap.Pages)/max(h.heap.Rows, 1)), 1), mostPagesRead)
	}
	from := make(chan int64)
	group, reading := errgroup.WithContext(ctx)
	for range RangesAtOnce {
		group.Go(func() error { return j.hashSome(reading, h.sums, from, step) })
	}
	err := j.deal(reading, h, step, from, due)
	close(from)
	failed := group.Wait()
	if failed != nil {
		j.kept.Store(nil) // which rows of those pages were read is not known
	}
	switch {
	case j.ctx.Err() != nil:
		return context.Cause(j.ctx)
	case err == nil || errors.Is(err, errNobody):
		return failed
	}
	return err
}

// deal hands the pages out. It looks after everything else that a run has to do,
// as the scan does.
func (j *job) deal(ctx context.Context, h *hashed, step int64, from chan<- int64, due <-chan time.Time) error {
	seen := max(leastSeen, int64(h.heap.Rows)/seenShare)
	for h.next < h.heap.Pages {
		if rows, unsound := h.sums.Count(); rows >= seen && unsound > rows/mostUnsound {
			return errUnsound
		}
		if j.onPages != nil {
			j.onPages(h.next)
		}
		if err := j.hold(); err != nil {
			return err
		}
		for dealt := false; !dealt; {
			select {
			case <-j.stopping.Done():
				return errStopping
			case <-ctx.Done():
				return errNobody
			case <-due:
				if err := j.rest(); err != nil {
					return err
				}
			case from <- h.next:
				h.next += step
				dealt = true
			}
			if err := j.tellIfDue(protocol.Scanning); err != nil {
				return err
			}
		}
	}
	return nil
}

// hashSome hashes the pages that it is handed until there are no more.
func (j *job) hashSome(ctx context.Context, sums *lockstep.Sums, from <-chan int64, step int64) error {
	at := projection.Scope{TenantID: j.row.TenantID, CollectionID: j.row.CollectionID}
	for first := range from {
		err := j.Projection.HashPages(ctx, at, first, first+step, func(rows []evidence.Row) error {
			j.keeper.Tick()
			sums.Add(rows)
			return nil
		})
		if err != nil {
			return err
		}
		j.keeper.Tick() // they may have no row of the set
	}
	return nil
}

// stale says that the table's rows are not those that were hashed: all were
// replaced, as by a TRUNCATE. Asked after rows were read, it is of those too.
func (h *hashed) stale(ctx context.Context, p *projection.Projection) (bool, error) {
	heap, err := p.Heap(ctx)
	return heap.File != h.heap.File, err
}
