package worker

import (
	"context"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/services/consumer/internal/lockstep"
)

// round is what reading a round's local rows showed.
type round struct {
	from, to int // ranges [from, to)
	scanned  int64
	parts    []lockstep.Part
	err      error
}

// reader digests the local image one round ahead of the one being settled. A
// round's rows are its own, so repairs never change what is read ahead.
type reader struct {
	out    chan round
	cancel context.CancelFunc
	done   chan struct{}
}

func newReader(j *job, x *lockstep.Index) *reader {
	ctx, cancel := context.WithCancel(j.ctx)
	r := &reader{out: make(chan round, 1), cancel: cancel, done: make(chan struct{})}
	from := j.saved.NextPage
	go func() {
		defer close(r.done)
		defer close(r.out)
		d := lockstep.NewDigest(x, 0, 0)
		var rows []evidence.Row
		for from < x.Ranges() {
			next := round{from: from, to: min(from+roundPages, x.Ranges())}
			rows, next.err = j.digest(ctx, x, d, &next, rows)
			select {
			case r.out <- next:
			case <-ctx.Done():
				return
			}
			if next.err != nil {
				return
			}
			from = next.to
		}
	}()
	return r
}

func (j *job) digest(ctx context.Context, x *lockstep.Index, d *lockstep.Digest, next *round, rows []evidence.Row) ([]evidence.Row, error) {
	d.Reset(next.from, next.to)
	c := j.chunk(x.Span(next.from, next.to))
	for {
		var err error
		if rows, err = j.Projection.Image(ctx, c, rows[:0]); err != nil {
			return rows, err
		}
		if err := d.Add(rows); err != nil {
			return rows, err
		}
		j.keeper.Tick()
		if len(rows) < c.Limit {
			break
		}
		last := rows[len(rows)-1].Key
		c.After = &last
	}
	next.parts, next.scanned = d.Close(), d.Scanned()
	return rows, nil
}

// next gives the rounds in order.
func (r *reader) next() (round, error) {
	next, ok := <-r.out
	if !ok {
		return round{}, context.Canceled
	}
	return next, next.err
}

func (r *reader) stop() {
	r.cancel()
	<-r.done
}
