package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/task"
)

// SweepClaims turns at most limit expired claims of a site into claimable
// tasks, later from the second time on; a task that spent its budget that way
// ends FAILED instead of killing workers for ever.
func (s *Store) SweepClaims(ctx context.Context, site claim.Site, on task.Event, p task.Policy, limit int) (swept int, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		ids, err := site.Sweep(ctx, tx.tx, "updated_at = now()", limit)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := tx.requeue(ctx, id, on, p); err != nil {
				return err
			}
		}
		if swept = len(ids); swept > 0 {
			failpoint.Hit(failpoint.CenterSweepBeforeCommit)
		}
		return nil
	})
	if err == nil && swept > 0 {
		failpoint.Hit(failpoint.CenterSweepAfterCommit)
	}
	return swept, err
}

// requeue carries out the table's verdict on a task that lost its worker.
func (t *Tx) requeue(ctx context.Context, id uuid.UUID, on task.Event, p task.Policy) error {
	tk, err := t.LockTask(ctx, id)
	if err != nil {
		return err
	}
	v, ok := task.Next(tk.State, on, tk.Facts(p, false))
	if !ok {
		return nil
	}
	m := Move{Event: on, To: v.To, Code: v.Code, Due: dueAfter(on, tk, p), Actor: "center"}
	if m.Code == "" && on == task.LeaseExpired {
		m.Code = "LEASE_EXPIRED"
	}
	return t.Move(ctx, tk, m)
}

// dueAfter is how long a task waits that lost its worker. A worker of ours that
// died need not be the task's fault: the first time it is due at once.
func dueAfter(on task.Event, tk *task.Task, p task.Policy) time.Duration {
	spent := tk.Attempt
	switch on { //nolint:exhaustive // the other event is the dispatcher's
	case task.LeaseExpired:
		return p.Backoff(spent)
	case task.MaterialiseTrouble:
		spent = tk.MaterialiseTries + 1
	}
	if spent <= 1 {
		return 0
	}
	return p.Backoff(spent - 1)
}

// SweepLease ends one consumer's lease that ran out; ok is false where there
// is none.
func (s *Store) SweepLease(ctx context.Context, p task.Policy) (ok bool, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		var id uuid.UUID
		err := tx.tx.QueryRow(ctx, `SELECT task_id FROM lockstep.task WHERE state IN ('DISPATCHED', 'RUNNING') AND lease_until < now()
			ORDER BY lease_until LIMIT 1 FOR UPDATE SKIP LOCKED`).Scan(&id)
		if ok = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for leases that ran out: %w", err)
		}
		if err := tx.requeue(ctx, id, task.LeaseExpired, p); err != nil {
			return err
		}
		failpoint.Hit(failpoint.CenterSweepBeforeCommit)
		return nil
	})
	if err == nil && ok {
		failpoint.Hit(failpoint.CenterSweepAfterCommit)
	}
	return ok, err
}

// SweepSpent ends one task that no dispatcher may take any more, because the
// budget of attempts was lowered since it was queued; ok is false where there
// is none.
func (s *Store) SweepSpent(ctx context.Context, p task.Policy) (ok bool, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		var id uuid.UUID
		err := tx.tx.QueryRow(ctx, `SELECT task_id FROM lockstep.task WHERE state = 'QUEUED' AND manifest_state = 'COMPLETE'
			AND claim_token IS NULL AND attempt >= $1 AND due_at <= now() ORDER BY due_at, task_id LIMIT 1 FOR UPDATE SKIP LOCKED`, p.MaxAttempts).Scan(&id)
		if ok = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for tasks without attempts: %w", err)
		}
		return tx.requeue(ctx, id, task.ClaimLapsed, p)
	})
	return ok, err
}

// LostTasks lists open tasks whose grant is not effective or has moved, which a
// crash between a revocation and its cancellations left, and those of an older
// center epoch.
func (s *Store) LostTasks(ctx context.Context, limit int) ([]uuid.UUID, error) {
	return s.ids(ctx, `SELECT task_id FROM lockstep.task WHERE `+openStates+` AND NOT EXISTS (
			SELECT 1 FROM lockstep.consumer_grant g JOIN lockstep.consumer_tenant USING (consumer, tenant_id)
			WHERE g.consumer = task.consumer AND g.tenant_id = task.tenant_id AND g.collection_id = task.collection_id
			AND g.enabled AND g.read_allowed AND g.subscribe_allowed AND g.grant_epoch = task.grant_epoch
			AND task.center_epoch = (SELECT center_epoch FROM lockstep.center))
		ORDER BY task_id LIMIT $1`, limit)
}

// Purge deletes at most pages pages of one manifest whose task ended longer
// than retention ago, and marks the task when none is left. ok is false where
// there is nothing to purge.
func (s *Store) Purge(ctx context.Context, retention time.Duration, pages int) (ok bool, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		tk, err := scanTask(tx.tx.QueryRow(ctx, `SELECT `+taskColumns+` FROM lockstep.task
			WHERE ended_at < now() - $1::interval AND ended_at IS NOT NULL AND manifest_state = 'COMPLETE'
			ORDER BY ended_at LIMIT 1 FOR UPDATE SKIP LOCKED`, retention))
		if ok = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for manifests to purge: %w", err)
		}
		return tx.purge(ctx, tk, pages)
	})
	return ok, err
}

func (t *Tx) purge(ctx context.Context, tk *task.Task, pages int) error {
	// The pages' trigger lets only a transaction that says so delete.
	if _, err := t.tx.Exec(ctx, `SELECT set_config('lockstep.retention', 'on', true)`); err != nil {
		return fmt.Errorf("allow the purge: %w", err)
	}
	tag, err := t.tx.Exec(ctx, `DELETE FROM lockstep.manifest_page WHERE tenant_id = $1 AND manifest_id = $2 AND page IN (
		SELECT page FROM lockstep.manifest_page WHERE tenant_id = $1 AND manifest_id = $2 ORDER BY page LIMIT $3)`, tk.TenantID, tk.ManifestID, pages)
	if err != nil {
		return fmt.Errorf("purge manifest %s: %w", tk.ManifestID, err)
	}
	if tag.RowsAffected() == int64(pages) {
		return nil // there may be more
	}
	_, err = t.tx.Exec(ctx, `UPDATE lockstep.task SET manifest_state = 'PURGED', purged_at = now(), updated_at = now()
		WHERE task_id = $1 AND state = $2 AND manifest_state = 'COMPLETE'`, tk.ID, tk.State)
	if err != nil {
		return fmt.Errorf("mark task %s purged: %w", tk.ID, err)
	}
	if _, err = t.tx.Exec(ctx, `DELETE FROM lockstep.manifest WHERE manifest_id = $1`, tk.ManifestID); err != nil {
		return fmt.Errorf("purge manifest %s: %w", tk.ManifestID, err)
	}
	return t.Audit(ctx, Audit{Actor: "center", Action: "manifest.purge", Object: "task/" + protocol.FormatID(tk.ID), Decision: "PURGED"})
}
