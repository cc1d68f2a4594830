package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/task"
)

// taskColumns are all but the claim token, which never leaves its column.
const taskColumns = `task.task_id, task.consumer, task.tenant_id, task.collection_id, task.scope, task.record_key, task.mode,
	task.state, task.code, task.reason, task.attempt, task.grant_epoch, task.center_epoch,
	task.breaker_override, task.override_reason, task.created_by, task.trace_context,
	task.manifest_state, task.manifest_id, task.manifest_root, task.row_count, task.page_rows, task.page_count,
	task.window_start, task.header, task.materialise_tries,
	task.claimed_by, task.lease_until, task.slot, task.due_at, task.dispatched_at, task.waiting_since, task.waiting_code,
	task.progress, task.progress_at, task.created_at, task.updated_at, task.ended_at`

// scanTask reads taskColumns, and whatever columns follow them into more.
func scanTask(row pgx.Row, more ...any) (*task.Task, error) {
	var (
		t          task.Task
		manifestID *uuid.UUID
		root       []byte
		rows       *int64
		pageRows   *int
		pages      *int
		claimedBy  *string

		window, lease, dispatched, waiting, progress, ended *time.Time
	)
	err := row.Scan(append([]any{
		&t.ID, &t.Consumer, &t.TenantID, &t.CollectionID, &t.Scope, &t.Key, &t.Mode,
		&t.State, &t.Code, &t.Reason, &t.Attempt, &t.GrantEpoch, &t.CenterEpoch,
		&t.BreakerOverride, &t.OverrideReason, &t.CreatedBy, &t.TraceContext,
		&t.ManifestState, &manifestID, &root, &rows, &pageRows, &pages,
		&window, &t.Header, &t.MaterialiseTries,
		&claimedBy, &lease, &t.Slot, &t.DueAt, &dispatched, &waiting, &t.WaitingCode,
		&t.Progress, &progress, &t.CreatedAt, &t.UpdatedAt, &ended,
	}, more...)...)
	if err != nil {
		return nil, err
	}
	if root != nil && len(root) != len(evidence.Node{}) {
		return nil, fmt.Errorf("task %s: manifest root of %d bytes", t.ID, len(root))
	}
	copy(t.ManifestRoot[:], root)
	t.ManifestID, t.RowCount, t.PageRows, t.PageCount = or0(manifestID), or0(rows), or0(pageRows), or0(pages)
	t.ClaimedBy = or0(claimedBy)
	t.WindowStart, t.LeaseUntil, t.DispatchedAt = or0(window), or0(lease), or0(dispatched)
	t.WaitingSince, t.ProgressAt, t.EndedAt = or0(waiting), or0(progress), or0(ended)
	return &t, nil
}

func or0[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

func rowToTask(row pgx.CollectableRow) (*task.Task, error) { return scanTask(row) }

func notFound(id uuid.UUID) error {
	return fault.New(fault.TaskNotFound, "there is no task %s", protocol.FormatID(id))
}

// Task reads one task; TASK_NOT_FOUND where there is none.
func (s *Store) Task(ctx context.Context, id uuid.UUID) (*task.Task, error) {
	return oneTask(s.pool.QueryRow(ctx, `SELECT `+taskColumns+` FROM lockstep.task WHERE task_id = $1`, id), id)
}

// TaskVersion tells one state of a task's row from every other: what last
// changed it. TASK_NOT_FOUND where there is none.
func (s *Store) TaskVersion(ctx context.Context, id uuid.UUID) (version string, err error) {
	err = s.pool.QueryRow(ctx, `SELECT xmin::text FROM lockstep.task WHERE task_id = $1`, id).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", notFound(id)
	}
	if err != nil {
		return "", fmt.Errorf("read the version of task %s: %w", id, err)
	}
	return version, nil
}

// LockTask reads one task and keeps others from changing it until the commit.
func (t *Tx) LockTask(ctx context.Context, id uuid.UUID) (*task.Task, error) {
	return oneTask(t.tx.QueryRow(ctx, `SELECT `+taskColumns+` FROM lockstep.task WHERE task_id = $1 FOR UPDATE`, id), id)
}

func oneTask(row pgx.Row, id uuid.UUID) (*task.Task, error) {
	t, err := scanTask(row)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, notFound(id)
	}
	if err != nil {
		return nil, fmt.Errorf("read task %s: %w", id, err)
	}
	return t, nil
}

// ErrMoved: the task is not in the state and attempt that the verdict was
// given for, so nothing was written.
var ErrMoved = errors.New("the task moved on meanwhile")

// Move says what a verdict changes besides the state.
type Move struct {
	Event  task.Event
	To     protocol.State
	Code   string
	Reason string
	// Due is how long a requeued task waits from now.
	Due time.Duration
	// Lease of DISPATCHED and RUNNING from now.
	Lease time.Duration
	// Slot is taken where the task holds none.
	Slot *int
	// WaitingCode is what a dispatched task says it waits for.
	WaitingCode string
	// Progress is the payload of a progress report; nil keeps the last one.
	Progress []byte
	// Actor of the audit row that the end of a task leaves.
	Actor string
}

// moveSet is everything a move writes besides the claim and the lease. Its
// nine parameters start at n.
func moveSet(n int) string {
	return fmt.Sprintf(`state = $%[1]d::text, code = $%[2]d::text, reason = $%[3]d::text, updated_at = now(),
		ended_at = CASE WHEN $%[8]d::boolean THEN now() END,
		slot = CASE WHEN $%[1]d::text IN ('DISPATCHED', 'RUNNING') THEN coalesce(slot, $%[5]d::integer) END,
		due_at = CASE WHEN $%[1]d::text = 'QUEUED' THEN now() + $%[4]d::interval ELSE due_at END,
		dispatched_at = CASE WHEN $%[1]d::text = 'DISPATCHED' AND state = 'QUEUED' THEN now() ELSE dispatched_at END,
		waiting_since = CASE $%[1]d::text WHEN 'DISPATCHED' THEN coalesce(waiting_since, now()) WHEN 'QUEUED' THEN waiting_since END,
		waiting_code = $%[6]d::text,
		progress = coalesce($%[7]d::bytea, progress),
		progress_at = CASE WHEN $%[7]d::bytea IS NULL THEN progress_at ELSE now() END,
		manifest_state = CASE WHEN $%[1]d::text = 'FAILED' AND manifest_state = 'PENDING' THEN 'FAILED' ELSE manifest_state END,
		materialise_tries = materialise_tries + $%[9]d::integer`,
		n, n+1, n+2, n+3, n+4, n+5, n+6, n+7, n+8)
}

func (m Move) args() []any {
	tries := 0
	if m.Event == task.MaterialiseTrouble {
		tries = 1
	}
	return []any{m.To, m.Code, m.Reason, m.Due, m.Slot, m.WaitingCode, m.Progress, m.To.Terminal(), tries}
}

// Move carries out a verdict on a locked task that no worker of the center
// needs to hold. Whatever claim there was ends with it.
func (t *Tx) Move(ctx context.Context, tk *task.Task, m Move) error {
	tag, err := t.tx.Exec(ctx, `UPDATE lockstep.task SET `+moveSet(5)+`,
		claim_token = NULL, claimed_by = NULL, claimed_at = NULL,
		lease_until = CASE WHEN $5::text IN ('DISPATCHED', 'RUNNING') THEN now() + $4::interval END
		WHERE task_id = $1 AND state = $2 AND attempt = $3`,
		append([]any{tk.ID, tk.State, tk.Attempt, m.Lease}, m.args()...)...)
	if err != nil {
		return fmt.Errorf("move task %s to %s: %w", tk.ID, m.To, err)
	}
	if tag.RowsAffected() != 1 {
		return ErrMoved
	}
	return t.trace(ctx, tk, m)
}

// MoveHeld carries out a verdict under a claim; claim.ErrFenced where somebody
// else owns the task now.
func (t *Tx) MoveHeld(ctx context.Context, site claim.Site, c claim.Claim, tk *task.Task, m Move) error {
	var err error
	if m.To == protocol.Dispatched || m.To == protocol.Running {
		err = site.Become(ctx, t.tx, c, moveSet(4), m.Lease, m.args()...)
	} else {
		err = site.Leave(ctx, t.tx, c, moveSet(3), m.args()...)
	}
	if err != nil {
		return err
	}
	return t.trace(ctx, tk, m)
}

// trace leaves the event, and the audit row of an end. A report that changes
// nothing but the lease leaves none: there may be thousands of them.
func (t *Tx) trace(ctx context.Context, tk *task.Task, m Move) error {
	if m.To != tk.State || m.To == protocol.Queued {
		if err := t.Event(ctx, tk.ID, tk.Attempt, m.Event, m.To, m.Code); err != nil {
			return err
		}
	}
	if !m.To.Terminal() {
		return nil
	}
	reason := m.Code
	if m.Reason != "" {
		reason += ": " + m.Reason
	}
	return t.Audit(ctx, Audit{Actor: m.Actor, Action: "task.end", Object: "task/" + protocol.FormatID(tk.ID), Decision: string(m.To), Reason: reason})
}

// Event notes what happened to a task.
func (t *Tx) Event(ctx context.Context, id uuid.UUID, attempt int, event task.Event, state protocol.State, code string) error {
	_, err := t.tx.Exec(ctx, `INSERT INTO lockstep.task_event (task_id, attempt, event, state, code) VALUES ($1, $2, $3, $4, $5)`,
		id, attempt, event, state, code)
	if err != nil {
		return fmt.Errorf("note %s of task %s: %w", event, id, err)
	}
	return nil
}

// Audit is one row of the audit log: who did what to which object, how it was
// decided and why.
type Audit struct {
	Actor, Action, Object, Decision, Reason string
}

// Audit writes the row in the effect's own transaction.
func (t *Tx) Audit(ctx context.Context, a Audit) error {
	_, err := t.tx.Exec(ctx, `INSERT INTO lockstep.audit (actor, action, object, decision, reason) VALUES ($1, $2, $3, $4, $5)`,
		a.Actor, a.Action, a.Object, a.Decision, a.Reason)
	if err != nil {
		return fmt.Errorf("audit %s of %s: %w", a.Action, a.Object, err)
	}
	return nil
}
