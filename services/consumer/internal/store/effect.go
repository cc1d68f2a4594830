package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/pg"
)

// Effect is a transaction that changes what the task is about. Its op id is in
// every ledger row it writes, so that an unknown commit can be read back.
type Effect struct {
	Tx   pgx.Tx
	Op   uuid.UUID
	task uuid.UUID
	// tenant and collection of the task's bulk rows.
	tenant     int64
	collection string
	noted      bool
	committed  []func()
	told       Tally
	// queued is sent in one go: with Flush, or where the effect ends.
	queued *pgx.Batch
}

// OnCommit runs f once the effect is committed. f must not fail and not wait;
// where the process ends first, nobody runs it.
func (e *Effect) OnCommit(f func()) { e.committed = append(e.committed, f) }

// Points are the fail points around the commit of an effect.
type Points struct{ Before, After failpoint.Name }

// The effects with fail points of their own.
var (
	RepairPoints = Points{failpoint.ConsumerRepairBeforeCommit, failpoint.ConsumerRepairAfterCommit}
	RetirePoints = Points{failpoint.ConsumerRetireBeforeCommit, failpoint.ConsumerRetireAfterCommit}
)

// InEffect runs fn in one short transaction that ends with the check of the
// claim: where the row has another owner, nothing of fn happened and the error
// is claim.ErrFenced. fn may run several times and must have no other effects.
// A lost answer to COMMIT is read back by the op id.
func (s *Store) InEffect(ctx context.Context, c claim.Claim, w *Work, at Points, fn func(*Effect) error) error {
	op := s.newID()
	var noted bool
	var committed []func()
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		e := s.effect(tx, op, w)
		if err := fn(e); err != nil {
			return err
		}
		if err := e.Flush(ctx); err != nil {
			return err
		}
		noted, committed = e.noted, e.committed
		failpoint.Hit(at.Before)
		return Site.Check(ctx, tx, c)
	})
	if errors.Is(err, pg.ErrUnknownCommit) && noted {
		err = s.readBack(ctx, w, op, err)
	}
	if err != nil {
		return err
	}
	failpoint.Hit(at.After)
	for _, f := range committed {
		f()
	}
	return nil
}

func (s *Store) effect(tx pgx.Tx, op uuid.UUID, w *Work) *Effect {
	return &Effect{Tx: tx, Op: op, task: w.TaskID, tenant: w.TenantID, collection: w.CollectionID, told: s.set.Tally, queued: &pgx.Batch{}}
}

// Flush writes what was queued by now, which a statement of the transaction does
// not see before. An effect need not: what is queued when it ends is written then.
func (e *Effect) Flush(ctx context.Context) error {
	if e.queued.Len() == 0 {
		return nil
	}
	queued := e.queued
	e.queued = &pgx.Batch{}
	if err := e.Tx.SendBatch(ctx, queued).Close(); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	return nil
}

// errTried rolls a trial back that went well.
var errTried = errors.New("it was only tried")

// InTrial runs fn as an effect would, with every constraint checked that waits
// for the commit, and rolls back: it finds out whether the effect would fail.
// Nobody is told of anything.
func (s *Store) InTrial(ctx context.Context, w *Work, fn func(*Effect) error) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		e := s.effect(tx, s.newID(), w)
		if err := fn(e); err != nil {
			return err
		}
		if err := e.Flush(ctx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SET CONSTRAINTS ALL IMMEDIATE`); err != nil {
			return fmt.Errorf("check what waits for the commit: %w", err)
		}
		return errTried
	})
	if errors.Is(err, errTried) {
		return nil
	}
	return err
}

// readBack tells whether the effect op is there. Where it is not, or that can't
// be found out, the unknown outcome stands: the round fails, and the next one
// meets the rows as they are.
func (s *Store) readBack(ctx context.Context, w *Work, op uuid.UUID, unknown error) error {
	var there bool
	err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM lockstep.outcome WHERE tenant_id = $1 AND task_id = $2 AND op_id = $3)`,
		w.TenantID, w.TaskID, op).Scan(&there)
	if err != nil {
		return errors.Join(unknown, fmt.Errorf("read back op %s: %w", op, err))
	}
	if !there {
		return unknown
	}
	return nil
}

// Audit notes a deed in the effect's own transaction.
func (e *Effect) Audit(ctx context.Context, actor, action, object, decision, reason string) error {
	return audit(ctx, e.Tx, actor, action, object, decision, reason)
}
