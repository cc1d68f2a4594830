// Package report takes the consumers' signed reports and decides what they
// move.
//
// It promises that a result is stored in the transaction that moves the task's
// state, once for an attempt, and that the first matching row of the matrix,
// task.Rule, is the answer. A call of the task's own consumer gets an
// acknowledgement; only a malformed report and an unknown attempt are errors.
package report

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// Ack is the answer to a report.
type Ack struct {
	TaskID        string
	Decision      protocol.Decision
	ReportAttempt int // echoed
	Attempt       int // the center's
	TaskState     protocol.State
	ResultState   protocol.State // adopted now or first stored; "" for none
	Stale         bool
	Code          string // why the task ended, where it did
}

// Handler answers reports.
type Handler struct {
	Store  *store.Store
	Source string // the center's own app key
	// Keys are those an app key's statements verify under now.
	Keys   func(appKey string) []evidence.Key
	Policy task.Policy
	Limits Limits
	// Wake is called after a commit that freed a slot.
	Wake func()
}

// Report verifies a consumer's report and carries out its decision. consumer
// is the verified identity of the caller.
func (h *Handler) Report(ctx context.Context, consumer string, env evidence.Envelope) (*Ack, error) {
	r, err := h.open(consumer, env)
	if err != nil {
		return nil, err
	}
	id, err := protocol.ParseID(r.At.TaskID)
	if err != nil {
		return nil, fault.New(fault.InvalidArgument, "the report names no task").WithField("report.at.task_id", "%s", err)
	}
	var a attempt
	err = h.Store.InTx(ctx, func(tx *store.Tx) error {
		a = attempt{h: h, tx: tx, r: r, env: env}
		if err := a.decide(ctx, consumer, id); err != nil {
			return err
		}
		failpoint.Hit(failpoint.CenterReportBeforeCommit)
		return nil
	})
	if err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.CenterReportAfterCommit)
	if a.ended {
		h.Wake()
	}
	return &a.ack, nil
}

// open verifies the report under the caller's own keys, so that the signer is
// the caller, and compares the identities that it states.
func (h *Handler) open(consumer string, env evidence.Envelope) (*protocol.Report, error) {
	r, err := document.OpenReport(env, h.Keys(consumer))
	switch {
	case errors.Is(err, evidence.ErrDocumentType):
		return nil, fault.Wrap(err, fault.DocumentType, "this is no report")
	case errors.Is(err, evidence.ErrSignature):
		return nil, fault.Wrap(err, fault.SignatureInvalid, "the report is not signed by a key of the caller's that is valid now")
	case errors.Is(err, document.ErrUnknownField):
		return nil, fault.Wrap(err, fault.DocumentUnknownField, "the report has fields this version does not know")
	case err != nil:
		return nil, fault.Wrap(err, fault.InvalidArgument, "the report can't be read").WithField("report", "%s", err)
	case r.At.Consumer != consumer:
		return nil, fault.New(fault.IdentityMismatch, "the report states another consumer than its caller")
	case r.At.Source != h.Source:
		return nil, fault.New(fault.AudienceMismatch, "the report is for another center")
	}
	return r, h.Limits.check(r)
}

// attempt is one report on its way through the matrix.
type attempt struct {
	h     *Handler
	tx    *store.Tx
	r     *protocol.Report
	env   evidence.Envelope
	tk    *task.Task
	ack   Ack
	ended bool
}

// decide reads what the report's standing asks for, and carries out the ruling.
func (a *attempt) decide(ctx context.Context, consumer string, id uuid.UUID) error {
	var err error
	if a.tk, err = a.tx.LockTask(ctx, id); err != nil {
		return err
	}
	if a.tk.Consumer != consumer {
		return fault.New(fault.TaskNotFound, "there is no task %s", a.r.At.TaskID)
	}
	at := a.tk.Coordinates(a.h.Source)
	switch code := document.Mismatch(a.r.At, at); {
	case code != "":
		return fault.New(fault.Reason(code), "the report's coordinates are not the task's")
	case a.r.At.CenterEpoch != at.CenterEpoch: // a task keeps the one it was made under
		return fault.New(fault.GrantEpochMismatch, "the report's center epoch is not the task's")
	}
	switch standing := task.Stand(a.tk.State, a.tk.Attempt, a.r.Attempt); standing {
	case task.OfEnded:
		return a.answerEnded(ctx)
	case task.OfUnknown:
		return fault.New(fault.AttemptUnknown, "attempt %d was never dispatched; the newest is %d", a.r.Attempt, a.tk.Attempt)
	case task.OfOlder:
		return a.answer(a.rule(standing, task.Said{}, task.Facts{}).Decision, a.tk.State, "")
	case task.OfCurrent:
	}
	lost, err := a.tx.CancelIfLost(ctx, a.tk)
	switch {
	case err != nil:
		return err
	case lost != fault.None:
		r := a.rule(task.OfCurrent, task.Said{Lost: true}, task.Facts{})
		a.ended = true
		return a.answer(r.Decision, r.To, string(lost))
	case a.r.State == protocol.Running:
		return a.progress(ctx)
	default:
		return a.conclude(ctx)
	}
}

func (a *attempt) rule(s task.Standing, said task.Said, f task.Facts) task.Ruling {
	return task.Rule(s, a.tk.State, said, f)
}

func (a *attempt) answer(d protocol.Decision, now protocol.State, code string) error {
	a.ack = Ack{
		TaskID: a.r.At.TaskID, Decision: d, ReportAttempt: a.r.Attempt, Attempt: a.tk.Attempt, TaskState: now, Code: code,
	}
	return nil
}

// answerEnded: an attempt's own result stays the first one, whatever a repeat says.
func (a *attempt) answerEnded(ctx context.Context) error {
	first, own, err := a.tx.Result(ctx, a.tk.ID, a.r.Attempt)
	if err != nil {
		return err
	}
	err = a.answer(a.rule(task.OfEnded, task.Said{Own: own}, task.Facts{}).Decision, a.tk.State, a.tk.Code)
	a.ack.ResultState, a.ack.Stale = first, !own
	return err
}

// progress renews the lease. A task that was queued again meanwhile needs its
// slot back; without one the consumer waits for the next instruction.
func (a *attempt) progress(ctx context.Context) error {
	if err := a.sameManifest(); err != nil {
		return err
	}
	on := task.Progressed
	if a.r.Phase == protocol.Waiting {
		on = task.Waits
	}
	facts, slot, err := a.facts(ctx)
	if err != nil {
		return err
	}
	r := a.rule(task.OfCurrent, task.Said{Event: on}, facts)
	if r.Event == "" {
		return a.answer(r.Decision, a.tk.State, "")
	}
	m := store.Move{
		Event: on, To: r.To, Code: r.Code, Lease: a.h.Policy.Lease, Slot: slot,
		Progress: a.env.Payload, Actor: "center",
	}
	if a.r.Phase == protocol.Waiting {
		m.WaitingCode = waitingCode(a.r)
	}
	if err := a.tx.Move(ctx, a.tk, m); err != nil {
		return err
	}
	a.ended = r.To.Terminal() // it has waited too long
	err = a.answer(r.Decision, r.To, r.Code)
	if !a.ended {
		a.ack.ResultState = r.To
	}
	return err
}

func waitingCode(r *protocol.Report) string {
	if r.Code == "" {
		return string(protocol.Waiting)
	}
	return r.Code
}

func (a *attempt) facts(ctx context.Context) (f task.Facts, slot *int, err error) {
	if a.tk.Slot == nil {
		if slot, err = a.tx.FreeSlot(ctx, a.tk, a.h.Policy); err != nil {
			return f, nil, err
		}
	}
	f = a.tk.Facts(a.h.Policy, slot != nil)
	f.TooOld, err = a.tx.Waited(ctx, a.tk.WaitingSince, a.h.Policy.GiveUp)
	return f, slot, err
}

// results maps the terminal states that a report may state to their events.
var results = map[protocol.State]task.Event{
	protocol.Completed: task.ReportsDone,
	protocol.Partial:   task.ReportsPartial,
	protocol.Failed:    task.ReportsFailed,
	protocol.Cancelled: task.ReportsCancel,
}

// conclude stores the result and moves the state with it.
func (a *attempt) conclude(ctx context.Context) error {
	if err := a.sameManifest(); err != nil {
		return err
	}
	contradicted := consistent(a.r)
	r := a.rule(task.OfCurrent, task.Said{Event: results[a.r.State], Whole: contradicted == nil}, a.tk.Facts(a.h.Policy, false))
	switch {
	case contradicted != nil && r.Refusal != "":
		return contradicted
	case r.Refusal != "":
		return fault.New(fault.Reason(r.Refusal), "the center's manifest is not complete")
	}
	stored, err := document.MarshalEnvelope(a.env)
	if err != nil {
		return fmt.Errorf("store a report: %w", err)
	}
	if err := a.tx.InsertResult(ctx, a.tk.ID, store.Result{Attempt: a.r.Attempt, State: r.To, Code: a.r.Code, Report: stored}); err != nil {
		return err
	}
	err = a.tx.Move(ctx, a.tk, store.Move{
		Event: r.Event, To: r.To, Code: a.r.Code, Progress: a.env.Payload, Actor: "consumer/" + a.tk.Consumer,
	})
	if err != nil {
		return err
	}
	a.ended = true
	err = a.answer(r.Decision, r.To, a.r.Code)
	a.ack.ResultState = r.To
	return err
}

func (a *attempt) sameManifest() error {
	if a.r.ManifestID != protocol.FormatID(a.tk.ManifestID) || a.r.ManifestRoot != a.tk.ManifestRoot {
		return fault.New(fault.ManifestMismatch, "the report is about another manifest than the task's")
	}
	return nil
}
