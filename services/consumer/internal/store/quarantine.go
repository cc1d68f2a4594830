package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
)

// QuarantineQuery says which quarantined records are wanted.
type QuarantineQuery struct {
	TenantID     int64
	CollectionID string // "" for all
	// AfterKey (raw) and AfterTask are the last one of the page before.
	AfterKey  string
	AfterTask uuid.UUID
	Limit     int
}

// Quarantined is a ledger row that waits for an operator.
type Quarantined struct {
	TaskID       uuid.UUID
	CollectionID string
	Outcome
}

// stillQuarantined holds for a ledger row o of work w that waits for an operator.
const stillQuarantined = `o.outcome = 'QUARANTINED' AND o.reopened_at IS NULL
	AND NOT EXISTS (SELECT FROM lockstep.work l JOIN lockstep.outcome n ON n.tenant_id = l.tenant_id AND n.task_id = l.task_id AND n.record_key = o.record_key
		WHERE l.tenant_id = w.tenant_id AND l.collection_id = w.collection_id AND l.created_at > w.created_at)`

// ListQuarantined lists the quarantined records of a tenant in key order: those
// that no operator reopened and no later task found otherwise.
func (s *Store) ListQuarantined(ctx context.Context, q QuarantineQuery) ([]Quarantined, error) {
	rows, err := s.pool.Query(ctx, `SELECT o.task_id, w.collection_id, o.record_key, o.class, o.outcome, o.code,
			o.center_revision, o.center_hash, o.center_deleted, o.local_revision, o.local_hash, o.local_deleted,
			o.evidence_id, o.op_id, o.found_at, o.updated_at
		FROM lockstep.outcome o JOIN lockstep.work w ON w.task_id = o.task_id
		WHERE `+stillQuarantined+` AND o.tenant_id = $1 AND ($2 = '' OR w.collection_id = $2)
		AND (o.record_key, o.task_id) > ($3, $4::uuid)
		ORDER BY o.record_key, o.task_id LIMIT $5`, q.TenantID, q.CollectionID, []byte(q.AfterKey), q.AfterTask, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list quarantined records: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Quarantined, error) {
		var r Quarantined
		var key, centerHash, localHash []byte
		var centerRevision, localRevision *int64
		var centerDeleted, localDeleted *bool
		err := row.Scan(&r.TaskID, &r.CollectionID, &key, &r.Class, &r.Outcome.Outcome, &r.Code, &centerRevision, &centerHash, &centerDeleted,
			&localRevision, &localHash, &localDeleted, &r.EvidenceID, &r.OpID, &r.FoundAt, &r.UpdatedAt)
		r.Key = string(key)
		r.Center = rowOf(key, centerRevision, centerHash, centerDeleted)
		r.Local = rowOf(key, localRevision, localHash, localDeleted)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("list quarantined records: %w", err)
	}
	return out, nil
}

// Reopen takes a record's quarantined ledger rows off the list, audited. The
// outcomes stay: what a task reported is what its ledger holds.
func (s *Store) Reopen(ctx context.Context, tenant int64, collection, key, object, actor, reason string) (reopened int64, err error) {
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE lockstep.outcome o SET reopened_at = now() FROM lockstep.work w
			WHERE w.task_id = o.task_id AND w.collection_id = $2 AND o.tenant_id = $1 AND o.record_key = $3
			AND o.outcome = 'QUARANTINED' AND o.reopened_at IS NULL`, tenant, collection, []byte(key))
		if err != nil {
			return fmt.Errorf("reopen a quarantined record: %w", err)
		}
		if reopened = tag.RowsAffected(); reopened == 0 {
			return nil
		}
		return audit(ctx, tx, actor, "reopen", object, fmt.Sprintf("reopened %d", reopened), reason)
	})
	return reopened, err
}

// Tx is a transaction that another package's statements run in.
type Tx = pgx.Tx

// InOperation runs an operator's change of the projection in a transaction that
// notes it in the audit log. done is false where fn found nothing to change;
// then nothing is noted.
func (s *Store) InOperation(ctx context.Context, actor, action, object, reason string, fn func(Tx) (bool, error)) (done bool, err error) {
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if done, err = fn(tx); err != nil || !done {
			return err
		}
		return audit(ctx, tx, actor, action, object, "done", reason)
	})
	return done, err
}
