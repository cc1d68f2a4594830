package store

import (
	"context"
	"fmt"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/task"
)

// toDispatch is the condition of a task that a dispatcher may take: $4 is the
// attempt budget, $5 the slots of a consumer.
var toDispatch = `state = 'QUEUED' AND manifest_state = 'COMPLETE' AND claim_token IS NULL AND due_at <= now()
	AND attempt < $4::integer AND EXISTS (` + freeSlots("$5") + `)`

// freeSlots is the query of the slots that the outer task could take, lowest
// first: 0 is reserved for RECORD tasks, the others have 1 up to the parameter.
func freeSlots(parameter string) string {
	return `SELECT n FROM generate_series(CASE task.scope WHEN 'RECORD' THEN 0 ELSE 1 END, CASE task.scope WHEN 'RECORD' THEN 0 ELSE ` + parameter + `::integer END) n
		WHERE NOT EXISTS (SELECT 1 FROM lockstep.task o WHERE o.consumer = task.consumer AND o.slot = n) ORDER BY n LIMIT 1`
}

// FreeSlot finds the slot that a locked task could take, nil where all are
// taken. The unique index decides: a race for it runs the transaction again.
func (t *Tx) FreeSlot(ctx context.Context, tk *task.Task, p task.Policy) (slot *int, err error) {
	err = t.tx.QueryRow(ctx, `SELECT (`+freeSlots("$2")+`) FROM lockstep.task WHERE task_id = $1`, tk.ID, p.Slots).Scan(&slot)
	if err != nil {
		return nil, fmt.Errorf("look for a slot for task %s: %w", tk.ID, err)
	}
	return slot, nil
}

// ClaimDispatch takes the next task that is due and fits a slot, and spends an
// attempt on it. A task whose grant is lost is cancelled instead, and the next
// one is tried.
func (s *Store) ClaimDispatch(ctx context.Context, worker string, p task.Policy) (c claim.Claim, tk *task.Task, ok bool, err error) {
	for gone := true; gone; {
		err = s.InTx(ctx, func(tx *Tx) error {
			c, tk, ok, gone, err = tx.claimDispatch(ctx, worker, p)
			return err
		})
		if err != nil {
			return claim.Claim{}, nil, false, fmt.Errorf("claim a task to dispatch: %w", err)
		}
	}
	return c, tk, ok, nil
}

func (t *Tx) claimDispatch(ctx context.Context, worker string, p task.Policy) (c claim.Claim, tk *task.Task, ok, gone bool, err error) {
	c, ok, err = DispatchSite.Take(ctx, t.tx, claim.Taking{
		Worker: worker, Lease: p.ClaimLease, Where: toDispatch, Order: "due_at, task_id", Args: []any{p.MaxAttempts, p.Slots},
	})
	if err != nil || !ok {
		return c, nil, false, false, err
	}
	if tk, err = t.LockTask(ctx, c.ID); err != nil {
		return c, nil, false, false, err
	}
	code, err := t.CancelIfLost(ctx, tk)
	if err != nil || code != fault.None {
		return c, nil, false, err == nil, err
	}
	slot, err := t.FreeSlot(ctx, tk, p)
	if err != nil {
		return c, nil, false, false, err
	}
	if _, allowed := task.Next(tk.State, task.DispatcherTakes, tk.Facts(p, slot != nil)); !allowed {
		return c, nil, false, false, errPlaceTaken
	}
	tk.Attempt++
	tk.Slot = slot
	tk.Progress = nil
	err = DispatchSite.Write(ctx, t.tx, c, "attempt = $3, slot = $4, progress = NULL, progress_at = NULL, waiting_code = '', updated_at = now()", tk.Attempt, slot)
	if err != nil {
		return c, nil, false, false, err
	}
	return c, tk, true, false, t.Event(ctx, tk.ID, tk.Attempt, task.DispatcherTakes, tk.State, "")
}

// ConcludeDispatch carries out the verdict on what became of a dispatch;
// claim.ErrFenced where the task moved on: its report overtook the answer, it
// was cancelled, or the claim lapsed.
func (s *Store) ConcludeDispatch(ctx context.Context, c claim.Claim, decide func(*task.Task) (Move, bool)) error {
	return s.InTx(ctx, func(tx *Tx) error {
		tk, err := tx.LockTask(ctx, c.ID)
		if err != nil {
			return err
		}
		m, ok := decide(tk)
		if !ok {
			return DispatchSite.Fenced()
		}
		return tx.MoveHeld(ctx, DispatchSite, c, tk, m)
	})
}
