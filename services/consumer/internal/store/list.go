package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/services/consumer/internal/work"
)

// WorkQuery filters a list of work; zero values do not.
type WorkQuery struct {
	TenantID     int64
	CollectionID string
	States       []string
	// Tenants are those that may be seen; none means all.
	Tenants []int64
	// Before and BeforeID are the last row of the page before.
	Before   *time.Time
	BeforeID uuid.UUID
	Limit    int
}

// ListWork lists newest first.
func (s *Store) ListWork(ctx context.Context, q WorkQuery) ([]*Work, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+columns+` FROM lockstep.work
		WHERE ($1 = 0 OR tenant_id = $1) AND ($2 = '' OR collection_id = $2)
		  AND (cardinality($3::text[]) = 0 OR state = ANY($3)) AND (cardinality($4::bigint[]) = 0 OR tenant_id = ANY($4))
		  AND ($5::timestamptz IS NULL OR (created_at, task_id) < ($5, $6))
		ORDER BY created_at DESC, task_id DESC LIMIT $7`,
		q.TenantID, q.CollectionID, orEmpty(q.States), orEmpty(q.Tenants), q.Before, q.BeforeID, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list work: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[Work])
	if err != nil {
		return nil, fmt.Errorf("list work: %w", err)
	}
	return out, nil
}

// orEmpty makes an SQL array that is empty and not NULL.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Outcome is a ledger row as it is shown.
type Outcome struct {
	Entry
	OpID      uuid.UUID
	FoundAt   time.Time
	UpdatedAt time.Time
}

// OutcomeQuery filters a list of outcomes; zero values do not.
type OutcomeQuery struct {
	Class, Outcome string
	After          string // raw
	Limit          int
}

// ListOutcomes lists a task's ledger in key order.
func (s *Store) ListOutcomes(ctx context.Context, w *Work, q OutcomeQuery) ([]Outcome, error) {
	rows, err := s.pool.Query(ctx, `SELECT record_key, class, outcome, code, center_revision, center_hash, center_deleted,
			local_revision, local_hash, local_deleted, evidence_id, op_id, found_at, updated_at
		FROM lockstep.outcome
		WHERE tenant_id = $1 AND task_id = $2 AND record_key > $3 AND ($4 = '' OR class = $4) AND ($5 = '' OR outcome = $5)
		ORDER BY record_key LIMIT $6`, w.TenantID, w.TaskID, []byte(q.After), q.Class, q.Outcome, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list outcomes: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Outcome, error) {
		var o Outcome
		var key, centerHash, localHash []byte
		var centerRevision, localRevision *int64
		var centerDeleted, localDeleted *bool
		err := row.Scan(&key, &o.Class, &o.Outcome, &o.Code, &centerRevision, &centerHash, &centerDeleted,
			&localRevision, &localHash, &localDeleted, &o.EvidenceID, &o.OpID, &o.FoundAt, &o.UpdatedAt)
		o.Key = string(key)
		o.Center = rowOf(key, centerRevision, centerHash, centerDeleted)
		o.Local = rowOf(key, localRevision, localHash, localDeleted)
		return o, err
	})
	if err != nil {
		return nil, fmt.Errorf("list outcomes: %w", err)
	}
	return out, nil
}

// SetPaused pauses a row or lets it go on. A run in hand is not disturbed; a
// resumed row is due at once. Saying it twice changes nothing. A row that has
// ended can't be paused, TASK_TERMINAL; a pause that outlived it can be lifted.
func (s *Store) SetPaused(ctx context.Context, id uuid.UUID, paused bool, actor, reason string) (*Work, error) {
	var out *Work
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var err error
		if out, err = readWork(ctx, tx, id, "FOR UPDATE"); err != nil {
			return err
		}
		if paused && out.State.Ended() {
			return fault.New(fault.TaskTerminal, "the task is %s: there is nothing left to pause", out.State).With("task_state", string(out.State))
		}
		if out.Paused == paused {
			return nil
		}
		_, err = tx.Exec(ctx, `UPDATE lockstep.work SET paused = $2, updated_at = now(),
			due_at = CASE WHEN $2 OR state <> $3 THEN due_at ELSE now() END,
			waiting_reported_at = CASE WHEN $2 THEN NULL ELSE waiting_reported_at END WHERE task_id = $1`, id, paused, work.Queued)
		if err != nil {
			return fmt.Errorf("pause work: %w", err)
		}
		action := "resume"
		if paused {
			action = "pause"
		}
		if err := audit(ctx, tx, actor, action, "task "+out.ID(), "done", reason); err != nil {
			return err
		}
		out, err = readWork(ctx, tx, id, "")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pause or resume %s: %w", id, err)
	}
	return out, nil
}
