package frozen

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
)

// discardPages are deleted in one transaction: about 20 MB of page bodies, well
// below a second and the pool's statement time-out.
const discardPages = 2000

// Discard deletes a set that no task is making or has adopted. A set that
// somebody holds, or that is gone already, is left as it is.
func (s *Store) Discard(ctx context.Context, id uuid.UUID) error {
	return s.discardAll(ctx, id)
}

// SweepAbandoned deletes at most one abandoned set and says whether there was
// one. A set is abandoned where no task adopted it and none holds it under a
// claim: its worker died, was refused or lost its claim.
func (s *Store) SweepAbandoned(ctx context.Context) (bool, error) {
	set, found, _, err := s.discardSome(ctx, "")
	if err != nil || !found {
		return false, err
	}
	return true, s.discardAll(ctx, set.ID)
}

// discardAll deletes one set in batches. What a crash leaves of it is still
// abandoned, and its row of lockstep.manifest goes with the last page only.
func (s *Store) discardAll(ctx context.Context, id uuid.UUID) error {
	for more := true; more; {
		var err error
		if _, _, more, err = s.discardSome(ctx, "AND m.manifest_id = $1", id); err != nil {
			return err
		}
	}
	return nil
}

// discardSome deletes one batch of one set's pages; more says that the set has
// further ones.
func (s *Store) discardSome(ctx context.Context, only string, args ...any) (set Set, found, more bool, err error) {
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		found, more = false, false
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
		more, err = remove(ctx, tx, set)
		return err
	})
	return set, found, more, err
}

// remove deletes at most discardPages pages of a set whose row of
// lockstep.manifest the transaction has locked: no page can join it meanwhile.
// The row goes with the last page; until then the set stays abandoned.
func remove(ctx context.Context, tx pgx.Tx, set Set) (more bool, err error) {
	if _, err := tx.Exec(ctx, "SET LOCAL lockstep.retention = 'on'"); err != nil {
		return false, fmt.Errorf("delete manifest %s: %w", set.ID, err)
	}
	tag, err := tx.Exec(ctx, `DELETE FROM lockstep.manifest_page WHERE tenant_id = $1 AND manifest_id = $2 AND page IN (
		SELECT page FROM lockstep.manifest_page WHERE tenant_id = $1 AND manifest_id = $2 ORDER BY page LIMIT $3)`, set.TenantID, set.ID, discardPages)
	if err != nil {
		return false, fmt.Errorf("delete pages of manifest %s: %w", set.ID, err)
	}
	if _, err := tx.Exec(ctx, "SET LOCAL lockstep.retention = 'off'"); err != nil {
		return false, fmt.Errorf("delete manifest %s: %w", set.ID, err)
	}
	if tag.RowsAffected() == discardPages {
		return true, nil
	}
	if _, err := tx.Exec(ctx, "DELETE FROM lockstep.manifest WHERE manifest_id = $1", set.ID); err != nil {
		return false, fmt.Errorf("delete manifest %s: %w", set.ID, err)
	}
	return false, nil
}
