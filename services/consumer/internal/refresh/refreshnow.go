package refresh

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// NowState is how far "refresh now" came.
type NowState string

// The states.
const (
	NowDone       NowState = "DONE"        // the generation asked for, or a newer one, is done
	NowFailed     NowState = "FAILED"      // it ended FAILED, or was cancelled; the task says why
	NowInProgress NowState = "IN_PROGRESS" // it goes on without the caller
	NowRefused    NowState = "REFUSED"     // the submission was
)

// NowResult is what "refresh now" came to.
type NowResult struct {
	Submitted

	State NowState
}

const (
	nowPollMin = 50 * time.Millisecond
	nowPollMax = time.Second
	// nowMargin before the caller's deadline no further scope is begun, so that
	// the one in hand ends and the answer arrives.
	nowMargin = 2 * time.Second
)

// RefreshNow submits, then runs the task here, under a claim like any other. If
// somebody holds it, it waits until a generation at least as new as the one
// submitted is done. At the end of the caller's time it says IN_PROGRESS, and
// the task goes on without the caller.
func (e *Engine) RefreshNow(ctx context.Context, req Request) (NowResult, error) {
	out, err := e.submitQuietly(ctx, req)
	if err != nil {
		return NowResult{}, err
	}
	if out.Outcome == Refused {
		return NowResult{Submitted: out, State: NowRefused}, nil
	}
	state, err := e.runUntilDone(ctx, out, lastStart(ctx))
	if state == NowInProgress || err != nil {
		e.Committed(out)
	}
	return NowResult{Submitted: out, State: state}, err
}

// lastStart is when to begin nothing more for a caller; zero: no such time.
func lastStart(ctx context.Context) time.Time {
	deadline, ok := ctx.Deadline()
	if !ok {
		return time.Time{}
	}
	return deadline.Add(-nowMargin)
}

func (e *Engine) runUntilDone(ctx context.Context, out Submitted, until time.Time) (NowState, error) {
	for pause := nowPollMin; ; pause = min(2*pause, nowPollMax) {
		state, err := e.reached(ctx, out.TaskID, out.Generation)
		if err != nil || state != NowInProgress || ctx.Err() != nil {
			return state, err
		}
		if !until.IsZero() && e.now().After(until) {
			return NowInProgress, nil
		}
		j, err := e.claimTask(ctx, out.TaskID)
		if err != nil {
			return NowInProgress, err
		}
		if j != nil {
			pause = nowPollMin
			if _, err := e.work(ctx, j, until); err != nil {
				return NowInProgress, err
			}
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return NowInProgress, nil
		case <-timer.C:
		}
	}
}

// reached says whether a generation at least as new has ended.
func (e *Engine) reached(ctx context.Context, id uuid.UUID, generation int64) (NowState, error) {
	var state State
	var running int64
	err := e.pool.QueryRow(ctx, `SELECT t.state, COALESCE(p.running_generation, 0)
		FROM lockstep.refresh_task t LEFT JOIN lockstep.refresh_progress p USING (task_id) WHERE t.task_id = $1`, id).Scan(&state, &running)
	switch {
	case err != nil && ctx.Err() != nil:
		return NowInProgress, nil
	case err != nil:
		return NowInProgress, fmt.Errorf("look at task %s: %w", id, err)
	case state == Cancelled, state == Failed && running >= generation:
		return NowFailed, nil
	case state == Success && running >= generation:
		return NowDone, nil
	default:
		return NowInProgress, nil
	}
}
