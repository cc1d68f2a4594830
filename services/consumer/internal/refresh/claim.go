package refresh

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/pg"
)

// maxLapses is how many claims in a row may end by their lease before the task
// is failed instead of killing one more worker.
const maxLapses = 3

// job is a held task: one claim, one page.
type job struct {
	claim      claim.Claim
	projection Projection
	code       string // the task's code
	customKey  bool
	generation int64
	payload    []byte // frozen
	resolved   bool
	lapses     int
}

// claimDue takes the next task: lapsed leases first, then what is due. nil: none.
func (e *Engine) claimDue(ctx context.Context) (*job, error) {
	for _, pick := range []string{
		`SELECT t.task_id FROM lockstep.refresh_progress p JOIN lockstep.refresh_task t USING (task_id)
			WHERE p.claim_token IS NOT NULL AND p.lease_until < now() AND t.state = 'RUNNING' AND t.projection = ANY($1)
			ORDER BY p.lease_until, t.task_id LIMIT 1 FOR UPDATE OF t SKIP LOCKED`,
		`SELECT task_id FROM lockstep.refresh_task
			WHERE state IN ('PENDING', 'FAILED') AND retry_count < max_retry AND due_at <= now() AND projection = ANY($1)
			ORDER BY due_at, task_id LIMIT 1 FOR UPDATE SKIP LOCKED`,
	} {
		j, err := e.claimPicked(ctx, pick, e.names)
		if err != nil || j != nil {
			return j, err
		}
	}
	return nil, nil
}

// claimTask takes the task if it may be taken now; nil if not.
func (e *Engine) claimTask(ctx context.Context, id uuid.UUID) (*job, error) {
	return e.claimPicked(ctx, `SELECT task_id FROM lockstep.refresh_task WHERE projection = ANY($1) AND task_id = $2
		AND (state IN ('PENDING', 'FAILED') AND retry_count < max_retry AND due_at <= now() OR state = 'RUNNING') FOR UPDATE SKIP LOCKED`, e.names, id)
}

// claimPicked locks task, then progress, and takes the claim, in one short transaction.
func (e *Engine) claimPicked(ctx context.Context, pick string, args ...any) (j *job, err error) {
	err = pg.InTx(ctx, e.pool, func(tx pgx.Tx) error {
		j = nil
		var id uuid.UUID
		err := tx.QueryRow(ctx, pick, args...).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("pick: %w", err)
		}
		j, err = e.take(ctx, tx, id)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim a refresh task: %w", err)
	}
	return j, nil
}

// take claims a task whose row this transaction has locked.
func (e *Engine) take(ctx context.Context, tx pgx.Tx, id uuid.UUID) (*job, error) {
	var state State
	var projection string
	j := job{}
	err := tx.QueryRow(ctx, `SELECT state, projection, task_code, custom_key, request_generation FROM lockstep.refresh_task WHERE task_id = $1`, id).
		Scan(&state, &projection, &j.code, &j.customKey, &j.generation)
	if err != nil {
		return nil, fmt.Errorf("read task %s: %w", id, err)
	}
	j.projection = e.projections[projection]
	// The lock waits for an effect of the last owner that is about to commit.
	_, err = tx.Exec(ctx, `INSERT INTO lockstep.refresh_progress (task_id, running_generation, payload)
		SELECT task_id, request_generation, payload FROM lockstep.refresh_task WHERE task_id = $1 ON CONFLICT (task_id) DO NOTHING`, id)
	if err != nil {
		return nil, fmt.Errorf("make the progress of %s: %w", id, err)
	}
	var running int64
	err = tx.QueryRow(ctx, `SELECT running_generation FROM lockstep.refresh_progress WHERE task_id = $1 FOR UPDATE`, id).Scan(&running)
	if err != nil {
		return nil, fmt.Errorf("lock the progress of %s: %w", id, err)
	}
	c, ok, err := Site.Take(ctx, tx, claim.Taking{
		Worker: e.worker, Lease: e.set.Lease, Order: "task_id",
		Where: "task_id = $4 AND (claim_token IS NULL OR lease_until < now())",
		Set: `attempt = attempt + 1, lapses = CASE WHEN claim_token IS NULL THEN 0 ELSE lapses + 1 END,
			payload = CASE WHEN running_generation = $5 THEN payload ELSE (SELECT t.payload FROM lockstep.refresh_task t WHERE t.task_id = $4) END,
			resolved = resolved AND running_generation = $5, running_generation = $5`,
		Args: []any{id, j.generation},
	})
	if err != nil || !ok {
		return nil, err
	}
	j.claim = c
	if err := e.begin(ctx, tx, state, &j, running != j.generation); err != nil {
		return nil, err
	}
	return &j, nil
}

// begin makes the taken task RUNNING: a retry gets its failed scopes again, a
// new generation its whole budget.
func (e *Engine) begin(ctx context.Context, tx pgx.Tx, state State, j *job, fresh bool) error {
	_, err := tx.Exec(ctx, `UPDATE lockstep.refresh_task SET state = $2, retry_count = CASE WHEN $3 THEN 0 ELSE retry_count END, updated_at = now()
		WHERE task_id = $1`, j.claim.ID, must(state, Claimed), fresh)
	if err != nil {
		return fmt.Errorf("start task %s: %w", j.claim, err)
	}
	if state == Failed && !fresh {
		_, err = tx.Exec(ctx, `UPDATE lockstep.refresh_scope SET state = 'PENDING' WHERE task_id = $1 AND generation = $2 AND state = 'FAILED'`,
			j.claim.ID, j.generation)
		if err != nil {
			return fmt.Errorf("try the failed scopes of %s again: %w", j.claim, err)
		}
	}
	err = tx.QueryRow(ctx, `SELECT payload, resolved, lapses FROM lockstep.refresh_progress WHERE task_id = $1`, j.claim.ID).
		Scan(&j.payload, &j.resolved, &j.lapses)
	if err != nil {
		return fmt.Errorf("read the progress of %s: %w", j.claim, err)
	}
	return nil
}

// renew moves the lease, over the connections kept for it.
func (e *Engine) renew(ctx context.Context, c claim.Claim) error {
	return Site.Renew(ctx, e.leases, c, e.set.Lease)
}

// ending is how a claim ends.
type ending struct {
	event   Event // PageDone, AllDone, Broken, GivenBack
	code    string
	message string
}

// conclude ends the claim. The newer generation is looked at before success and
// failure: the conclusion names the generation that ran, and where that changes
// nothing the task is given back; only where that changes nothing either has it
// another owner.
func (e *Engine) conclude(ctx context.Context, j *job, end ending) (Event, error) {
	ctx, cancel := detached(ctx)
	defer cancel()
	event := end.event
	err := pg.InTx(ctx, e.pool, func(tx pgx.Tx) error {
		event = end.event
		changed, err := e.concludeTask(ctx, tx, j, end)
		if err != nil {
			return err
		}
		if !changed {
			event = Superseded
			if changed, err = e.giveBackTask(ctx, tx, j); err != nil {
				return err
			}
		}
		if !changed {
			return Site.Fenced()
		}
		return Site.Leave(ctx, tx, j.claim, "lapses = 0")
	})
	if err != nil {
		return "", fmt.Errorf("conclude task %s: %w", j.claim, err)
	}
	return event, nil
}

func (e *Engine) concludeTask(ctx context.Context, tx pgx.Tx, j *job, end ending) (bool, error) {
	broken := end.event == Broken
	tag, err := tx.Exec(ctx, `UPDATE lockstep.refresh_task SET state = $3, code = $4, error = $5, updated_at = now(),
		due_at = CASE WHEN $6 THEN now() + ($7::interval[])[LEAST(retry_count + 1, cardinality($7::interval[]))] ELSE now() END,
		retry_count = CASE WHEN $6 THEN retry_count + 1 ELSE retry_count END
		WHERE task_id = $1 AND state = 'RUNNING' AND request_generation = $2`,
		j.claim.ID, j.generation, must(Running, end.event), end.code, end.message, broken, e.set.RetryDelays)
	if err != nil {
		return false, fmt.Errorf("write the end: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

func (e *Engine) giveBackTask(ctx context.Context, tx pgx.Tx, j *job) (bool, error) {
	tag, err := tx.Exec(ctx, `UPDATE lockstep.refresh_task SET state = $2, retry_count = 0, code = '', error = '', due_at = now(), updated_at = now()
		WHERE task_id = $1 AND state = 'RUNNING'`, j.claim.ID, must(Running, Superseded))
	if err != nil {
		return false, fmt.Errorf("give back: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}
