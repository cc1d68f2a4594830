package repair

import (
	"context"

	"lockstep.dev/services/consumer/internal/store"
)

// Changed is told, inside the transaction of an effect, the contents that the
// effect's rows had before it and have after it. What it writes is committed
// with the effect; what it refuses rolls the effect back.
type Changed func(ctx context.Context, e *store.Effect, contents [][]byte) error

// changing runs write, which changes rows of keys, and tells Changed of it.
func (r *Repairer) changing(ctx context.Context, t *Task, e *store.Effect, keys []string, write func() error) error {
	if r.Changed == nil {
		return write()
	}
	before, err := r.Projection.Contents(ctx, e.Tx, t.scope(), keys)
	if err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	after, err := r.Projection.Contents(ctx, e.Tx, t.scope(), keys)
	if err != nil {
		return err
	}
	return r.Changed(ctx, e, append(before, after...))
}
