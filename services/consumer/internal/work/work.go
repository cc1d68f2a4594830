// Package work decides what becomes of an accepted instruction.
//
// Every transition of a work row, wherever it is made, is looked up here: the
// table says which events a state knows and where they lead, and Row.On says
// what they do to the attempt and the retry budgets. The package does no I/O
// and knows no clock; the store makes each decision inside the transaction
// that writes it.
//
//	QUEUED ──Claimed──▶ RUNNING ──Frozen──▶ REPORTING ──Ended──▶ COMPLETED PARTIAL FAILED CANCELLED
//	   ▲ ▲───RoundFailed──┘ │                   │ ▲ AckLost             │
//	   │                    └──────PARKED◀──────┘                       │
//	   └───────────AcceptedNewer──────┴────────────────────────────────┘
package work

import (
	"fmt"
	"time"

	"lockstep.dev/pkg/protocol"
)

// State of a work row. Closed.
type State string

// The eight states. Only an acknowledged report, or the center's own word that
// the task has ended, reaches one of the last four.
const (
	Queued    State = "QUEUED"
	Running   State = "RUNNING"
	Reporting State = "REPORTING" // the report is frozen and is sent until it is acknowledged
	Parked    State = "PARKED"    // out of tries, or unknown to the center; a newer attempt revives it
	Completed State = "COMPLETED"
	Partial   State = "PARTIAL"
	Failed    State = "FAILED"
	Cancelled State = "CANCELLED"
)

// States lists all of them.
func States() []State {
	return []State{Queued, Running, Reporting, Parked, Completed, Partial, Failed, Cancelled}
}

// Ended says whether the row is over, until a newer attempt asks again.
func (s State) Ended() bool {
	return s == Completed || s == Partial || s == Failed || s == Cancelled
}

// Event is something that happened to a row.
type Event string

// The events. A budget that is spent turns RoundFailed and AckLost into
// RetriesSpent, and what is remembered decides about Stale; see Row.On.
const (
	AcceptedSame  Event = "accepted the same or an older attempt"
	AcceptedNewer Event = "accepted a newer attempt"
	AcceptedHeld  Event = "accepted a newer attempt while a worker holds the row"

	Claimed      Event = "a worker claimed it"
	RoundDone    Event = "a round ended at its checkpoint"
	RoundFailed  Event = "a round failed"
	RetriesSpent Event = "the last try failed"
	GivenBack    Event = "the worker gave it back"
	LeaseExpired Event = "the worker's lease ran out"
	Frozen       Event = "the report was frozen"

	AckLost    Event = "the report got no valid answer"
	Stale      Event = "the center knows a newer attempt" // becomes one of the next two
	StaleAdopt Event = "the center knows a newer attempt, and so do we"
	StaleNone  Event = "the center knows a newer attempt, and we don't"
	Unknown    Event = "the center does not know the task or the attempt"

	EndCompleted Event = "the center says COMPLETED"
	EndPartial   Event = "the center says PARTIAL"
	EndFailed    Event = "the center says FAILED"
	EndCancelled Event = "the center says CANCELLED"
)

// Events lists all of them.
func Events() []Event {
	return []Event{
		AcceptedSame, AcceptedNewer, AcceptedHeld,
		Claimed, RoundDone, RoundFailed, RetriesSpent, GivenBack, LeaseExpired, Frozen,
		AckLost, StaleAdopt, StaleNone, Unknown,
		EndCompleted, EndPartial, EndFailed, EndCancelled,
	}
}

// next is the whole machine. What is not in it can't happen.
var next = map[State]map[Event]State{
	// A waiting row reports WAITING, so answers of the center reach it too.
	Queued: {
		AcceptedSame: Queued, AcceptedNewer: Queued, Claimed: Running,
		AckLost: Queued, StaleAdopt: Queued, StaleNone: Parked, Unknown: Parked,
		EndCompleted: Completed, EndPartial: Partial, EndFailed: Failed, EndCancelled: Cancelled,
	},
	Running: {
		AcceptedSame: Running, AcceptedHeld: Running, AcceptedNewer: Queued, // the lease is over: free for the newer attempt
		RoundDone: Running, RoundFailed: Queued, RetriesSpent: Parked, GivenBack: Queued, LeaseExpired: Queued,
		Frozen: Reporting, StaleAdopt: Running, StaleNone: Parked, Unknown: Parked,
		EndCompleted: Completed, EndPartial: Partial, EndFailed: Failed, EndCancelled: Cancelled,
	},
	// It reports again, under the newest attempt, and never scans again.
	Reporting: {
		AcceptedSame: Reporting, AcceptedHeld: Reporting, AcceptedNewer: Reporting, Claimed: Reporting,
		GivenBack: Reporting, LeaseExpired: Reporting, Frozen: Reporting,
		AckLost: Reporting, RetriesSpent: Parked, StaleAdopt: Reporting, StaleNone: Parked, Unknown: Parked,
		EndCompleted: Completed, EndPartial: Partial, EndFailed: Failed, EndCancelled: Cancelled,
	},
	// It asks now and then whether its task has ended.
	Parked: {
		AcceptedSame: Parked, AcceptedNewer: Queued,
		EndCompleted: Completed, EndPartial: Partial, EndFailed: Failed, EndCancelled: Cancelled,
	},
	Completed: {AcceptedSame: Completed, AcceptedNewer: Queued},
	Partial:   {AcceptedSame: Partial, AcceptedNewer: Queued},
	Failed:    {AcceptedSame: Failed, AcceptedNewer: Queued},
	Cancelled: {AcceptedSame: Cancelled, AcceptedNewer: Queued},
}

// Row is what decisions are made from.
type Row struct {
	State State
	// Attempt is the one it works and reports under; Wanted is the newest
	// accepted instruction's. A number alone, without its instruction, is
	// never adopted.
	Attempt, Wanted int
	// Retries counts failed rounds or reports since the last progress, Tries
	// the workers that died over it since then.
	Retries, Tries int
}

// On gives the row after e. budget is how many retries a failure may use up.
func (r Row) On(e Event, budget int) (Row, error) {
	if (e == RoundFailed || e == AckLost && r.State == Reporting) && r.Retries >= budget {
		e = RetriesSpent
	}
	if e == Stale {
		e = r.stale()
	}
	to, ok := next[r.State][e]
	if !ok {
		return r, fmt.Errorf("work row in %s: %s: there is no such transition", r.State, e)
	}
	switch e {
	case Claimed, StaleAdopt:
		r.Attempt = r.Wanted
	case RoundDone, Frozen:
		r.Attempt, r.Retries, r.Tries = r.Wanted, 0, 0
	case RoundFailed, AckLost:
		if r.State != Queued {
			r.Retries++
		}
	case LeaseExpired:
		r.Tries++
	case AcceptedNewer, AcceptedHeld:
		r.Retries, r.Tries = 0, 0
	default: // the state alone moves
	}
	r.State = to
	return r, nil
}

// Accept gives the row after an instruction of attempt, and the event it was.
// held says that a worker holds the row under a valid lease: that worker is
// not disturbed and adopts the attempt by itself.
func (r Row) Accept(attempt int, held bool) (Row, Event, error) {
	e := AcceptedNewer
	switch {
	case attempt <= r.Wanted:
		e = AcceptedSame
	case held:
		e = AcceptedHeld
	}
	after, err := r.On(e, 0)
	if err == nil && e != AcceptedSame {
		after.Wanted = attempt
	}
	return after, e, err
}

// stale decides a STALE_RETRY: the remembered newer instruction is adopted, and
// with none the row waits for one.
func (r Row) stale() Event {
	if r.Wanted > r.Attempt {
		return StaleAdopt
	}
	return StaleNone
}

// EndOf gives the event for the state the center says the task has ended in.
func EndOf(s protocol.State) (Event, bool) {
	switch s {
	case protocol.Completed:
		return EndCompleted, true
	case protocol.Partial:
		return EndPartial, true
	case protocol.Failed:
		return EndFailed, true
	case protocol.Cancelled:
		return EndCancelled, true
	case protocol.Queued, protocol.Dispatched, protocol.Running:
	}
	return "", false
}

// Backoff is the wait before try n+1 where n tries have failed before: the
// first wait is base, each next one twice as long, none longer than limit.
func Backoff(base, limit time.Duration, n int) time.Duration {
	for d := base; ; d *= 2 {
		if d >= limit {
			return limit
		}
		if n <= 0 {
			return d
		}
		n--
	}
}
