package worker

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/lockstep"
	"lockstep.dev/services/consumer/internal/projection"
)

const (
	// defaultHeapRows are several rounds: fewer visit each page of the table a few
	// times only.
	defaultHeapRows = 4 * roundRows
	// mostSlice pages, 16 MB, are read by one statement at most.
	mostSlice = 2048
)

// slice is some pages of the table, [from, to); to 0 is its end.
type slice struct{ from, to int64 }

// hash hashes the contents of the local rows as the table lies, and gives the
// sums of those that have their stored hash: the scan then reads the stored ones
// alone, and hashes what those sums do not vouch for, which is what is rotten and
// what was written to meanwhile. In key order each row's page is visited for that
// row alone. nil where contents are not to be hashed, or the scan does it as well.
func (j *job) hash(x *lockstep.Index, due <-chan time.Time) (*lockstep.Sums, error) {
	if !j.Set.VerifyContent || j.Set.RowWise || j.row.Scope != protocol.Collection {
		return nil, nil //nolint:nilnil // not an error: the scan hashes
	}
	slices, err := j.slices(x.RowsOf(j.saved.NextPage, x.Pages()))
	if err != nil || slices == nil {
		return nil, err
	}
	j.Log.Info("contents are hashed as the table lies", zap.String("task", j.row.ID()), zap.Int("statements", len(slices)))
	sums, began := lockstep.NewSums(x), j.Now()
	tasks := make(chan slice)
	group, ctx := errgroup.WithContext(j.ctx)
	for range min(RangesAtOnce, len(slices)) {
		group.Go(func() error { return j.sound(ctx, sums, tasks) })
	}
	err = j.share(ctx, slices, tasks, due)
	close(tasks)
	if failed := group.Wait(); err == nil || errors.Is(err, errNobody) {
		err = failed
	}
	if err != nil {
		return nil, unproven(err)
	}
	j.Log.Info("contents are hashed", zap.String("task", j.row.ID()), zap.Duration("took", j.Now().Sub(began)))
	if j.hashed != nil {
		j.hashed()
	}
	return sums, nil
}

// slices cuts the table into pieces that have as many rows as a round; nil where
// it is not the cheapest way to so many rows.
func (j *job) slices(rows int64) ([]slice, error) {
	least := j.Set.HeapRows
	if least == 0 {
		least = defaultHeapRows
	}
	if rows < least {
		return nil, nil
	}
	heap, err := j.Projection.Heap(j.ctx)
	if err != nil || !heap.Cheapest(rows) {
		return nil, err
	}
	pages := min(max(int64(float64(imageRows*heap.Pages)/max(heap.Rows, 1)), 1), mostSlice)
	var out []slice
	for from := int64(0); from < heap.Pages; from += pages {
		out = append(out, slice{from, from + pages})
	}
	out[len(out)-1].to = 0 // it may have grown since, and tables that inherit from it may be longer
	return out, nil
}

// errNobody: all who take slices have ended.
var errNobody = errors.New("nobody reads any more")

// share hands the slices out. It looks after everything else that a run has to
// do, as the scan does; nothing is stored of what was hashed.
func (j *job) share(ctx context.Context, slices []slice, tasks chan<- slice, due <-chan time.Time) error {
	for at := 0; at < len(slices); {
		if err := j.hold(); err != nil {
			return err
		}
		select {
		case <-j.stopping.Done():
			return errStopping
		case <-j.ctx.Done():
			return context.Cause(j.ctx)
		case <-ctx.Done():
			return errNobody
		case <-due:
			if err := j.rest(); err != nil {
				return err
			}
		case tasks <- slices[at]:
			at++
		}
		if err := j.tellIfDue(protocol.Scanning); err != nil {
			return err
		}
	}
	return nil
}

// sound notes the sound rows of slices until there are no more.
func (j *job) sound(ctx context.Context, sums *lockstep.Sums, tasks <-chan slice) error {
	at := projection.Scope{TenantID: j.row.TenantID, CollectionID: j.row.CollectionID}
	for s := range tasks {
		err := j.Projection.Sound(ctx, at, s.from, s.to, func(rows []evidence.Row) error {
			j.keeper.Tick()
			sums.Add(rows)
			return nil
		})
		if err != nil {
			return err
		}
		j.keeper.Tick() // it may have no row of the set
	}
	return nil
}
