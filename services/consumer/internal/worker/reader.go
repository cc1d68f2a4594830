package worker

import (
	"context"
	"slices"
	"sync"

	"go.uber.org/zap"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/services/consumer/internal/lockstep"
)

// RangesAtOnce is how many rounds' ranges are read at once, each over a
// connection of its own: while the rows of one are hashed, the server reads
// those of the other.
const RangesAtOnce = 2

// roundsAhead are read and not yet compared, beside those being read; what they
// hold of both sides is what a scan takes of memory.
const roundsAhead = 1

// round is what reading a round's ranges on both sides showed.
type round struct {
	from, to int // ranges [from, to)
	scanned  int64
	parts    []lockstep.Part
	pages    map[int][]evidence.PageRow // the proved pages of the parts
	err      error
}

// reader digests the local image and fetches the pages that differ, some rounds
// ahead of the one being settled. A round's rows are its own, so repairs never
// change what is read ahead. Rounds are read at once and given in order.
type reader struct {
	order  chan chan round
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// task is a round to be read, and where it is waited for.
type task struct {
	from, to int
	out      chan<- round
}

// newReader starts to read from the checkpoint on. h, where it is not nil, is of
// the rows whose contents were hashed already.
func newReader(j *job, x *lockstep.Index, h *hashed) *reader {
	ctx, cancel := context.WithCancel(j.ctx)
	r := &reader{order: make(chan chan round, roundsAhead), cancel: cancel}
	tasks := make(chan task)
	r.done.Go(func() { r.share(ctx, x, j.saved.NextPage, tasks) })
	for range RangesAtOnce {
		r.done.Go(func() {
			v := view{job: j, x: x, d: lockstep.NewDigest(x, 0, 0), again: lockstep.NewDigest(x, 0, 0), hashed: h}
			v.d.Every = j.Set.RowWise
			for t := range tasks {
				t.out <- v.read(ctx, t.from, t.to)
			}
		})
	}
	return r
}

// share hands the rounds out, and notes their order first.
func (r *reader) share(ctx context.Context, x *lockstep.Index, from int, tasks chan<- task) {
	defer close(r.order)
	defer close(tasks)
	for from < x.Ranges() {
		out := make(chan round, 1) // its reader never waits for anyone
		t := task{from, min(from+roundPages(x.PageRows()), x.Ranges()), out}
		select {
		case r.order <- out:
		case <-ctx.Done():
			return
		}
		select {
		case tasks <- t:
		case <-ctx.Done():
			return
		}
		from = t.to
	}
}

// view is one reader's.
type view struct {
	*job
	x        *lockstep.Index
	d, again *lockstep.Digest
	hashed   *hashed // nil where contents were not hashed before
}

// read reads one round of both sides.
func (v *view) read(ctx context.Context, from, to int) round {
	r := round{from: from, to: to}
	if r.err = v.local(ctx, &r); r.err != nil {
		return r
	}
	if v.Set.RowWise {
		r.pages, r.err = v.rows(ctx, v.x, from, to)
	} else {
		r.pages, r.err = v.pages(ctx, v.x, r.parts)
	}
	return r
}

// local reads a round's local rows, and hashes the contents of those for which
// nothing vouches that was hashed before.
func (v *view) local(ctx context.Context, r *round) error {
	v.d.Sound = nil
	if v.hashed != nil {
		v.d.Sound = v.hashed.sums
	}
	if err := v.digest(ctx, v.d, r.from, r.to, v.Set.VerifyContent && v.hashed == nil); err != nil {
		return err
	}
	r.parts, r.scanned = v.d.Close(), v.d.Scanned()
	if v.hashed == nil {
		return nil
	}
	stale, err := v.hashed.stale(ctx, v.Projection)
	if err != nil {
		return err
	}
	if stale {
		v.Log.Info("the table was replaced since its contents were hashed: they are hashed in key order", zap.String("task", v.row.ID()))
		v.hashed = nil
		return v.local(ctx, r)
	}
	for _, doubted := range v.d.Doubted() {
		if err := v.digest(ctx, v.again, doubted[0], doubted[1], true); err != nil {
			return err
		}
		r.parts = append(r.parts, v.again.Close()...)
		r.scanned += v.again.Scanned()
		v.rehashed.Add(v.again.Scanned())
	}
	slices.SortFunc(r.parts, func(a, b lockstep.Part) int { return a.Range - b.Range })
	return nil
}

// digest reads the local rows of the ranges [from, to).
func (v *view) digest(ctx context.Context, d *lockstep.Digest, from, to int, content bool) error {
	d.Reset(from, to)
	chunk := v.chunk(d.Span())
	chunk.Content = content
	return v.Projection.Scan(ctx, chunk, func(rows []evidence.Row) error {
		v.keeper.Tick()
		return d.Add(rows)
	})
}

// next gives the rounds in order.
func (r *reader) next(ctx context.Context) (round, error) {
	out, ok := <-r.order
	if !ok {
		return round{}, context.Canceled
	}
	select {
	case next := <-out:
		return next, next.err
	case <-ctx.Done():
		return round{}, context.Cause(ctx)
	}
}

func (r *reader) stop() {
	r.cancel()
	r.done.Wait()
}
