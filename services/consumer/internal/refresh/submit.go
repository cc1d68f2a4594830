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
	req, err := p.Parse(in.Payload, in.Trigger)
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
// one transaction are best submitted together, by SubmitAll.
func (e *Engine) Submit(ctx context.Context, tx pgx.Tx, req Request) (Submitted, error) {
	out, err := e.SubmitAll(ctx, tx, []Request{req})
	if err != nil {
		return Submitted{}, err
	}
	return out[0], nil
}

// SubmitAll accepts requests with different keys as Submit does: all of them, or
// none. It takes the same few statements however many they are, and locks their
// tasks in one order. The answers are in the order of the requests.
func (e *Engine) SubmitAll(ctx context.Context, tx pgx.Tx, requests []Request) ([]Submitted, error) {
	if len(requests) == 0 {
		return nil, nil
	}
	b, err := e.newBatch(requests)
	if err != nil {
		return nil, err
	}
	save, err := tx.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("submit %s: %w", requests[0].Projection, err)
	}
	if err = b.accept(ctx, save); err == nil {
		err = save.Commit(ctx)
	}
	if err != nil {
		undo, cancel := detached(ctx)
		defer cancel()
		_ = save.Rollback(undo) // the connection is gone if this fails, and the transaction with it
		return nil, fmt.Errorf("submit %s: %w", requests[0].Projection, err)
	}
	if wrapped, ok := tx.(*Tx); ok {
		wrapped.committed = append(wrapped.committed, b.out...)
	}
	return b.out, nil
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

func (s Submitted) refused(code fault.Reason, message string) Submitted {
	s.Outcome, s.Code, s.Message = Refused, code, message
	return s
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
