package refresh

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
)

// maxSelected bounds one selection.
const maxSelected = 500

// Selector names tasks by their codes or their business keys: a task that
// matches either is selected.
type Selector struct {
	Codes []string `json:"codes"`
	Keys  []string `json:"keys"`
}

// ParseSelector reads a selector strictly: text that does not parse is an error,
// never everything.
func ParseSelector(raw []byte) (Selector, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	var s Selector
	if err := decoder.Decode(&s); err != nil {
		member, says := Unread(err)
		return Selector{}, fault.Wrap(err, fault.InvalidArgument, "the selector is no JSON object of codes and keys").WithField(cmp.Or(member, "selector"), "%s", says)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Selector{}, fault.New(fault.InvalidArgument, "something follows the selector")
	}
	return s, s.check()
}

var codeShape = regexp.MustCompile(`^[0-9a-f]{64}$`)

// check drops blanks; what is left must name something that could exist.
func (s *Selector) check() error {
	s.Codes, s.Keys = named(s.Codes), named(s.Keys)
	wrong := fault.New(fault.InvalidArgument, "the selector names no task")
	for _, code := range s.Codes {
		if !codeShape.MatchString(code) {
			wrong.WithField("codes", "%.80q is no task code", code)
		}
	}
	for _, key := range s.Keys {
		if strings.ContainsRune(key, 0) || len(key) > maxBusinessKey {
			wrong.WithField("keys", "%.80q is no business key", key)
		}
	}
	count := len(s.Codes) + len(s.Keys)
	if count == 0 {
		wrong.WithField("codes", "codes or keys must name a task")
	}
	if count > maxSelected {
		wrong.WithField("codes", "at most %d codes and keys", maxSelected)
	}
	if len(wrong.Fields) > 0 {
		return wrong
	}
	return nil
}

func named(words []string) []string {
	var out []string
	for _, w := range words {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

// Retry wakes the selected PENDING and FAILED tasks. It changes nothing: the
// claim still asks for due time and budget.
func (e *Engine) Retry(ctx context.Context, actor string, s Selector) ([]uuid.UUID, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	var ids []uuid.UUID
	err := pg.InTx(ctx, e.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT task_id FROM lockstep.refresh_task WHERE state IN ('PENDING', 'FAILED')
			AND (task_code = ANY($1) OR business_key = ANY($2)) ORDER BY due_at, task_id LIMIT $3`, s.Codes, s.Keys, maxSelected)
		if err != nil {
			return fmt.Errorf("select tasks: %w", err)
		}
		if ids, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
			return fmt.Errorf("select tasks: %w", err)
		}
		for _, id := range ids {
			if err := audit(ctx, tx, actor, "refresh.retry", id, ""); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, fault.New(fault.TaskNotFound, "no pending or failed task has one of these codes or keys")
	}
	for _, id := range ids {
		e.tell(id)
	}
	e.wakeScan()
	return ids, nil
}

// Force makes a task due now with its whole budget.
func (e *Engine) Force(ctx context.Context, actor string, id uuid.UUID, reason string) error {
	return e.operate(ctx, id, operation{event: Forced, actor: actor, action: "refresh.force", reason: reason, set: "due_at = now(), retry_count = 0"})
}

// Cancel ends a task; of a running one it takes the claim away, so that nothing
// more of it is written.
func (e *Engine) Cancel(ctx context.Context, actor string, id uuid.UUID, reason string) error {
	return e.operate(ctx, id, operation{
		event: Stopped, actor: actor, action: "refresh.cancel", reason: reason, set: "code = $3, error = $4",
		args: []any{fault.CancelledByOperator, "an operator cancelled the task; what is asked of it is refused until it is reopened"},
	})
}

// Reopen lets a cancelled task rise again, as a new generation: what was asked
// while it was cancelled was refused, so everything of it is looked at again.
func (e *Engine) Reopen(ctx context.Context, actor string, id uuid.UUID, reason string) error {
	return e.operate(ctx, id, operation{
		event: Reopened, actor: actor, action: "refresh.reopen", reason: reason,
		set: "request_generation = request_generation + 1, retry_count = 0, due_at = now(), code = '', error = ''",
	})
}

// operation is what an operator does to one task. Args of set start at $3.
type operation struct {
	event                 Event
	actor, action, reason string
	set                   string
	args                  []any
}

// operate locks task, then progress, like a claim; it never waits for a scope.
func (e *Engine) operate(ctx context.Context, id uuid.UUID, o operation) error {
	var projection string
	err := pg.InTx(ctx, e.pool, func(tx pgx.Tx) error {
		var state State
		err := tx.QueryRow(ctx, `SELECT state, projection FROM lockstep.refresh_task WHERE task_id = $1 FOR UPDATE`, id).Scan(&state, &projection)
		if errors.Is(err, pgx.ErrNoRows) {
			return notFound(id)
		}
		if err != nil {
			return fmt.Errorf("lock task: %w", err)
		}
		to, err := state.On(o.event)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE lockstep.refresh_task SET state = $2, updated_at = now(), `+o.set+` WHERE task_id = $1`,
			append([]any{id, to}, o.args...)...); err != nil {
			return fmt.Errorf("write task: %w", err)
		}
		if state == Running && to != Running {
			_, err := tx.Exec(ctx, `UPDATE lockstep.refresh_progress SET claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL, lapses = 0
				WHERE task_id = $1`, id)
			if err != nil {
				return fmt.Errorf("take the claim away: %w", err)
			}
		}
		return audit(ctx, tx, o.actor, o.action, id, o.reason)
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.action, id, err)
	}
	if o.event != Stopped {
		e.kicker.Offer(projection, id)
		e.tell(id)
		e.wakeScan()
	}
	return nil
}

func notFound(id uuid.UUID) error { return fault.New(fault.TaskNotFound, "no refresh task %s", id) }

// audit notes what an operator did, in the same transaction.
func audit(ctx context.Context, tx pgx.Tx, actor, action string, id uuid.UUID, reason string) error {
	_, err := tx.Exec(ctx, `INSERT INTO lockstep.audit (actor, action, object, decision, reason) VALUES ($1, $2, $3, 'done', $4)`,
		actor, action, "refresh task "+id.String(), reason)
	if err != nil {
		return fmt.Errorf("audit %s: %w", action, err)
	}
	return nil
}
