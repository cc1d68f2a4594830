package refresh

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
)

// Bounds of a request. The database has the same ones; a request that breaks
// them never reaches it.
const (
	maxBusinessKey = 1024
	maxComputedKey = 200 // stays readable in a list
	maxEventID     = 256
	maxTrigger     = 200
	maxPayload     = 4 << 20 // some 200 000 ids
)

// Outcome of a submission.
type Outcome string

// The outcomes.
const (
	Created   Outcome = "CREATED"   // a new task, generation 1
	Advanced  Outcome = "ADVANCED"  // one more generation of a known task
	Unchanged Outcome = "UNCHANGED" // the same source event again
	Refused   Outcome = "REFUSED"   // Code says why; nothing was written
)

// Submitted is what became of a request. A refusal is a result, not an error:
// the caller's transaction goes on.
type Submitted struct {
	TaskID      uuid.UUID
	TaskCode    string
	Projection  string
	BusinessKey string
	Generation  int64
	Outcome     Outcome
	Code        fault.Reason // of a refusal
	Message     string
}

// TaskCode is the stable name of a business key's task: SHA-256, hex.
func TaskCode(projection, businessKey string) string {
	sum := sha256.Sum256([]byte(projection + "\x00" + businessKey))
	return hex.EncodeToString(sum[:])
}

// storedKey is the computed business key as it is stored: a long one, such as
// that of many ids, by its hash.
func storedKey(computed string) string {
	if len(computed) <= maxComputedKey {
		return computed
	}
	sum := sha256.Sum256([]byte(computed))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Input is a request as it comes in.
type Input struct {
	Projection string
	Payload    []byte // JSON
	// BusinessKey of the caller's own, for ExistingOnly; empty for the computed one.
	BusinessKey   string
	SourceEventID string
	Trigger       string
	Replace       bool
}

// Parse checks a request and brings it into its normal form. It asks the
// database nothing.
func (e *Engine) Parse(in Input) (Request, error) {
	p, err := e.projection(in.Projection)
	if err != nil {
		return Request{}, err
	}
	if len(in.Payload) > maxPayload {
		return Request{}, fault.New(fault.InvalidArgument, "the payload is larger than %d bytes", maxPayload).WithField("payload", "is too large")
	}
	req, err := p.Parse(in.Payload)
	if err != nil {
		return Request{}, fmt.Errorf("parse request: %w", err)
	}
	req.Projection = in.Projection
	if !req.CustomKey {
		req.BusinessKey = storedKey(req.BusinessKey)
	}
	req.Replace = req.Replace || in.Replace
	if in.SourceEventID != "" {
		req.SourceEventID = in.SourceEventID
	}
	if in.Trigger != "" {
		req.Trigger = in.Trigger
	}
	if in.BusinessKey != "" && in.BusinessKey != req.BusinessKey {
		if req.Mode != ExistingOnly {
			return Request{}, fault.New(fault.InvalidArgument, "a review's business key is computed").
				WithField("business_key", "must be empty or the computed key")
		}
		req.BusinessKey, req.CustomKey = in.BusinessKey, true
	}
	return req, e.check(req)
}

// check holds a request to what the tables accept, before they see it.
func (e *Engine) check(req Request) error {
	wrong := fault.New(fault.InvalidArgument, "the request can't be stored")
	text := func(field, value string, most int) {
		if len(value) > most || !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
			wrong.WithField(field, "is at most %d bytes of text", most)
		}
	}
	text("business_key", req.BusinessKey, maxBusinessKey)
	text("source_event_id", req.SourceEventID, maxEventID)
	text("trigger", req.Trigger, maxTrigger)
	text("payload", string(req.Payload), maxPayload)
	if strings.TrimSpace(req.BusinessKey) == "" {
		wrong.WithField("business_key", "is empty")
	}
	if req.Mode != ReviewCreate && req.Mode != ExistingOnly {
		wrong.WithField("mode", "is unknown")
	}
	if req.CustomKey && req.Mode != ExistingOnly {
		wrong.WithField("business_key", "is computed for a review")
	}
	if _, ok := e.projections[req.Projection]; !ok {
		wrong.WithField("projection", "is one of %v", e.names)
	}
	if len(wrong.Fields) > 0 {
		return wrong
	}
	return nil
}

// Submit accepts a request inside the caller's transaction. It does so in a
// savepoint: whatever goes wrong, the caller's transaction can go on. Its
// worker is woken when the caller's transaction has committed, if the caller
// began it with Wrap or calls Committed; otherwise the scan finds the task.
//
// Submitting locks the task's row until the caller commits, so several keys of
// one transaction are best submitted in one order everywhere.
func (e *Engine) Submit(ctx context.Context, tx pgx.Tx, req Request) (Submitted, error) {
	if err := e.check(req); err != nil {
		return Submitted{}, err
	}
	save, err := tx.Begin(ctx)
	if err != nil {
		return Submitted{}, fmt.Errorf("submit %s: %w", req.Projection, err)
	}
	out, err := e.accept(ctx, save, req)
	if err == nil {
		err = save.Commit(ctx)
	}
	if err != nil {
		undo, cancel := detached(ctx)
		defer cancel()
		_ = save.Rollback(undo) // the connection is gone if this fails, and the transaction with it
		return Submitted{}, fmt.Errorf("submit %s: %w", req.Projection, err)
	}
	if wrapped, ok := tx.(*Tx); ok && out.wakes() {
		wrapped.committed = append(wrapped.committed, out)
	}
	return out, nil
}

// SubmitNow accepts a request in a transaction of its own and wakes its worker.
func (e *Engine) SubmitNow(ctx context.Context, req Request) (Submitted, error) {
	out, err := e.submitQuietly(ctx, req)
	if err == nil {
		e.Committed(out)
	}
	return out, err
}

// submitQuietly wakes nobody.
func (e *Engine) submitQuietly(ctx context.Context, req Request) (out Submitted, err error) {
	err = pg.InTx(ctx, e.pool, func(tx pgx.Tx) error {
		out, err = e.Submit(ctx, tx, req)
		return err
	})
	return out, err
}

func (s Submitted) wakes() bool { return s.Outcome == Created || s.Outcome == Advanced }

// accept makes the task or advances its generation.
func (e *Engine) accept(ctx context.Context, tx pgx.Tx, req Request) (Submitted, error) {
	out := Submitted{
		TaskID: e.newID(), TaskCode: TaskCode(req.Projection, req.BusinessKey), Projection: req.Projection,
		BusinessKey: req.BusinessKey, Generation: 1, Outcome: Created,
	}
	rangeHash := sha256.Sum256(req.Range)
	tag, err := tx.Exec(ctx, `INSERT INTO lockstep.refresh_task
		(task_id, projection, task_code, business_key, custom_key, mode, payload, range_hash, requested_by, max_retry)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (task_code) DO NOTHING`,
		out.TaskID, req.Projection, out.TaskCode, req.BusinessKey, req.CustomKey, req.Mode, req.Payload, rangeHash[:], req.Trigger, e.set.Retries)
	if err != nil {
		return Submitted{}, fmt.Errorf("make the task: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return e.advance(ctx, tx, req, rangeHash, out)
	}
	return out, noteEvent(ctx, tx, req, out)
}

// advance is a further request under a known key.
func (e *Engine) advance(ctx context.Context, tx pgx.Tx, req Request, rangeHash [sha256.Size]byte, out Submitted) (Submitted, error) {
	var state State
	var mode Mode
	var known []byte
	var seen bool
	err := tx.QueryRow(ctx, `SELECT task_id, state, mode, request_generation, range_hash,
		EXISTS (SELECT FROM lockstep.refresh_event v WHERE v.task_id = t.task_id AND v.source_event_id = $2)
		FROM lockstep.refresh_task t WHERE task_code = $1 FOR NO KEY UPDATE OF t`, out.TaskCode, req.SourceEventID).
		Scan(&out.TaskID, &state, &mode, &out.Generation, &known, &seen)
	if err != nil {
		return Submitted{}, fmt.Errorf("lock the task: %w", err)
	}
	if req.SourceEventID != "" && !seen {
		// The row lock may have been waited for: look again with newer eyes.
		err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM lockstep.refresh_event WHERE task_id = $1 AND source_event_id = $2)`,
			out.TaskID, req.SourceEventID).Scan(&seen)
		if err != nil {
			return Submitted{}, fmt.Errorf("look for the source event: %w", err)
		}
	}
	switch {
	case seen:
		out.Outcome = Unchanged
		return out, nil
	case state == Cancelled:
		return out.refused(fault.CancelledByOperator, "the task was cancelled; an operator can reopen it"), nil
	case mode != req.Mode, string(known) != string(rangeHash[:]) && (req.Mode == ReviewCreate || !req.Replace):
		return out.refused(fault.KeyRangeMismatch, "the business key stands for another range"), nil
	}
	out.Outcome = Advanced
	err = tx.QueryRow(ctx, `UPDATE lockstep.refresh_task SET payload = $2, range_hash = $3, requested_by = $4, max_retry = $5, state = $6,
		request_generation = request_generation + 1, updated_at = now(),
		retry_count = CASE state WHEN 'RUNNING' THEN retry_count ELSE 0 END, due_at = CASE state WHEN 'RUNNING' THEN due_at ELSE now() END,
		code = CASE state WHEN 'RUNNING' THEN code ELSE '' END, error = CASE state WHEN 'RUNNING' THEN error ELSE '' END
		WHERE task_id = $1 RETURNING request_generation`,
		out.TaskID, req.Payload, rangeHash[:], req.Trigger, e.set.Retries, must(state, Requested)).Scan(&out.Generation)
	if err != nil {
		return Submitted{}, fmt.Errorf("advance the task: %w", err)
	}
	return out, noteEvent(ctx, tx, req, out)
}

func (s Submitted) refused(code fault.Reason, message string) Submitted {
	s.Outcome, s.Code, s.Message = Refused, code, message
	return s
}

func noteEvent(ctx context.Context, tx pgx.Tx, req Request, out Submitted) error {
	if req.SourceEventID == "" {
		return nil
	}
	_, err := tx.Exec(ctx, `INSERT INTO lockstep.refresh_event (task_id, source_event_id, generation) VALUES ($1, $2, $3)`,
		out.TaskID, req.SourceEventID, out.Generation)
	if err != nil {
		return fmt.Errorf("note the source event: %w", err)
	}
	return nil
}

// Tx is a caller's transaction that wakes the workers of what was submitted in
// it once it has committed. A rollback wakes nobody.
type Tx struct {
	pgx.Tx

	engine    *Engine
	committed []Submitted
}

// Wrap makes a transaction wake workers after its commit. Submit must be given
// the wrapped one, and Commit called on it.
func (e *Engine) Wrap(tx pgx.Tx) *Tx { return &Tx{Tx: tx, engine: e} }

// Commit commits, then wakes.
func (t *Tx) Commit(ctx context.Context) error {
	if err := t.Tx.Commit(ctx); err != nil {
		return err
	}
	t.engine.Committed(t.committed...)
	t.committed = nil
	return nil
}

// Committed wakes the workers of submissions whose transaction has committed,
// here and in the other replicas. It never waits and never works itself.
func (e *Engine) Committed(submissions ...Submitted) {
	for _, s := range submissions {
		if s.wakes() {
			e.kicker.Offer(s.Projection, s.TaskID)
			e.tell(s.TaskID)
		}
	}
}
