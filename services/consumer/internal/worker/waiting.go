package worker

import (
	"context"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
)

// WaitingOnce tells the center about rows that wait, and why, at least each
// third of the lease. more says that others wait too.
func (w *Worker) WaitingOnce(ctx context.Context) (more bool, err error) {
	fresh := w.Set.ScanInterval // a due row is about to be claimed
	if !w.Set.Enabled {
		fresh = 0
	}
	rows, err := w.Store.Waiting(ctx, w.Set.Lease/3-w.Set.ScanInterval/2, fresh, waitingBatch)
	if err != nil {
		return false, err
	}
	for _, row := range rows {
		if ctx.Err() != nil {
			return false, nil
		}
		if err := w.wait(ctx, row); err != nil {
			// The next round tells it; the center's lease is three times as long.
			w.Log.Warn("a waiting row could not be reported", zap.String("task", row.ID()), zap.Error(err))
		}
	}
	return len(rows) == waitingBatch, nil
}

func (w *Worker) wait(ctx context.Context, row *store.Work) error {
	// It waits for the newest instruction it has, though no worker adopted it yet.
	row.Attempt = row.WantedAttempt
	answer, err := w.Reporter.Progress(ctx, row, protocol.Waiting, string(w.WaitsFor(row)))
	if err != nil || answer.Event == "" {
		return err
	}
	return w.untouched(ctx, row, answer.Event, answer.Code)
}

func (w *Worker) untouched(ctx context.Context, row *store.Work, e work.Event, code string) error {
	changed, err := w.Store.Untouched(ctx, row.TaskID, row.State, row.WantedAttempt, e, code)
	if err == nil && changed {
		w.Log.Info("a row that waits was answered", zap.String("task", row.ID()), zap.String("event", string(e)), zap.String("code", code))
	}
	return err
}

// ParkedOnce asks the center once a lease about rows that only a newer attempt
// revives: none comes to a task that has ended, or that a restored center has
// forgotten. It asks for the header, which renews no lease. more says that there
// are others.
func (w *Worker) ParkedOnce(ctx context.Context) (more bool, err error) {
	rows, err := w.Store.Parked(ctx, w.Set.Lease, waitingBatch)
	if err != nil {
		return false, err
	}
	for _, row := range rows {
		if ctx.Err() != nil {
			return false, nil
		}
		_, asked := w.Center.Manifest(ctx, row.ID(), w.Self)
		e, code := endOf(asked)
		if e == "" {
			continue // it is open, or nobody knows
		}
		if err := w.untouched(ctx, row, e, code); err != nil {
			return false, err
		}
	}
	return len(rows) == waitingBatch, nil
}

// endOf says how a task ended whose header was refused; "" where it did not say.
func endOf(refused error) (work.Event, string) {
	switch code := fault.ReasonOf(refused); code {
	case fault.TaskTerminal:
		meta := fault.MetaOf(refused)
		e, _ := work.EndOf(protocol.State(meta["task_state"]))
		return e, meta["code"]
	case fault.TaskNotFound, fault.GrantRevoked, fault.EpochMoved:
		return work.EndCancelled, string(code)
	default:
		return "", ""
	}
}

// WaitsFor says why a row does not move, or not as fast as it could.
func (w *Worker) WaitsFor(row *store.Work) fault.Reason {
	if r := w.current.Load(); row.State == work.Running && r != nil && r.id == row.TaskID && r.task.Limited() {
		return fault.RateLimited
	}
	reason := WaitsFor(row, w.Set.Enabled, w.Now())
	if reason == fault.BehindAnother && w.guarded.Load() {
		return fault.LoadGuard
	}
	return reason
}

// WaitsFor says why a row does not move; None where it does.
func WaitsFor(row *store.Work, enabled bool, now time.Time) fault.Reason {
	switch {
	case row.State != work.Queued:
		return fault.None
	case row.Paused:
		return fault.Paused
	case !enabled:
		return fault.ExecutionDisabled
	case row.DueAt.After(now) && row.Code != "":
		return fault.Reason(row.Code)
	default:
		return fault.BehindAnother
	}
}
