package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/task"
)

// Authorize is what every manifest, snapshot and proof call checks again, in
// this order: the task exists and is the caller's (TASK_NOT_FOUND, which also
// hides the tasks of others), it has not ended (TASK_TERMINAL with task_state),
// the newest grant is effective (GRANT_REVOKED), and it and the center are of the
// task's epochs (EPOCH_MOVED). The last two cancel the task there and then.
func (s *Store) Authorize(ctx context.Context, consumer string, id uuid.UUID) (*task.Task, error) {
	var enabled, read, subscribe, served *bool
	var epoch *int64
	var centerEpoch int64
	tk, err := scanTask(s.pool.QueryRow(ctx, `SELECT `+taskColumns+`, g.enabled, g.read_allowed, g.subscribe_allowed, g.grant_epoch,
			(SELECT center_epoch FROM lockstep.center),
			EXISTS (SELECT 1 FROM lockstep.consumer_tenant s WHERE s.consumer = task.consumer AND s.tenant_id = task.tenant_id)
		FROM lockstep.task LEFT JOIN lockstep.consumer_grant g
			ON g.consumer = task.consumer AND g.tenant_id = task.tenant_id AND g.collection_id = task.collection_id
		WHERE task.task_id = $1`, id), &enabled, &read, &subscribe, &epoch, &centerEpoch, &served)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && tk.Consumer != consumer {
		return nil, notFound(id)
	}
	if err != nil {
		return nil, fmt.Errorf("authorize a call on task %s: %w", id, err)
	}
	if tk.State.Terminal() {
		return nil, Ended(tk)
	}
	g := Grant{Enabled: or0(enabled), ReadAllowed: or0(read), SubscribeAllowed: or0(subscribe), Epoch: or0(epoch), Served: or0(served), CenterEpoch: centerEpoch}
	if g.Lost(tk.GrantEpoch, tk.CenterEpoch) == fault.None {
		return tk, nil
	}
	return nil, s.refuseLost(ctx, tk)
}

// refuseLost cancels a task whose grant was seen lost, and says so. The second
// look, under locks, is the one that counts.
func (s *Store) refuseLost(ctx context.Context, seen *task.Task) error {
	cancelled, code, err := s.CancelLost(ctx, seen.ID)
	switch {
	case err != nil:
		return err
	case code != fault.None:
		return lost(code)
	case cancelled.State.Terminal():
		return Ended(cancelled)
	}
	return fault.New(fault.Unavailable, "the grant changed while it was checked; ask again")
}

func lost(code fault.Reason) error {
	if code == fault.EpochMoved {
		return fault.New(code, "the grant, or the center's epoch, is not the one that the task was made under").With("task_state", "CANCELLED")
	}
	return fault.New(code, "the grant is not effective").With("task_state", "CANCELLED")
}

// Ended says that a task has ended, and how.
func Ended(t *task.Task) error {
	return fault.New(fault.TaskTerminal, "the task has ended %s", t.State).With("task_state", string(t.State)).With("code", t.Code)
}

// CancelLost cancels an open task whose grant is not effective or has moved,
// in a transaction of its own. It returns the task as it was found and the
// code it was cancelled with, None where there was no reason to.
func (s *Store) CancelLost(ctx context.Context, id uuid.UUID) (found *task.Task, code fault.Reason, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		code = fault.None
		if found, err = tx.LockTask(ctx, id); err != nil {
			return err
		}
		if found.State.Terminal() {
			return nil
		}
		code, err = tx.CancelIfLost(ctx, found)
		return err
	})
	return found, code, err
}

// CancelIfLost looks at the grant of a locked open task and cancels the task
// where it is lost.
func (t *Tx) CancelIfLost(ctx context.Context, tk *task.Task) (fault.Reason, error) {
	g, err := t.ShareGrant(ctx, ScopeOf(tk))
	if err != nil {
		return fault.None, err
	}
	code := g.Lost(tk.GrantEpoch, tk.CenterEpoch)
	if code == fault.None {
		return code, nil
	}
	v, ok := task.Next(tk.State, task.GrantLost, task.Facts{})
	if !ok {
		return fault.None, ErrMoved
	}
	return code, t.Move(ctx, tk, Move{Event: task.GrantLost, To: v.To, Code: string(code), Actor: "center"})
}

// Cancel ends an open task at an operator's wish. Cancelling a CANCELLED task
// changes nothing; one that ended otherwise is TASK_TERMINAL.
func (s *Store) Cancel(ctx context.Context, id uuid.UUID, reason, actor string) error {
	return s.InTx(ctx, func(tx *Tx) error {
		tk, err := tx.LockTask(ctx, id)
		if err != nil || tk.State == protocol.Cancelled {
			return err
		}
		v, ok := task.Next(tk.State, task.OperatorCancels, task.Facts{})
		if !ok {
			return Ended(tk)
		}
		return tx.Move(ctx, tk, Move{
			Event: task.OperatorCancels, To: v.To, Code: string(fault.CancelledByOperator), Reason: reason, Actor: actor,
		})
	})
}
