package refresh

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
)

// resolveBatch is how many scopes go to the database in one statement.
const resolveBatch = 1000

// resolve stores the generation's scopes, once. A generation that cut another
// one short takes first the scopes that one had not reached, in its order, so
// that frequent requests never starve the late scopes.
func (e *Engine) resolve(ctx context.Context, j *job) error {
	err := pg.InTx(ctx, e.pool, func(tx pgx.Tx) error {
		// What an earlier owner of this claim's generation left behind.
		if _, err := tx.Exec(ctx, `DELETE FROM lockstep.refresh_scope WHERE task_id = $1 AND generation = $2`, j.claim.ID, j.generation); err != nil {
			return fmt.Errorf("clear: %w", err)
		}
		w := scopeWriter{tx: tx, job: j}
		if err := j.projection.Resolve(ctx, tx, j.payload, func(s Scope) error { return w.add(ctx, s) }); err != nil {
			return fmt.Errorf("resolve: %w", err)
		}
		if err := w.flush(ctx); err != nil {
			return err
		}
		if err := unreachedFirst(ctx, tx, j); err != nil {
			return err
		}
		return Site.Write(ctx, tx, j.claim, "resolved = true")
	})
	if err != nil {
		return fmt.Errorf("scopes of %s: %w", j.claim, err)
	}
	j.resolved = true
	return nil
}

type scopeWriter struct {
	tx     pgx.Tx
	job    *job
	ids    []int64
	months []int32
	count  int64
}

func (w *scopeWriter) add(ctx context.Context, s Scope) error {
	w.ids, w.months = append(w.ids, s.ID), append(w.months, s.Month)
	if len(w.ids) < resolveBatch {
		return nil
	}
	return w.flush(ctx)
}

func (w *scopeWriter) flush(ctx context.Context) error {
	_, err := w.tx.Exec(ctx, `INSERT INTO lockstep.refresh_scope (task_id, generation, scope_id, month, position)
		SELECT $1, $2, s.id, s.month, $5 + s.n FROM unnest($3::bigint[], $4::int[]) WITH ORDINALITY s(id, month, n)`,
		w.job.claim.ID, w.job.generation, w.ids, w.months, w.count)
	if err != nil {
		return fmt.Errorf("store scopes: %w", err)
	}
	w.count += int64(len(w.ids))
	w.ids, w.months = w.ids[:0], w.months[:0]
	return nil
}

// unreachedFirst reorders by what the generation before had left, and forgets that one.
func unreachedFirst(ctx context.Context, tx pgx.Tx, j *job) error {
	_, err := tx.Exec(ctx, `UPDATE lockstep.refresh_scope s SET position = r.position
		FROM (SELECT n.scope_id, n.month, row_number() OVER (ORDER BY o.position NULLS LAST, n.position) AS position
			FROM lockstep.refresh_scope n LEFT JOIN lockstep.refresh_scope o
				ON o.task_id = n.task_id AND o.generation < n.generation AND o.scope_id = n.scope_id AND o.month = n.month AND o.state = 'PENDING'
			WHERE n.task_id = $1 AND n.generation = $2) r
		WHERE s.task_id = $1 AND s.generation = $2 AND s.scope_id = r.scope_id AND s.month = r.month AND s.position <> r.position`,
		j.claim.ID, j.generation)
	if err != nil {
		return fmt.Errorf("order scopes: %w", err)
	}
	if _, err := tx.Exec(ctx, `DELETE FROM lockstep.refresh_scope WHERE task_id = $1 AND generation < $2`, j.claim.ID, j.generation); err != nil {
		return fmt.Errorf("forget the last generation's scopes: %w", err)
	}
	return nil
}

// page reads the next scopes in their order.
func (e *Engine) page(ctx context.Context, j *job) ([]Scope, error) {
	rows, err := e.pool.Query(ctx, `SELECT scope_id, month FROM lockstep.refresh_scope
		WHERE task_id = $1 AND generation = $2 AND state = 'PENDING' ORDER BY position LIMIT $3`, j.claim.ID, j.generation, e.set.PageScopes)
	if err != nil {
		return nil, fmt.Errorf("read the page of %s: %w", j.claim, err)
	}
	scopes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Scope])
	if err != nil {
		return nil, fmt.Errorf("read the page of %s: %w", j.claim, err)
	}
	return scopes, nil
}

// left counts the scopes still to be done, and those that failed.
func (e *Engine) left(ctx context.Context, id uuid.UUID, generation int64) (pending, failed int64, err error) {
	err = e.pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE state = 'PENDING'), count(*) FILTER (WHERE state = 'FAILED')
		FROM lockstep.refresh_scope WHERE task_id = $1 AND generation = $2`, id, generation).Scan(&pending, &failed)
	if err != nil {
		return 0, 0, fmt.Errorf("count the scopes of %s: %w", id, err)
	}
	return pending, failed, nil
}

// refreshScope computes one scope in one transaction of its own.
//
// READ COMMITTED is part of the promise: the guard is waited for in a statement
// of its own, and the facts are read by later ones, whose snapshots are taken
// after the wait. What the last holder wrote, and the facts it saw, are in them.
func (e *Engine) refreshScope(ctx context.Context, j *job, s Scope) (counts Counts, err error) {
	work := func(tx pgx.Tx) error {
		counts = Counts{}
		if err := lockGuard(ctx, tx, j.projection.Name(), s); err != nil {
			return err
		}
		open, err := scopeOpen(ctx, tx, j, s)
		if err != nil || !open {
			return err
		}
		if err := j.projection.Check(ctx, tx, j.payload); err != nil {
			return fmt.Errorf("check: %w", err)
		}
		if counts, err = j.projection.Refresh(ctx, tx, j.payload, s); err != nil {
			return fmt.Errorf("refresh: %w", err)
		}
		if err := markDone(ctx, tx, j, s, counts); err != nil {
			return err
		}
		return Site.Check(ctx, tx, j.claim)
	}
	err = pg.InTx(ctx, e.pool, work)
	if errors.Is(err, pg.ErrUnknownCommit) {
		// The guard waits for the one in doubt; then its row tells whether it is done.
		err = pg.InTx(ctx, e.pool, work)
	}
	if err != nil {
		return Counts{}, fmt.Errorf("scope %s: %w", s, err)
	}
	return counts, nil
}

// lockGuard waits for everybody else who writes the scope.
func lockGuard(ctx context.Context, tx pgx.Tx, projection string, s Scope) error {
	key := projection + ":" + s.String()
	for range 2 {
		tag, err := tx.Exec(ctx, `SELECT FROM lockstep.refresh_scope_guard WHERE guard_key = $1 FOR UPDATE`, key)
		if err != nil {
			return fmt.Errorf("lock guard %s: %w", key, err)
		}
		if tag.RowsAffected() == 1 {
			return nil
		}
		if _, err := tx.Exec(ctx, `INSERT INTO lockstep.refresh_scope_guard (guard_key) VALUES ($1) ON CONFLICT DO NOTHING`, key); err != nil {
			return fmt.Errorf("make guard %s: %w", key, err)
		}
	}
	return fmt.Errorf("guard %s is gone", key)
}

// scopeOpen says whether the scope is still to be done: the last owner of the
// task may have committed it while this one waited for the guard.
func scopeOpen(ctx context.Context, tx pgx.Tx, j *job, s Scope) (bool, error) {
	var open bool
	err := tx.QueryRow(ctx, `SELECT state <> 'DONE' FROM lockstep.refresh_scope WHERE task_id = $1 AND generation = $2 AND scope_id = $3 AND month = $4`,
		j.claim.ID, j.generation, s.ID, s.Month).Scan(&open)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, Site.Fenced() // a newer generation has its scopes already
	}
	if err != nil {
		return false, fmt.Errorf("read scope row: %w", err)
	}
	return open, nil
}

func markDone(ctx context.Context, tx pgx.Tx, j *job, s Scope, c Counts) error {
	missed := c.MissedIDs[:min(len(c.MissedIDs), MaxMissedIDs)]
	if missed == nil {
		missed = []int64{}
	}
	tag, err := tx.Exec(ctx, `UPDATE lockstep.refresh_scope SET state = 'DONE', tries = tries + 1, code = '', error = '', updated_at = now(),
		differences = $5, created = $6, updated = $7, unchanged = $8, missed = $9, late_skipped = $10, warnings = $11, missed_ids = $12
		WHERE task_id = $1 AND generation = $2 AND scope_id = $3 AND month = $4`,
		j.claim.ID, j.generation, s.ID, s.Month,
		c.Differences, c.Created, c.Updated, c.Unchanged, c.Missed, c.LateSkipped, c.Warnings, missed)
	if err != nil {
		return fmt.Errorf("mark done: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return Site.Fenced()
	}
	return nil
}

// markFailed notes why a scope could not be done; its own writes are rolled back already.
func (e *Engine) markFailed(ctx context.Context, j *job, s Scope, code, message string) error {
	err := pg.InTx(ctx, e.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE lockstep.refresh_scope SET state = 'FAILED', tries = tries + 1, code = $5, error = $6, updated_at = now()
			WHERE task_id = $1 AND generation = $2 AND scope_id = $3 AND month = $4 AND state = 'PENDING'`,
			j.claim.ID, j.generation, s.ID, s.Month, code, message)
		if err != nil {
			return fmt.Errorf("mark failed: %w", err)
		}
		if tag.RowsAffected() != 1 {
			return Site.Fenced()
		}
		return Site.Check(ctx, tx, j.claim)
	})
	if err != nil {
		return fmt.Errorf("scope %s: %w", s, err)
	}
	return nil
}
