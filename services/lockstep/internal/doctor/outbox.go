package doctor

import (
	"context"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/services/lockstep/internal/store"
)

// outbox: without one delivery is off; with one the role has to be able to read it.
func outbox(ctx context.Context, r *Report, pool store.Pool, t *dataset.Table, side dataset.Side) error {
	switch {
	case side == dataset.Consumer:
		return nil
	case t.Changes == nil:
		r.add("outbox", OK, "none is mapped: ordinary delivery is off, and records reach consumers by reconciliation only")
		return nil
	}
	o, err := pool.Outbox(ctx, t)
	if err != nil {
		return err
	}
	name := t.Changes.Name
	switch {
	case !o.Readable:
		r.add("outbox", Fail, "the role may not read %s; GRANT SELECT ON %s", name, t.Changes.Ident)
	case o.Foreign:
		r.add("outbox", Fail, "%s holds rows of transactions that this cluster has not seen, as after a restore from a dump: they are never delivered; delete them, and reconcile every subscription", name)
	case o.Writable:
		r.add("outbox", Warn, "the role may change %s; SELECT is all it needs", name)
	case !o.Indexed:
		r.add("outbox", Warn, "no index begins with (%s, %s): every look reads all of %s; create one", t.Outbox.XID, t.Outbox.ID, name)
	default:
		r.add("outbox", OK, "%s is read in the order of its transactions", name)
	}
	return nil
}
