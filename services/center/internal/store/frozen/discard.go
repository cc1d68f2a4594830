package frozen

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
)

// Discard deletes a set that no task is making or has adopted. A set that
// somebody holds, or that is gone already, is left as it is.
func (s *Store) Discard(ctx context.Context, id uuid.UUID) error {
	_, err := s.discard(ctx, "AND m.manifest_id = $1", id)
	return err
}

// SweepAbandoned deletes at most one abandoned set and says whether there was
// one. A set is abandoned where no task adopted it and none holds it under a
// claim: its worker died, was refused or lost its claim.
func (s *Store) SweepAbandoned(ctx context.Context) (bool, error) {
	return s.discard(ctx, "")
}

func (s *Store) discard(ctx context.Context, only string, args ...any) (found bool, err error) {
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		found = false
		var set Set
		rows, err := tx.Query(ctx, `SELECT m.manifest_id, m.tenant_id FROM lockstep.manifest AS m
			WHERE NOT m.adopted `+only+` AND NOT EXISTS (
				SELECT FROM lockstep.task AS t WHERE t.task_id = m.task_id AND t.manifest_id = m.manifest_id
				AND t.state = 'QUEUED' AND t.manifest_state = 'PENDING' AND t.claim_token IS NOT NULL)
			ORDER BY m.created_at LIMIT 1 FOR UPDATE OF m SKIP LOCKED`, args...)
		if err != nil {
			return fmt.Errorf("look for abandoned manifests: %w", err)
		}
		if _, err := pgx.ForEachRow(rows, []any{&set.ID, &set.TenantID}, func() error { found = true; return nil }); err != nil {
			return fmt.Errorf("look for abandoned manifests: %w", err)
		}
		if !found {
			return nil
		}
		return remove(ctx, tx, set)
	})
	return found, err
}

// remove deletes a set whose row of lockstep.manifest the transaction has
// locked: no page can join it meanwhile.
func remove(ctx context.Context, tx pgx.Tx, set Set) error {
	for _, stmt := range []struct {
		sql  string
		args []any
	}{
		{"SET LOCAL lockstep.retention = 'on'", nil},
		{"DELETE FROM lockstep.manifest_page WHERE tenant_id = $1 AND manifest_id = $2", []any{set.TenantID, set.ID}},
		{"SET LOCAL lockstep.retention = 'off'", nil},
		{"DELETE FROM lockstep.manifest WHERE manifest_id = $1", []any{set.ID}},
	} {
		if _, err := tx.Exec(ctx, stmt.sql, stmt.args...); err != nil {
			return fmt.Errorf("delete manifest %s: %w", set.ID, err)
		}
	}
	return nil
}
