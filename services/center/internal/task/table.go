package task

import "lockstep.dev/pkg/protocol"

// Event is what may happen to a task.
type Event string

// The events. A result's event is its state's word.
const (
	// A materialiser takes it; froze its rows; can't ever; or failed or died this time.
	MaterialiserTakes  Event = "MATERIALISER_TAKES"
	Materialised       Event = "MATERIALISED"
	MaterialiseRefused Event = "MATERIALISE_REFUSED"
	MaterialiseTrouble Event = "MATERIALISE_TROUBLE"
	// A dispatcher takes it, which spends an attempt; the consumer accepted; did
	// not, or was not reached; or the dispatcher died.
	DispatcherTakes Event = "DISPATCHER_TAKES"
	Accepted        Event = "ACCEPTED"
	NotAccepted     Event = "NOT_ACCEPTED"
	ClaimLapsed     Event = "CLAIM_LAPSED"
	// Reports of the current attempt.
	Progressed     Event = "PROGRESSED"
	Waits          Event = "WAITS"
	ReportsDone    Event = "COMPLETED"
	ReportsPartial Event = "PARTIAL"
	ReportsFailed  Event = "FAILED"
	ReportsCancel  Event = "CANCELLED"
	// The consumer's lease ran out.
	LeaseExpired Event = "LEASE_EXPIRED"
	// An operator cancels; the grant was revoked or its epoch moved.
	OperatorCancels Event = "OPERATOR_CANCELS"
	GrantLost       Event = "GRANT_LOST"
)

// Events lists every event.
func Events() []Event {
	return []Event{
		MaterialiserTakes, Materialised, MaterialiseRefused, MaterialiseTrouble,
		DispatcherTakes, Accepted, NotAccepted, ClaimLapsed,
		Progressed, Waits, ReportsDone, ReportsPartial, ReportsFailed, ReportsCancel,
		LeaseExpired, OperatorCancels, GrantLost,
	}
}

// Facts are what the guards look at, read under the row's lock.
type Facts struct {
	Manifest    ManifestState
	Tries       int // to materialise, this one included
	Attempt     int
	MaxAttempts int
	HasSlot     bool // it holds one, or one is free
	TooOld      bool // it has waited to run longer than it may
}

// Verdict is where a task goes. Code is why, unless the event has its own.
type Verdict struct {
	To   protocol.State
	Code string
}

// rule: where the guard holds the task goes to "to", else to "otherwise" with
// its code; an empty state refuses the event.
type rule struct {
	guard     func(Facts) bool
	to        protocol.State
	otherwise protocol.State
	code      string
}

const (
	queued     = protocol.Queued
	dispatched = protocol.Dispatched
	running    = protocol.Running
	completed  = protocol.Completed
	partial    = protocol.Partial
	failed     = protocol.Failed
	cancelled  = protocol.Cancelled
)

func always(Facts) bool         { return true }
func pending(f Facts) bool      { return f.Manifest == ManifestPending }
func triesLeft(f Facts) bool    { return f.Tries < f.MaxAttempts }
func attemptsLeft(f Facts) bool { return f.Attempt < f.MaxAttempts }
func attempted(f Facts) bool    { return f.Attempt >= 1 }
func notTooOld(f Facts) bool    { return !f.TooOld }
func complete(f Facts) bool     { return f.Manifest == ManifestComplete }
func canRun(f Facts) bool       { return attempted(f) && complete(f) && f.HasSlot }
func canWait(f Facts) bool      { return canRun(f) && notTooOld(f) }
func dispatchable(f Facts) bool { return complete(f) && attemptsLeft(f) && f.HasSlot }
func provable(f Facts) bool     { return attempted(f) && complete(f) }

// table is the whole machine. A terminal state has no row: nothing moves it.
var table = map[protocol.State]map[Event]rule{
	queued: {
		MaterialiserTakes:  {pending, queued, "", ""},
		Materialised:       {pending, queued, "", ""},
		MaterialiseRefused: {pending, failed, "", ""},
		MaterialiseTrouble: {triesLeft, queued, failed, "MATERIALISE_FAILED"},
		DispatcherTakes:    {dispatchable, queued, "", ""},
		Accepted:           {canRun, dispatched, "", ""},
		NotAccepted:        {attemptsLeft, queued, failed, "DISPATCH_FAILED"},
		ClaimLapsed:        {attemptsLeft, queued, failed, "DISPATCH_FAILED"},
		// The answer to the dispatch was lost, or is overtaken by the report.
		Progressed:      {canRun, running, "", ""},
		Waits:           {canWait, dispatched, "", ""},
		ReportsDone:     {provable, completed, "", ""},
		ReportsPartial:  {provable, partial, "", ""},
		ReportsFailed:   {attempted, failed, "", ""},
		ReportsCancel:   {attempted, cancelled, "", ""},
		OperatorCancels: {always, cancelled, "", ""},
		GrantLost:       {always, cancelled, "", ""},
	},
	dispatched: {
		Progressed:      {always, running, "", ""},
		Waits:           {notTooOld, dispatched, failed, "GIVEN_UP"},
		ReportsDone:     {provable, completed, "", ""},
		ReportsPartial:  {provable, partial, "", ""},
		ReportsFailed:   {always, failed, "", ""},
		ReportsCancel:   {always, cancelled, "", ""},
		LeaseExpired:    {attemptsLeft, queued, failed, "LEASE_EXPIRED"},
		OperatorCancels: {always, cancelled, "", ""},
		GrantLost:       {always, cancelled, "", ""},
	},
	running: {
		Progressed:      {always, running, "", ""},
		Waits:           {always, running, "", ""},
		ReportsDone:     {provable, completed, "", ""},
		ReportsPartial:  {provable, partial, "", ""},
		ReportsFailed:   {always, failed, "", ""},
		ReportsCancel:   {always, cancelled, "", ""},
		LeaseExpired:    {attemptsLeft, queued, failed, "LEASE_EXPIRED"},
		OperatorCancels: {always, cancelled, "", ""},
		GrantLost:       {always, cancelled, "", ""},
	},
}

// Next gives the verdict on an event; ok is false where nothing may move.
func Next(from protocol.State, on Event, f Facts) (v Verdict, ok bool) {
	r, ok := table[from][on]
	if !ok {
		return Verdict{}, false
	}
	if r.guard(f) {
		return Verdict{To: r.to}, true
	}
	return Verdict{To: r.otherwise, Code: r.code}, r.otherwise != ""
}

// Facts of the task under a policy. slotFree says whether one could be taken.
func (t *Task) Facts(p Policy, slotFree bool) Facts {
	return Facts{
		Manifest: t.ManifestState, Tries: t.MaterialiseTries + 1,
		Attempt: t.Attempt, MaxAttempts: p.MaxAttempts, HasSlot: t.Slot != nil || slotFree,
	}
}
