package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/center"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/report"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/internal/tracing"
)

// maxSends bounds how often one claim signs a report anew for a newer attempt.
const maxSends = 4

// job is one claimed row being worked.
type job struct {
	*Worker

	// ctx ends when the claim is lost, or a while after the process was told to
	// stop; stopping ends at once then, and is looked at between units.
	ctx      context.Context
	stopping context.Context
	cancel   context.CancelFunc
	keeper   *claim.Keeper
	meter    *center.Meter

	claim claim.Claim
	row   *store.Work
	// saved is the stored checkpoint; what a round adds is only there once it is stored.
	saved   store.Progress
	task    *repair.Task
	metered int64 // bytes of meter that saved holds
	fetched int64 // records of task that saved holds
	told    time.Time
	waits   fault.Reason // told with it
	rounds  int          // since the center was told
	// rehashed rows: their contents were hashed as the table lies, and again in the scan.
	rehashed atomic.Int64
}

func newJob(w *Worker, ctx context.Context, c claim.Claim, row *store.Work) *job {
	j := &job{
		Worker: w, stopping: ctx, claim: c, row: row, saved: row.Progress(), meter: &center.Meter{},
		task: &repair.Task{Claim: c, Work: row},
	}
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	release := context.AfterFunc(ctx, func() {
		grace := time.NewTimer(stopGrace)
		defer grace.Stop()
		select {
		case <-grace.C:
			cancel()
		case <-hard.Done():
		}
	})
	j.cancel = func() {
		release()
		cancel()
	}
	j.ctx, j.keeper = claim.Keep(center.Metered(hard, j.meter), w.Set.Lease, w.Set.StallLimit, func(ctx context.Context) error {
		return w.Store.Renew(ctx, c)
	})
	j.task.Alive = j.keeper.Tick
	j.task.Between = func() error { return j.tellIfDue(protocol.Retiring) }
	return j
}

func (j *job) stop() {
	j.keeper.Stop()
	j.cancel()
}

// endedError: the center told what becomes of the row.
type endedError struct {
	event work.Event
	code  string
}

func (e *endedError) Error() string { return string(e.event) }

// hopelessError: trying again can't help; the run ends FAILED with the code.
type hopelessError struct {
	code fault.Reason
	err  error
}

func (e *hopelessError) Error() string { return "hopeless: " + string(e.code) + ": " + e.err.Error() }
func (e *hopelessError) Unwrap() error { return e.err }

// errStopping: the process stops, or an operator paused the row; it is given
// back with its checkpoint.
var errStopping = errors.New("stopping")

// errBusy: the host's database has enough to do; the row is given back with its
// checkpoint until the load guard lets it be claimed again.
var errBusy = errors.New("the load guard holds it back")

// work brings the row as far as it goes and writes what became of it.
func (j *job) work() error {
	if j.row.State == work.Reporting {
		if j.row.Tries > j.Set.MaxTries {
			return j.step(work.RetriesSpent, string(fault.LeaseExpired))
		}
		return j.send()
	}
	if j.row.Tries > j.Set.MaxTries {
		// It killed one worker after the other.
		return j.finish(report.Ending{State: protocol.Failed, Code: string(fault.LeaseExpired)})
	}
	return j.conclude(j.reconcile())
}

// conclude turns the end of a run into the row's next state.
func (j *job) conclude(err error) error {
	if err == nil {
		return j.finish(report.Ending{})
	}
	if errors.Is(err, claim.ErrFenced) || errors.Is(context.Cause(j.ctx), claim.ErrFenced) {
		return claim.ErrFenced
	}
	if errors.Is(err, errLeft) {
		return nil
	}
	if end, ok := errors.AsType[*endedError](err); ok {
		return j.step(end.event, end.code)
	}
	if gone, ok := errors.AsType[*repair.DeferredError](err); ok {
		j.saved.DeferredCode = string(gone.Code)
		return j.finish(report.Ending{})
	}
	if hopeless, ok := errors.AsType[*hopelessError](err); ok {
		j.Log.Warn("the run can't succeed", zap.String("task", j.row.ID()), zap.Error(err))
		return j.finish(report.Ending{State: protocol.Failed, Code: string(hopeless.code)})
	}
	if j.stopping.Err() != nil || errors.Is(err, errStopping) {
		return j.step(work.GivenBack, "")
	}
	if errors.Is(context.Cause(j.ctx), claim.ErrLeaseLost) {
		// It stood still. Given back for nothing it would do so again, for ever.
		return j.roundFailed(fault.LeaseExpired, err)
	}
	if errors.Is(err, errBusy) {
		return j.step(work.GivenBack, string(fault.LoadGuard))
	}
	if refused, ok := errors.AsType[*repair.RefusedError](err); ok {
		// A lying answer is no fact about the task: another one may tell the truth.
		return j.roundFailed(refused.Code, err)
	}
	switch code := codeOf(err); code {
	case fault.TaskTerminal:
		// Whatever it ended as is learnt from the answer to the report.
		return j.finish(report.Ending{State: protocol.Cancelled, Code: string(code)})
	case fault.GrantRevoked, fault.EpochMoved:
		j.saved.DeferredCode = string(code)
		return j.finish(report.Ending{})
	case fault.TaskNotFound, fault.AttemptUnknown:
		return j.step(work.Unknown, string(code))
	case fault.RateLimited:
		// The center has enough to do; nothing is wrong with the row.
		return j.step(work.GivenBack, string(code))
	case fault.OrderViolation, fault.ManifestIncomplete, fault.PageNotProven:
		return j.finish(report.Ending{State: protocol.Failed, Code: string(code)})
	default:
		return j.roundFailed(code, err)
	}
}

func (j *job) roundFailed(code fault.Reason, err error) error {
	j.Log.Warn("a round failed", zap.String("task", j.row.ID()), zap.String("code", string(code)), zap.Error(err))
	return j.step(work.RoundFailed, string(code))
}

// codeOf is the stable code of what failed a round.
func codeOf(err error) fault.Reason {
	if code := fault.ReasonOf(err); code != fault.None {
		return code
	}
	return fault.Unavailable
}

// after gives a context for the last write of a run, which has to be tried even
// where the run's own context has ended.
func (j *job) after() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(j.ctx), 2*time.Second)
}

// step writes an event that ends the claim or keeps it, with the checkpoint.
func (j *job) step(e work.Event, code string) error {
	ctx := j.ctx
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = j.after()
		defer cancel()
	}
	j.count()
	after, err := j.Store.Step(ctx, j.claim, e, j.saved, code)
	if err != nil {
		return err
	}
	j.row.State, j.row.Attempt, j.row.WantedAttempt, j.row.Paused = after.State, after.Attempt, after.Wanted, after.Paused
	return nil
}

// count adds what was moved and fetched since to the figures to be stored.
func (j *job) count() {
	bytes, fetched := j.meter.Bytes(), j.task.Fetched.Load()
	j.saved.WireBytes += bytes - j.metered
	j.saved.Fetched += fetched - j.fetched
	j.metered, j.fetched = bytes, fetched
	j.row.Advance(j.saved)
}

// finish freezes the report and sends it.
func (j *job) finish(ended report.Ending) error {
	if err := j.freeze(func(w *store.Work, counts []protocol.ClassCount, open []store.Entry) (store.Final, error) {
		return j.Reporter.Final(w, counts, open, ended)
	}); err != nil {
		return err
	}
	return j.send()
}

func (j *job) freeze(build func(*store.Work, []protocol.ClassCount, []store.Entry) (store.Final, error)) error {
	j.count()
	frozen, err := j.Store.Freeze(j.ctx, j.claim, j.saved, j.Set.MaxItems, build)
	if err != nil {
		return err
	}
	*j.row = *frozen
	return nil
}

// send sends the frozen report until it is acknowledged, signed anew where the
// row has adopted a newer attempt. Nothing is scanned again.
func (j *job) send() error {
	for range maxSends {
		if j.row.ReportAttempt == nil || *j.row.ReportAttempt != j.row.Attempt {
			if err := j.freeze(func(w *store.Work, _ []protocol.ClassCount, _ []store.Entry) (store.Final, error) {
				return j.Reporter.Again(w)
			}); err != nil {
				return err
			}
		}
		if j.stopping.Err() != nil {
			return j.step(work.GivenBack, "")
		}
		j.keeper.Tick()
		ctx, ended := j.Tracer.Start(j.ctx, "report", tracing.Attempt(j.row.Attempt))
		answer, err := j.Reporter.Send(ctx, j.row)
		ended(err)
		failpoint.Hit(failpoint.ConsumerReportAfterCall)
		if err != nil {
			j.Log.Warn("the report was not acknowledged", zap.String("task", j.row.ID()), zap.Error(err))
			if code := codeOf(err); code == fault.RateLimited {
				return j.step(work.GivenBack, string(code))
			}
			return j.step(work.AckLost, string(codeOf(err)))
		}
		if err := j.step(answer.Event, answer.Code); err != nil || j.row.State != work.Reporting {
			return err
		}
	}
	return j.step(work.AckLost, string(fault.AttemptMismatch))
}

// tell reports RUNNING. An answer that ends the run, or says that the attempt
// is over, comes back as an error.
func (j *job) tell(phase protocol.Phase) error {
	return j.tellWhy(phase, fault.None)
}

// tellWhy says WAITING instead where there is a reason.
func (j *job) tellWhy(phase protocol.Phase, waits fault.Reason) error {
	if waits != fault.None {
		phase = protocol.Waiting
	}
	for range maxSends {
		j.count()
		answer, err := j.Reporter.Progress(j.ctx, j.row, phase, string(waits))
		if err != nil {
			return err
		}
		j.told, j.waits, j.rounds = j.Now(), waits, 0
		switch answer.Event {
		case "":
			return nil
		case work.Stale:
			if err := j.step(work.Stale, ""); err != nil {
				return err
			}
			if j.row.State != work.Running {
				return errLeft
			}
		default:
			return &endedError{answer.Event, answer.Code}
		}
	}
	return fault.New(fault.AttemptMismatch, "the center knows yet another attempt each time")
}

// errLeft: the row was parked by the step itself; nothing is left to be written.
var errLeft = errors.New("the row has left the worker's hands")

// tellIfDue reports RUNNING every so many rounds, at least each third of the
// lease, and where the repairs begin to be held back or cease to be. It is no
// sign of life of the readers.
func (j *job) tellIfDue(phase protocol.Phase) error {
	waits := fault.None
	if j.task.Limited() {
		waits = fault.RateLimited
	}
	if waits == j.waits && j.rounds < j.Set.ReportRounds && j.Now().Sub(j.told) < j.Set.Lease/3 {
		return nil
	}
	return j.tellWhy(phase, waits)
}

// hold stands still while the load guard wants that, for maxHold at most, and
// says so. The row is kept: what was done since its checkpoint would be done again.
func (j *job) hold() error {
	enough := time.NewTimer(maxHold)
	defer enough.Stop()
	for j.busy(j.ctx) {
		if j.waits != fault.LoadGuard || j.Now().Sub(j.told) >= j.Set.Lease/3 {
			if err := j.tellWhy(protocol.Waiting, fault.LoadGuard); err != nil {
				return err
			}
		}
		look := time.NewTimer(j.Guard.Interval())
		select {
		case <-look.C:
			j.keeper.Tick()
		case <-enough.C:
			look.Stop()
			return nil
		case <-j.stopping.Done():
			look.Stop()
			return errStopping
		case <-j.ctx.Done():
			look.Stop()
			return context.Cause(j.ctx)
		}
	}
	return nil
}

// yield gives the row back where the load guard wants that, and says so. It
// belongs behind a checkpoint.
func (j *job) yield() error {
	if !j.busy(j.ctx) {
		return nil
	}
	if err := j.tellWhy(protocol.Waiting, fault.LoadGuard); err != nil {
		return err
	}
	return errBusy
}
