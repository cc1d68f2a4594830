// Package frozen keeps manifests: sets of packed pages that are written once,
// adopted by a task, and never changed.
//
// It promises that a set counts only once a task adopted it, by the last,
// token-conditioned write of its materialiser; that what nobody adopted is
// swept; and that no page can be written into a set that was swept. It never
// updates a page, and deletes pages only of sets that no task has or that
// retention names.
//
//	Begin ──Write…──▶ Adopt ──▶ the task's manifest ──Discard (retention)──▶ gone
//	   └──crash, refusal, fenced──▶ SweepAbandoned ──▶ gone
package frozen

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

var site = store.MaterialiseSite

// Store holds the sets on the center's own pool.
type Store struct{ pool *pgxpool.Pool }

// New makes a store.
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

// Set names a set of pages.
type Set struct {
	ID       uuid.UUID
	TenantID int64
}

// Page is one packed page with what finds and proves it.
type Page struct {
	Number  int
	Rows    int
	LastKey []byte
	Root    evidence.Node
	Body    []byte
}

// Renew moves the lease of a materialiser's claim.
func (s *Store) Renew(ctx context.Context, c claim.Claim, lease time.Duration) error {
	return site.Renew(ctx, s.pool, c, lease)
}

// Note says on the task's row what its manifest waits for while it is made.
func (s *Store) Note(ctx context.Context, c claim.Claim, code fault.Reason) error {
	return site.Write(ctx, s.pool, c, "waiting_code = $3, updated_at = now()", code)
}

// Defer gives a task back that has to wait for something besides its own
// trouble: the try does not count.
func (s *Store) Defer(ctx context.Context, c claim.Claim, code fault.Reason, wait time.Duration) error {
	return site.Leave(ctx, s.pool, c, "manifest_id = NULL, waiting_code = $3, due_at = now() + $4::interval, updated_at = now()", code, wait)
}

// GiveBack undoes a claim: the worker stops for reasons of its own, and the
// try does not count.
func (s *Store) GiveBack(ctx context.Context, c claim.Claim) error {
	return site.Leave(ctx, s.pool, c, `manifest_id = NULL, waiting_code = '', updated_at = now()`)
}

// Begin registers a set under the claim. The task names it while it is made,
// which keeps the sweep away for as long as the claim stands.
func (s *Store) Begin(ctx context.Context, c claim.Claim, set Set) error {
	return pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO lockstep.manifest (manifest_id, tenant_id, task_id) VALUES ($1, $2, $3)`,
			set.ID, set.TenantID, c.ID); err != nil {
			return fmt.Errorf("register manifest %s: %w", set.ID, err)
		}
		return site.Write(ctx, tx, c, "manifest_id = $3, updated_at = now()", set.ID)
	})
}

var pageColumns = []string{"tenant_id", "manifest_id", "page", "row_count", "last_key", "root", "body"}

// Write appends pages to a set that nobody swept; ErrFenced where it is gone.
func (s *Store) Write(ctx context.Context, set Set, pages []Page) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		// These commits need not reach the disk: the set counts from its adoption
		// on, whose own commit writes everything before it too.
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = off"); err != nil {
			return err
		}
		var one int
		err := tx.QueryRow(ctx, `SELECT 1 FROM lockstep.manifest WHERE manifest_id = $1 AND NOT adopted FOR KEY SHARE`, set.ID).Scan(&one)
		if errors.Is(err, pgx.ErrNoRows) {
			return claim.ErrFenced
		}
		if err != nil {
			return err
		}
		_, err = tx.CopyFrom(ctx, pgx.Identifier{"lockstep", "manifest_page"}, pageColumns,
			pgx.CopyFromSlice(len(pages), func(i int) ([]any, error) {
				p := &pages[i]
				return []any{set.TenantID, set.ID, int32(p.Number), int32(p.Rows), p.LastKey, p.Root[:], p.Body}, nil //nolint:gosec // page numbers are bounded by max_rows
			}))
		return err
	})
	if err != nil {
		return fmt.Errorf("write pages of manifest %s: %w", set.ID, err)
	}
	failpoint.Hit(failpoint.CenterMaterialiseHalf)
	return nil
}

// Adoption is what a task says of the set it adopts.
type Adoption struct {
	Set         Set
	Root        evidence.Node
	Rows        int64
	PageRows    int
	Pages       int
	WindowStart time.Time
	Header      []byte // the signed envelope, serialised
}

// Adopt makes the set the task's manifest and ends the claim, in one
// transaction whose last statement is the token-conditioned write.
func (s *Store) Adopt(ctx context.Context, c claim.Claim, a Adoption) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE lockstep.manifest SET adopted = true WHERE manifest_id = $1 AND NOT adopted`, a.Set.ID)
		if err != nil {
			return fmt.Errorf("adopt manifest %s: %w", a.Set.ID, err)
		}
		if tag.RowsAffected() != 1 {
			return claim.ErrFenced
		}
		if _, err := tx.Exec(ctx, `INSERT INTO lockstep.task_event (task_id, attempt, event, state)
			SELECT task_id, attempt, $2, state FROM lockstep.task WHERE task_id = $1`, c.ID, task.Materialised); err != nil {
			return fmt.Errorf("note the adoption of manifest %s: %w", a.Set.ID, err)
		}
		if err := site.Leave(ctx, tx, c, `manifest_state = 'COMPLETE', manifest_id = $3, manifest_root = $4, row_count = $5,
			page_rows = $6, page_count = $7, window_start = $8, header = $9, waiting_code = '', due_at = now(), updated_at = now()`,
			a.Set.ID, a.Root[:], a.Rows, a.PageRows, a.Pages, a.WindowStart, a.Header); err != nil {
			return err
		}
		failpoint.Hit(failpoint.CenterMaterialiseBeforeCommit)
		return nil
	})
	if errors.Is(err, pg.ErrUnknownCommit) {
		return s.readBack(ctx, a.Set, err)
	}
	if err == nil {
		failpoint.Hit(failpoint.CenterMaterialiseAfterCommit)
	}
	return err
}

// readBack finds out whether a commit whose answer was lost took place: the
// random id of the set is the operation's own.
func (s *Store) readBack(ctx context.Context, set Set, unknown error) error {
	var adopted bool
	if err := s.pool.QueryRow(ctx, `SELECT adopted FROM lockstep.manifest WHERE manifest_id = $1`, set.ID).Scan(&adopted); err != nil {
		return errors.Join(unknown, fmt.Errorf("read back the adoption: %w", err))
	}
	if adopted {
		return nil
	}
	return unknown
}
