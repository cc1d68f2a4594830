package refresh

import (
	"fmt"

	"lockstep.dev/pkg/fault"
)

// State of a task. Closed.
type State string

// The five states.
const (
	Pending   State = "PENDING"
	Running   State = "RUNNING" // held: a token and a lease stand in its progress
	Success   State = "SUCCESS" // every scope of the newest generation is done
	Failed    State = "FAILED"
	Cancelled State = "CANCELLED"
)

// States lists all of them.
func States() []State { return []State{Pending, Running, Success, Failed, Cancelled} }

// Event is something that happens to a task.
type Event string

// The events.
const (
	Requested  Event = "a request came"
	Claimed    Event = "a worker claimed it"
	PageDone   Event = "a page ended, scopes are left"
	AllDone    Event = "every scope is done"
	Broken     Event = "the run, or a scope of it, failed"
	Superseded Event = "a newer generation came while it ran"
	GivenBack  Event = "the worker gave it back"
	Woken      Event = "an operator woke it"
	Forced     Event = "an operator forced it"
	Stopped    Event = "an operator cancelled it"
	Reopened   Event = "an operator reopened it"
)

// Events lists all of them.
func Events() []Event {
	return []Event{Requested, Claimed, PageDone, AllDone, Broken, Superseded, GivenBack, Woken, Forced, Stopped, Reopened}
}

// next is the whole machine. What is not in it can't happen.
var next = map[State]map[Event]State{
	Pending: {Requested: Pending, Claimed: Running, Woken: Pending, Forced: Pending, Stopped: Cancelled},
	// A lapsed lease is claimed like a free row; a request never touches a claim.
	Running: {
		Requested: Running, Claimed: Running, PageDone: Pending, AllDone: Success, Broken: Failed,
		Superseded: Pending, GivenBack: Pending, Stopped: Cancelled,
	},
	Success: {Requested: Pending},
	// Forced stays FAILED: the claim sees by it that failed scopes are to be tried again.
	Failed: {Requested: Pending, Claimed: Running, Woken: Failed, Forced: Failed, Stopped: Cancelled},
	// It does not rise by itself: what was asked meanwhile was refused.
	Cancelled: {Reopened: Pending},
}

// On says where an event leads.
func (s State) On(e Event) (State, error) {
	to, ok := next[s][e]
	if !ok {
		return s, fault.New(fault.TaskTerminal, "the task is %s: %s does not apply", s, e).With("task_state", string(s))
	}
	return to, nil
}

// must is On for a transition that a statement's own condition has made sure of.
func must(s State, e Event) State {
	to, err := s.On(e)
	if err != nil {
		panic(fmt.Sprintf("refresh: %s on %s is not in the table", e, s))
	}
	return to
}
