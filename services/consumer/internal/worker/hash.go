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
	// ranges would be read once more. Fewer than leastSeen rows say nothing.
	mostUnsound, leastSeen = 256, 1024
)

// hashed is what a run knows of contents that were hashed as the table lies.
type hashed struct {
	task, manifest uuid.UUID
	file           uint32 // of the table
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
	if h := j.kept.Load(); h != nil && h.task == j.row.TaskID && h.manifest == j.row.ManifestID {
		return h, nil
	}
	j.kept.Store(nil)
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
	began := j.Now()
	j.Log.Info("contents are hashed as the table lies", zap.String("task", j.row.ID()), zap.Int64("table_pages", heap.Pages))
	h := &hashed{j.row.TaskID, j.row.ManifestID, heap.File, lockstep.NewSums(x)}
	_, ended := j.Tracer.Start(j.ctx, "hash contents", tracing.Count("table_pages", int(heap.Pages)))
	err = j.hashPages(heap, h.sums, due)
	ended(err)
	rows, unsound := h.sums.Count()
	log := j.Log.With(zap.String("task", j.row.ID()), zap.Int64("rows", rows), zap.Int64("unsound", unsound), zap.Duration("took", j.Now().Sub(began)))
	switch {
	case errors.Is(err, errUnsound):
		log.Info("too many contents do not have their stored hash: they are hashed in key order")
		return nil, nil //nolint:nilnil // not an error: the scan hashes
	case err != nil:
		return nil, unproven(err)
	}
	log.Info("contents are hashed")
	j.kept.Store(h)
	if j.onHashed != nil {
		j.onHashed()
	}
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

// hashPages reads the pages that the table has now, as many by one statement as
// have the rows of a round. What is written into later ones is not vouched for.
func (j *job) hashPages(heap pg.Heap, sums *lockstep.Sums, due <-chan time.Time) error {
	step := j.Set.HeapPages
	if step == 0 {
		step = min(max(int64(float64(imageRows*heap.Pages)/max(heap.Rows, 1)), 1), mostPagesRead)
	}
	from := make(chan int64)
	group, ctx := errgroup.WithContext(j.ctx)
	for range RangesAtOnce {
		group.Go(func() error { return j.hashSome(ctx, sums, from, step) })
	}
	err := j.deal(ctx, heap.Pages, step, sums, from, due)
	close(from)
	failed := group.Wait()
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
func (j *job) deal(ctx context.Context, pages, step int64, sums *lockstep.Sums, from chan<- int64, due <-chan time.Time) error {
	for at := int64(0); at < pages; at += step {
		if rows, unsound := sums.Count(); rows >= leastSeen && unsound > rows/mostUnsound {
			return errUnsound
		}
		if j.onPages != nil {
			j.onPages(at)
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
			case from <- at:
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
	return heap.File != h.file, err
}
