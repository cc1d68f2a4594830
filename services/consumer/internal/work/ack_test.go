package work

import (
	"errors"
	"testing"

	"lockstep.dev/pkg/protocol"
)

func TestHear(t *testing.T) {
	result := Sent{TaskID: "t", Attempt: 2, State: protocol.Completed}
	progress := Sent{TaskID: "t", Attempt: 2, State: protocol.Running}
	for name, c := range map[string]struct {
		sent  Sent
		heard Heard
		want  Event // "-" is no answer
	}{
		"a result is accepted":                  {result, Heard{"t", 2, protocol.CurrentAccepted, protocol.Completed, protocol.Completed}, EndCompleted},
		"a result is accepted as nothing":       {result, Heard{"t", 2, protocol.CurrentAccepted, protocol.Completed, ""}, "-"},
		"progress is accepted":                  {progress, Heard{"t", 2, protocol.CurrentAccepted, protocol.Running, protocol.Running}, ""},
		"a repeat is told the first result":     {result, Heard{"t", 2, protocol.CurrentDuplicate, protocol.Partial, protocol.Partial}, EndPartial},
		"a repeat is told no result":            {result, Heard{"t", 2, protocol.CurrentDuplicate, protocol.Partial, ""}, "-"},
		"late progress is told the result":      {progress, Heard{"t", 2, protocol.CurrentDuplicate, protocol.Completed, protocol.Completed}, EndCompleted},
		"an end elsewhere is mirrored":          {result, Heard{"t", 2, protocol.CenterTerminal, protocol.Cancelled, ""}, EndCancelled},
		"an end that is none":                   {result, Heard{"t", 2, protocol.CenterTerminal, protocol.Running, ""}, "-"},
		"a newer attempt":                       {progress, Heard{"t", 2, protocol.StaleRetry, protocol.Queued, ""}, Stale},
		"an answer about another attempt":       {result, Heard{"t", 3, protocol.CurrentAccepted, protocol.Completed, protocol.Completed}, "-"},
		"an answer about another task":          {result, Heard{"u", 2, protocol.CenterTerminal, protocol.Failed, ""}, "-"},
		"a newer attempt for another task":      {result, Heard{"u", 2, protocol.StaleRetry, protocol.Failed, ""}, "-"},
		"a decision this version does not know": {result, Heard{"t", 2, "", protocol.Completed, protocol.Completed}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Hear(c.sent, c.heard)
			if none := errors.Is(err, ErrNoAnswer); none != (c.want == "-") || !none && got != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}
