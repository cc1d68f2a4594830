package store

import (
	"context"
	"fmt"
	"time"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/task"
)

// toMaterialise is the condition of a task that a materialiser may take. The
// index task_ahead holds the last part against two takers at once.
const toMaterialise = `state = 'QUEUED' AND manifest_state = 'PENDING' AND claim_token IS NULL AND due_at <= now()
	AND (scope = 'RECORD' OR NOT EXISTS (SELECT 1 FROM lockstep.task o
		WHERE o.consumer = task.consumer AND o.scope = 'COLLECTION' AND o.state = 'QUEUED' AND o.attempt = 0
		AND (o.manifest_state = 'COMPLETE' OR o.claim_token IS NOT NULL)))`

// HoldUp notes on the tasks that a materialiser could take now why it takes none.
func (s *Store) HoldUp(ctx context.Context, code fault.Reason) error {
	_, err := s.pool.Exec(ctx, `UPDATE lockstep.task SET waiting_code = $1 WHERE waiting_code <> $1 AND `+toMaterialise, code)
	if err != nil {
		return fmt.Errorf("note that manifests wait: %w", err)
	}
	return nil
}

// ClaimMaterialise takes the next task whose manifest is to be made. A task
// whose grant is lost is cancelled instead, and the next one is tried.
func (s *Store) ClaimMaterialise(ctx context.Context, worker string, lease time.Duration) (c claim.Claim, tk *task.Task, ok bool, err error) {
	for gone := true; gone; {
		err = s.InTx(ctx, func(tx *Tx) error {
			gone = false
			c, ok, err = MaterialiseSite.Take(ctx, tx.tx, claim.Taking{Worker: worker, Lease: lease, Where: toMaterialise, Order: "due_at, task_id", Set: "waiting_code = ''"})
			if err != nil || !ok {
				return err
			}
			if tk, err = tx.LockTask(ctx, c.ID); err != nil {
				return err
			}
			if _, allowed := task.Next(tk.State, task.MaterialiserTakes, tk.Facts(task.Policy{}, false)); !allowed {
				return ErrMoved
			}
			code, err := tx.CancelIfLost(ctx, tk)
			gone = code != fault.None
			return err
		})
		if err != nil {
			return claim.Claim{}, nil, false, fmt.Errorf("claim a manifest to make: %w", err)
		}
	}
	return c, tk, ok, nil
}

// RefuseMaterialise ends a task whose manifest can't ever be made, with its
// stable code.
func (s *Store) RefuseMaterialise(ctx context.Context, c claim.Claim, code fault.Reason, reason string) error {
	return s.concludeMaterialise(ctx, c, task.MaterialiseRefused, task.Policy{}, string(code), reason)
}

// RetryMaterialise gives a task back after a failure that may pass, later each
// time; out of tries it ends FAILED, MATERIALISE_FAILED.
func (s *Store) RetryMaterialise(ctx context.Context, c claim.Claim, p task.Policy, code fault.Reason) error {
	return s.concludeMaterialise(ctx, c, task.MaterialiseTrouble, p, string(code), "")
}

func (s *Store) concludeMaterialise(ctx context.Context, c claim.Claim, on task.Event, p task.Policy, code, reason string) error {
	return s.InTx(ctx, func(tx *Tx) error {
		tk, err := tx.LockTask(ctx, c.ID)
		if err != nil {
			return err
		}
		v, ok := task.Next(tk.State, on, tk.Facts(p, false))
		if !ok {
			return MaterialiseSite.Fenced()
		}
		m := Move{Event: on, To: v.To, Code: code, Reason: reason, Actor: "center"}
		if v.Code != "" {
			m.Code = v.Code
		}
		if v.To == protocol.Queued {
			m.Due = p.Backoff(tk.MaterialiseTries + 1)
		}
		return tx.MoveHeld(ctx, MaterialiseSite, c, tk, m)
	})
}
