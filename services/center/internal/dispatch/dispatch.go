// Package dispatch sends instructions to consumers.
//
// It promises that an instruction goes only to the address registered for the
// consumer in the configuration, signed by the center as itself, under a claim
// that spent an attempt; and that a report which overtakes the answer wins. It
// never says that anything was repaired: accepted means stored.
package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
	"lockstep.dev/services/internal/tracing"
)

// Dispatcher sends what is due.
type Dispatcher struct {
	Store   *store.Store
	Source  string // the center's own app key
	Signer  *evidence.Signer
	Targets *Targets
	Policy  task.Policy
	Timeout time.Duration // of one call, and of its conclusion
	Worker  string
	Tracer  tracing.Tracer
	Log     *zap.Logger
	Now     func() time.Time
}

// DispatchOnce sends one instruction; worked is false where none is due.
func (d *Dispatcher) DispatchOnce(ctx context.Context) (worked bool, err error) {
	c, tk, ok, err := d.Store.ClaimDispatch(ctx, d.Worker, d.Policy)
	if err != nil || !ok {
		return false, err
	}
	failpoint.Hit(failpoint.CenterClaimAfterCommit)
	// The attempt is spent, so a process that is to stop still sends and says how it ended.
	ctx = context.WithoutCancel(ctx)
	ctx, ended := d.Tracer.Continue(ctx, tk.TraceContext, "dispatch", tracing.Task(protocol.FormatID(tk.ID)), tracing.Attempt(tk.Attempt))
	sendErr := d.send(ctx, tk)
	ended(sendErr)
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	err = d.Store.ConcludeDispatch(ctx, c, d.conclusion(sendErr))
	if errors.Is(err, claim.ErrFenced) {
		d.Log.Info("fenced: the task moved on before the dispatch was concluded", zap.Stringer("task", tk.ID), zap.Int("attempt", tk.Attempt))
		return true, nil
	}
	if err != nil {
		return true, fmt.Errorf("conclude the dispatch of task %s: %w", tk.ID, err)
	}
	failpoint.Hit(failpoint.CenterDispatchAfterCommit)
	d.log(tk, sendErr)
	return true, nil
}

func (d *Dispatcher) log(tk *task.Task, sendErr error) {
	fields := []zap.Field{zap.Stringer("task", tk.ID), zap.String("consumer", tk.Consumer), zap.Int("attempt", tk.Attempt)}
	if sendErr == nil {
		d.Log.Info("dispatched", fields...)
		return
	}
	d.Log.Warn("not dispatched", append(fields, zap.Error(sendErr))...)
}

// send signs the instruction and has the consumer store it.
func (d *Dispatcher) send(ctx context.Context, tk *task.Task) error {
	conn, err := d.Targets.Conn(tk.Consumer)
	if err != nil {
		return err
	}
	env, err := document.SealInstruction(d.Signer, d.instruction(tk))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	failpoint.Hit(failpoint.CenterDispatchBeforeCall)
	answer, err := consumerv1.NewDispatchServiceClient(conn).Dispatch(ctx, &consumerv1.DispatchRequest{Instruction: document.EnvelopeToProto(env)})
	failpoint.Hit(failpoint.CenterDispatchAfterCall)
	switch {
	case err != nil:
		return fmt.Errorf("dispatch to %s: %w", tk.Consumer, err)
	case answer.GetTaskId() != protocol.FormatID(tk.ID), int(answer.GetWantedAttempt()) < tk.Attempt:
		return fault.New(fault.TaskMismatch, "%s answered about task %q, attempt %d", tk.Consumer, answer.GetTaskId(), answer.GetWantedAttempt())
	}
	return nil
}

func (d *Dispatcher) instruction(tk *task.Task) *protocol.Instruction {
	return &protocol.Instruction{
		At: tk.Coordinates(d.Source), Attempt: tk.Attempt, Scope: tk.Scope, Key: tk.Key, Mode: tk.Mode,
		WindowStart: tk.WindowStart, ManifestID: protocol.FormatID(tk.ManifestID), ManifestRoot: tk.ManifestRoot,
		RowCount: tk.RowCount, IssuedAt: d.Now(), BreakerOverride: tk.BreakerOverride,
	}
}

// conclusion turns what became of the call into the table's verdict.
func (d *Dispatcher) conclusion(sendErr error) func(*task.Task) (store.Move, bool) {
	return func(tk *task.Task) (store.Move, bool) {
		on := task.Accepted
		if sendErr != nil {
			on = task.NotAccepted
		}
		v, ok := task.Next(tk.State, on, tk.Facts(d.Policy, false))
		m := store.Move{Event: on, To: v.To, Code: v.Code, Lease: d.Policy.Lease, Actor: "center"}
		if sendErr != nil {
			m.Due = d.Policy.Backoff(tk.Attempt)
			m.Code = whyNot(sendErr, v)
		}
		return m, ok
	}
}

// whyNot is the code of a failed dispatch. While tries are left it says what
// went wrong; the end is DISPATCH_FAILED, but a missing target keeps its name.
func whyNot(sendErr error, v task.Verdict) string {
	reason := fault.ReasonOf(sendErr)
	switch {
	case reason == fault.TargetNotRegistered:
		return string(reason)
	case v.Code != "":
		return v.Code
	case reason == fault.None:
		return string(fault.DispatchFailed)
	}
	return string(reason)
}
