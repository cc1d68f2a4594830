package delivery

import (
	"context"
	"errors"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/store"
)

// maxTries: a row that changes under one delivery this often is busy, and the
// center comes again later.
const maxTries = 5

// errMoved rolls an attempt back: the row was not as it was read.
var errMoved = errors.New("the row changed meanwhile")

// ApplySnapshot brings a verified snapshot to an outcome. What it read is the
// condition of what it writes; where a repair, a retirement or the host was
// quicker, it looks again.
func (r *Receiver) ApplySnapshot(ctx context.Context, s *protocol.Snapshot) (store.Received, error) {
	key, err := protocol.ParseKey(s.Key)
	if err != nil {
		return "", fault.Wrap(err, fault.KeyMismatch, "the snapshot names no key")
	}
	a := &application{
		Receiver: r, snapshot: s, key: key, at: projection.Scope{TenantID: s.At.TenantID, CollectionID: s.At.CollectionID},
		word: word{epoch: s.At.CenterEpoch, row: evidence.Row{Key: key, Revision: s.Revision, Hash: s.Hash, Deleted: s.Deleted}},
	}
	for range maxTries {
		got, err := a.once(ctx)
		if !errors.Is(err, errMoved) && !errors.Is(err, store.ErrOvertaken) {
			return got, err
		}
	}
	return "", fault.New(fault.Unavailable, "the row keeps changing")
}

// application is one snapshot on its way into the projection.
type application struct {
	*Receiver
	snapshot *protocol.Snapshot
	key      string
	at       projection.Scope
	word     word
}

func (a *application) once(ctx context.Context) (store.Received, error) {
	// The mark first: a mark that moves after the row was read moved with the row.
	mark, err := a.Store.Mark(ctx, a.at.TenantID, a.at.CollectionID, a.key)
	if err != nil {
		return "", err
	}
	rows, err := a.Projection.Rows(ctx, a.at.TenantID, []string{a.key}, false)
	if err != nil {
		return "", err
	}
	k, expected := known{mark: mark}, projection.Absent()
	if row, ok := rows[a.key]; ok {
		if row.CollectionID != a.at.CollectionID {
			return "", fault.New(fault.ScopeMismatch, "the key is held in another collection here")
		}
		k.local, k.retired, expected = &row.Row, row.Retired, row.Expected()
	}
	got, code := decide(k, a.word)
	switch {
	case code != "":
		return "", fault.New(code, "the word is below what the center stated before")
	case got == store.Applied:
		return got, a.write(ctx, expected)
	}
	return got, projection.Coded(a.Store.InDelivery(ctx, a.at.TenantID, a.at.CollectionID, func(d *store.Delivery) error {
		if got == store.Conflict {
			_, err := a.Projection.MarkConflict(ctx, d.Effect.Tx, a.at, []projection.Conflict{{Key: a.key, Expected: expected, Center: a.word.row}})
			if err != nil {
				return err
			}
		}
		if got == store.Duplicate {
			if err := a.confirm(ctx, d, *k.local); err != nil {
				return err
			}
		}
		return d.Keep(ctx, a.receipt(got))
	}))
}

// confirm raises the mark to a word that the row already holds: under a newer
// epoch it still says so much. A repair writes the row first and then the mark, so
// once the mark is this one's, a row that is still the same will be no other. It
// is read over the transaction's own connection: many of these may be at work.
func (a *application) confirm(ctx context.Context, d *store.Delivery, was evidence.Row) error {
	if err := d.Raise(ctx, a.mark()); err != nil {
		if errors.Is(err, store.ErrOvertaken) {
			return nil
		}
		return err
	}
	rows, err := a.Projection.RowsIn(ctx, d.Effect.Tx, a.at.TenantID, []string{a.key})
	if err != nil {
		return err
	}
	if now, ok := rows[a.key]; !ok || now.Retired || now.Row != was {
		return errMoved
	}
	return nil
}

func (a *application) mark() store.Mark {
	return store.Mark{Key: a.key, CenterEpoch: a.word.epoch, Revision: a.word.row.Revision}
}

// write is one transaction: the row, the mark, the receipt, and what depends on
// the row. The locks come in the order in which a repair takes them.
func (a *application) write(ctx context.Context, expected projection.Expected) error {
	err := a.Store.InDelivery(ctx, a.at.TenantID, a.at.CollectionID, func(d *store.Delivery) error {
		return a.changing(ctx, d, func() error {
			applied, err := a.Projection.Apply(ctx, d.Effect.Tx, a.at, projection.Item{Key: a.key, Expected: expected, Snapshot: a.snapshot})
			if err != nil {
				return err
			}
			if !applied {
				return errMoved
			}
			if err := d.Raise(ctx, a.mark()); err != nil {
				return err
			}
			return d.Keep(ctx, a.receipt(store.Applied))
		})
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errMoved):
		return a.held(ctx, err)
	case errors.Is(err, store.ErrOvertaken):
		return err
	}
	return projection.Coded(err)
}

// changing tells Changed the contents before and after write, in its transaction.
func (a *application) changing(ctx context.Context, d *store.Delivery, write func() error) error {
	if a.Changed == nil {
		return write()
	}
	keys := []string{a.key}
	before, err := a.Projection.Contents(ctx, d.Effect.Tx, a.at, keys)
	if err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	after, err := a.Projection.Contents(ctx, d.Effect.Tx, a.at, keys)
	if err != nil {
		return err
	}
	return a.Changed(ctx, d.Effect, append(before, after...))
}

// held says where a row of another tenant or collection keeps the key: no number
// of tries gets past it.
func (a *application) held(ctx context.Context, moved error) error {
	holders, err := a.Projection.Holders(ctx, a.at, []string{a.key})
	if err != nil {
		return err
	}
	if _, ok := holders[a.key]; ok {
		return fault.New(fault.ScopeMismatch, "the key is held by another tenant or collection here")
	}
	return moved
}

func (a *application) receipt(got store.Received) store.Receipt {
	return store.Receipt{
		Key: a.key, Outcome: got, EventID: a.snapshot.EventID, CenterEpoch: a.word.epoch,
		Revision: a.word.row.Revision, Hash: a.word.row.Hash, Deleted: a.word.row.Deleted,
	}
}
