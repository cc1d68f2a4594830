package work

import (
	"errors"
	"fmt"

	"lockstep.dev/pkg/protocol"
)

// Sent is a report as it went out.
type Sent struct {
	TaskID  string
	Attempt int
	State   protocol.State
}

// Heard is an acknowledgement, as far as it decides.
type Heard struct {
	TaskID      string
	Attempt     int               // the report's, echoed
	Decision    protocol.Decision // "" for one this version does not know
	TaskState   protocol.State
	ResultState protocol.State // adopted or first stored
}

// ErrNoAnswer: the report may or may not have arrived; report again.
var ErrNoAnswer = errors.New("the report got no valid answer")

// Hear gives the event that an answer is, "" where the run just goes on. An
// answer that does not echo the report is none.
func Hear(sent Sent, heard Heard) (Event, error) {
	if heard.TaskID != sent.TaskID || heard.Attempt != sent.Attempt {
		return "", fmt.Errorf("%w: it is about task %q, attempt %d", ErrNoAnswer, heard.TaskID, heard.Attempt)
	}
	told := heard.TaskState
	switch heard.Decision {
	case protocol.CurrentAccepted:
		if sent.State == protocol.Running {
			return "", nil
		}
		told = heard.ResultState
	case protocol.CurrentDuplicate:
		// The first result stays, whatever this one says.
		told = heard.ResultState
	case protocol.CenterTerminal:
	case protocol.StaleRetry:
		return Stale, nil
	default:
		return "", fmt.Errorf("%w: it has no decision", ErrNoAnswer)
	}
	end, ok := EndOf(told)
	if !ok {
		return "", fmt.Errorf("%w: %s names no final state (%q)", ErrNoAnswer, heard.Decision, told)
	}
	return end, nil
}
