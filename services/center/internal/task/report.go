package task

import "lockstep.dev/pkg/protocol"

// Standing is how a report stands to its task, before what it says counts.
type Standing string

// The standings, in the order in which the first that fits wins.
const (
	OfEnded   Standing = "OF_ENDED"   // the task has ended: nothing moves, and no grant is read
	OfUnknown Standing = "OF_UNKNOWN" // of an attempt newer than any dispatched
	OfOlder   Standing = "OF_OLDER"   // of an attempt that was superseded
	OfCurrent Standing = "OF_CURRENT"
)

// Stand ranks a report by its attempt.
func Stand(state protocol.State, attempt, reported int) Standing {
	switch {
	case state.Terminal():
		return OfEnded
	case reported > attempt:
		return OfUnknown
	case reported < attempt:
		return OfOlder
	}
	return OfCurrent
}

// Said is a report as far as it decides, and what was found for its standing.
type Said struct {
	Event Event // Progressed, Waits, or a result's
	// Whole: both scans are complete and no difference is open.
	Whole bool
	// Own: the ended task has a result of this very attempt.
	Own bool
	// Lost: the grant is not the one that the task was made under any more.
	Lost bool
}

// Ruling is what a report is answered and what it moves.
type Ruling struct {
	// Refusal is the code of an error; nothing moves then and nothing is acknowledged.
	Refusal  string
	Decision protocol.Decision
	// Event moves the task by Verdict; "" moves nothing.
	Event Event
	Verdict
}

// The refusals. All else of the task's own consumer is acknowledged.
const (
	attemptUnknown     = "ATTEMPT_UNKNOWN"
	resultInconsistent = "RESULT_INCONSISTENT"
)

// Rule is the matrix of acknowledgements: the first row that fits wins.
func Rule(s Standing, from protocol.State, said Said, f Facts) Ruling {
	switch {
	case s == OfEnded && said.Own:
		// The attempt's own result stays the first one, whatever a repeat says.
		return Ruling{Decision: protocol.CurrentDuplicate}
	case s == OfEnded:
		return Ruling{Decision: protocol.CenterTerminal}
	case s == OfUnknown:
		return Ruling{Refusal: attemptUnknown}
	case s == OfOlder:
		return Ruling{Decision: protocol.StaleRetry}
	case said.Lost:
		return ofCurrent(from, GrantLost, f)
	case said.Event == ReportsDone && !said.Whole:
		return Ruling{Refusal: resultInconsistent}
	}
	return ofCurrent(from, said.Event, f)
}

// ofCurrent asks the table about the current attempt's report.
func ofCurrent(from protocol.State, on Event, f Facts) Ruling {
	v, ok := Next(from, on, f)
	progress := on == Progressed || on == Waits
	switch {
	case !ok && progress:
		// It was queued again and its place is taken: it waits for the next instruction.
		return Ruling{Decision: protocol.StaleRetry}
	case !ok:
		return Ruling{Refusal: resultInconsistent}
	case on == GrantLost, progress && v.To.Terminal(): // or it has waited too long
		return Ruling{Decision: protocol.CenterTerminal, Event: on, Verdict: v}
	}
	return Ruling{Decision: protocol.CurrentAccepted, Event: on, Verdict: v}
}
