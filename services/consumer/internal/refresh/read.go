package refresh

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
)

// Task is a task as people see it. The claim's token is not in it.
type Task struct {
	TaskID            uuid.UUID
	Projection        string
	TaskCode          string
	BusinessKey       string
	CustomKey         bool
	Mode              Mode
	RequestedBy       string
	State             State
	Code              string
	Error             string
	RequestGeneration int64
	RunningGeneration int64 // 0: never claimed
	Attempt           int64
	RetryCount        int32
	MaxRetry          int32
	DueAt             time.Time
	ClaimedBy         string
	LeaseUntil        *time.Time
	CreatedAt         time.Time
	UpdatedAt         time.Time

	Due    bool // due_at is over, by the database's clock
	Lapsed bool // the lease is over
}

// Detail is a task with what its running generation amounts to.
type Detail struct {
	Task

	Scopes, Done, FailedScopes int64
	Counts                     Counts
	// Cursor is the last scope of the complete prefix, "" before there is one.
	Cursor string
}

// ScopeRow is one scope of the running generation.
type ScopeRow struct {
	Scope

	Generation int64
	Position   int64
	State      string
	Tries      int32
	Code       string
	Error      string
	Counts     Counts
	UpdatedAt  time.Time
}

const taskColumns = `t.task_id, t.projection, t.task_code, t.business_key, t.custom_key, t.mode, t.requested_by, t.state, t.code, t.error,
	t.request_generation, COALESCE(p.running_generation, 0) AS running_generation, COALESCE(p.attempt, 0) AS attempt,
	t.retry_count, t.max_retry, t.due_at, COALESCE(p.claimed_by, '') AS claimed_by, p.lease_until, t.created_at, t.updated_at,
	t.due_at <= now() AS due, COALESCE(p.lease_until < now(), false) AS lapsed`

const taskFrom = ` FROM lockstep.refresh_task t LEFT JOIN lockstep.refresh_progress p USING (task_id) `

// Waiting says why nothing moves right now; "" while something does.
func (t *Task) Waiting(enabled bool) fault.Reason {
	switch {
	case t.State == Cancelled:
		return fault.CancelledByOperator
	case t.State == Running && t.Lapsed:
		return fault.LeaseExpired
	case t.State == Success || t.State == Running:
		return fault.None
	case t.RetryCount >= t.MaxRetry:
		return fault.RetriesExhausted
	case !enabled:
		return fault.ExecutionDisabled
	case t.State == Failed && !t.Due:
		return fault.Reason(t.Code)
	case t.Due:
		return fault.BehindAnother
	default:
		return fault.None
	}
}

// Enabled says whether this process works on tasks.
func (e *Engine) Enabled() bool { return e.set.Enabled }

// Filter selects tasks for a list; empty fields select all.
type Filter struct {
	Projection string
	States     []State
	Key        string
}

// Position is where a list goes on: the last task seen.
type Position struct {
	CreatedAt time.Time
	TaskID    uuid.UUID
}

// Tasks lists tasks, newest first, after the given position.
func (e *Engine) Tasks(ctx context.Context, f Filter, after *Position, limit int) ([]Task, error) {
	if f.States == nil {
		f.States = []State{}
	}
	args := []any{f.Projection, f.States, f.Key, limit}
	keyset := ""
	if after != nil {
		keyset = ` AND (t.created_at, t.task_id) < ($5, $6)`
		args = append(args, after.CreatedAt, after.TaskID)
	}
	rows, err := e.pool.Query(ctx, `SELECT `+taskColumns+taskFrom+`
		WHERE ($1 = '' OR t.projection = $1) AND (cardinality($2::text[]) = 0 OR t.state = ANY($2)) AND ($3 = '' OR t.business_key = $3)`+keyset+`
		ORDER BY t.created_at DESC, t.task_id DESC LIMIT $4`, args...)
	if err != nil {
		return nil, fmt.Errorf("list refresh tasks: %w", err)
	}
	tasks, err := pgx.CollectRows(rows, pgx.RowToStructByName[Task])
	if err != nil {
		return nil, fmt.Errorf("list refresh tasks: %w", err)
	}
	return tasks, nil
}

// Task shows one task; TASK_NOT_FOUND where there is none.
func (e *Engine) Task(ctx context.Context, id uuid.UUID) (*Detail, error) {
	rows, err := e.pool.Query(ctx, `SELECT `+taskColumns+taskFrom+`WHERE t.task_id = $1`, id)
	if err != nil {
		return nil, fmt.Errorf("read refresh task %s: %w", id, err)
	}
	task, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Task])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, notFound(id)
	}
	if err != nil {
		return nil, fmt.Errorf("read refresh task %s: %w", id, err)
	}
	d := Detail{Task: task}
	return &d, e.amounts(ctx, &d)
}

func (e *Engine) amounts(ctx context.Context, d *Detail) error {
	c := &d.Counts
	err := e.pool.QueryRow(ctx, `WITH s AS MATERIALIZED (SELECT * FROM lockstep.refresh_scope WHERE task_id = $1 AND generation = $2),
		open AS (SELECT min(position) AS first FROM s WHERE state <> 'DONE')
		SELECT count(*), count(*) FILTER (WHERE state = 'DONE'), count(*) FILTER (WHERE state = 'FAILED'),
			COALESCE(sum(differences), 0)::bigint, COALESCE(sum(created), 0)::bigint, COALESCE(sum(updated), 0)::bigint,
			COALESCE(sum(unchanged), 0)::bigint, COALESCE(sum(missed), 0)::bigint, COALESCE(sum(late_skipped), 0)::bigint, COALESCE(sum(warnings), 0)::bigint,
			ARRAY(SELECT m.id FROM (SELECT position, missed_ids FROM s WHERE missed > 0 ORDER BY position LIMIT $3) l, unnest(l.missed_ids) m(id)
				ORDER BY l.position, m.id LIMIT $3),
			COALESCE((SELECT scope_id || ':' || month FROM s, open WHERE position < COALESCE(open.first, position + 1) ORDER BY position DESC LIMIT 1), '')
		FROM s`, d.TaskID, d.RunningGeneration, MaxMissedIDs).
		Scan(&d.Scopes, &d.Done, &d.FailedScopes, &c.Differences, &c.Created, &c.Updated, &c.Unchanged, &c.Missed, &c.LateSkipped, &c.Warnings,
			&c.MissedIDs, &d.Cursor)
	if err != nil {
		return fmt.Errorf("sum up refresh task %s: %w", d.TaskID, err)
	}
	return nil
}

// Scopes lists the running generation's scopes in their order, after a position.
func (e *Engine) Scopes(ctx context.Context, id uuid.UUID, states []string, after int64, limit int) ([]ScopeRow, error) {
	if states == nil {
		states = []string{}
	}
	rows, err := e.pool.Query(ctx, `SELECT s.scope_id, s.month, s.generation, s.position, s.state, s.tries, s.code, s.error, s.updated_at,
		s.differences, s.created, s.updated, s.unchanged, s.missed, s.late_skipped, s.warnings, s.missed_ids
		FROM lockstep.refresh_scope s JOIN lockstep.refresh_progress p ON p.task_id = s.task_id AND p.running_generation = s.generation
		WHERE s.task_id = $1 AND s.position > $2 AND (cardinality($3::text[]) = 0 OR s.state = ANY($3)) ORDER BY s.position LIMIT $4`,
		id, after, states, limit)
	if err != nil {
		return nil, fmt.Errorf("list scopes of %s: %w", id, err)
	}
	scopes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r ScopeRow, err error) {
		c := &r.Counts
		err = row.Scan(&r.ID, &r.Month, &r.Generation, &r.Position, &r.State, &r.Tries, &r.Code, &r.Error, &r.UpdatedAt,
			&c.Differences, &c.Created, &c.Updated, &c.Unchanged, &c.Missed, &c.LateSkipped, &c.Warnings, &c.MissedIDs)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("list scopes of %s: %w", id, err)
	}
	return scopes, nil
}
