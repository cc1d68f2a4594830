package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Waiting takes at most limit rows that wait and whose last word to the center
// is at least every old. They are marked as told by this very statement, so
// that several processes do not tell the same. fresh lets those be that have
// been due for less than it: a worker is on its way.
func (s *Store) Waiting(ctx context.Context, every, fresh time.Duration, limit int) ([]*Work, error) {
	rows, err := s.pool.Query(ctx, `WITH waiting AS MATERIALIZED (
			SELECT task_id AS id FROM lockstep.work
			WHERE state = 'QUEUED' AND COALESCE(waiting_reported_at, updated_at) + $1::interval <= now()
			  AND (paused OR due_at > now() OR due_at + $2::interval <= now())
			ORDER BY due_at, task_id LIMIT $3 FOR UPDATE SKIP LOCKED)
		UPDATE lockstep.work SET waiting_reported_at = now() FROM waiting WHERE task_id = waiting.id RETURNING `+columns,
		every, fresh, limit)
	if err != nil {
		return nil, fmt.Errorf("look for waiting work: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[Work])
	if err != nil {
		return nil, fmt.Errorf("look for waiting work: %w", err)
	}
	return out, nil
}

// Parked takes at most limit parked rows that were not asked about for every,
// and marks them as asked about by this very statement.
func (s *Store) Parked(ctx context.Context, every time.Duration, limit int) ([]*Work, error) {
	rows, err := s.pool.Query(ctx, `WITH parked AS MATERIALIZED (
			SELECT task_id AS id FROM lockstep.work
			WHERE state = 'PARKED' AND COALESCE(waiting_reported_at, updated_at) + $1::interval <= now()
			ORDER BY task_id LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE lockstep.work SET waiting_reported_at = now() FROM parked WHERE task_id = parked.id RETURNING `+columns, every, limit)
	if err != nil {
		return nil, fmt.Errorf("look for parked work: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[Work])
	if err != nil {
		return nil, fmt.Errorf("look for parked work: %w", err)
	}
	return out, nil
}

// Purge deletes at most limit ledger rows of one task that ended longer ago
// than retention. The task is marked as purged by the first of them: what is
// left of a ledger is no basis for a report. more says that there is more to do.
func (s *Store) Purge(ctx context.Context, retention time.Duration, limit int) (more bool, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+columns+` FROM lockstep.work
			AS w WHERE ended_at + $1::interval < now() AND (purged_at IS NULL OR EXISTS (
				SELECT FROM lockstep.outcome AS o WHERE o.tenant_id = w.tenant_id AND o.task_id = w.task_id))
			ORDER BY ended_at LIMIT 1 FOR UPDATE SKIP LOCKED`, retention)
		if err != nil {
			return err
		}
		due, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[Work])
		if err != nil || len(due) == 0 {
			return err
		}
		more = true
		_, err = tx.Exec(ctx, `DELETE FROM lockstep.outcome WHERE tenant_id = $1 AND task_id = $2 AND record_key IN (
			SELECT record_key FROM lockstep.outcome WHERE tenant_id = $1 AND task_id = $2 ORDER BY record_key LIMIT $3)`,
			due[0].TenantID, due[0].TaskID, limit)
		if err != nil {
			return err
		}
		if due[0].PurgedAt != nil {
			return nil
		}
		if _, err = tx.Exec(ctx, `UPDATE lockstep.work SET purged_at = now() WHERE task_id = $1`, due[0].TaskID); err != nil {
			return err
		}
		return audit(ctx, tx, "consumer", "outcomes.purge", "task "+due[0].ID(), "PURGED", "")
	})
	if err != nil {
		return false, fmt.Errorf("purge old outcomes: %w", err)
	}
	return more, nil
}
