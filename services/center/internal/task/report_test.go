package task

import (
	"testing"

	"lockstep.dev/pkg/protocol"
)

func TestStand(t *testing.T) {
	for _, c := range []struct {
		state             protocol.State
		attempt, reported int
		want              Standing
	}{
		{completed, 2, 1, OfEnded},
		{cancelled, 2, 3, OfEnded},
		{failed, 2, 2, OfEnded},
		{partial, 1, 1, OfEnded},
		{running, 2, 3, OfUnknown},
		{queued, 0, 1, OfUnknown},
		{running, 2, 1, OfOlder},
		{queued, 3, 1, OfOlder},
		{queued, 1, 1, OfCurrent},
		{dispatched, 2, 2, OfCurrent},
		{running, 3, 3, OfCurrent},
	} {
		if got := Stand(c.state, c.attempt, c.reported); got != c.want {
			t.Errorf("%s in attempt %d, a report of %d: %s, want %s", c.state, c.attempt, c.reported, got, c.want)
		}
	}
}

func TestRule(t *testing.T) {
	ready := Facts{Manifest: ManifestComplete, Attempt: 1, MaxAttempts: 3, HasSlot: true}
	noSlot, tooOld := ready, ready
	noSlot.HasSlot, tooOld.TooOld = false, true
	for name, c := range map[string]struct {
		s    Standing
		from protocol.State
		said Said
		f    Facts
		want Ruling
	}{
		"ended by this attempt's own result":           {OfEnded, completed, Said{Event: ReportsFailed, Own: true}, ready, Ruling{Decision: protocol.CurrentDuplicate}},
		"ended otherwise":                              {OfEnded, cancelled, Said{Event: ReportsDone, Whole: true}, ready, Ruling{Decision: protocol.CenterTerminal}},
		"an attempt newer than any":                    {OfUnknown, running, Said{Event: Progressed}, ready, Ruling{Refusal: "ATTEMPT_UNKNOWN"}},
		"an older attempt":                             {OfOlder, running, Said{Event: ReportsDone, Whole: true}, ready, Ruling{Decision: protocol.StaleRetry}},
		"an older attempt under a lost grant":          {OfOlder, running, Said{Event: Progressed, Lost: true}, ready, Ruling{Decision: protocol.StaleRetry}},
		"the current attempt under a lost grant":       {OfCurrent, running, Said{Event: ReportsDone, Whole: true, Lost: true}, ready, Ruling{Decision: protocol.CenterTerminal, Event: GrantLost, Verdict: Verdict{To: cancelled}}},
		"progress":                                     {OfCurrent, dispatched, Said{Event: Progressed}, ready, Ruling{Decision: protocol.CurrentAccepted, Event: Progressed, Verdict: Verdict{To: running}}},
		"progress of a task queued again":              {OfCurrent, queued, Said{Event: Progressed}, ready, Ruling{Decision: protocol.CurrentAccepted, Event: Progressed, Verdict: Verdict{To: running}}},
		"progress of one whose place is taken":         {OfCurrent, queued, Said{Event: Progressed}, noSlot, Ruling{Decision: protocol.StaleRetry}},
		"waiting":                                      {OfCurrent, dispatched, Said{Event: Waits}, ready, Ruling{Decision: protocol.CurrentAccepted, Event: Waits, Verdict: Verdict{To: dispatched}}},
		"waiting for too long":                         {OfCurrent, dispatched, Said{Event: Waits}, tooOld, Ruling{Decision: protocol.CenterTerminal, Event: Waits, Verdict: Verdict{To: failed, Code: "GIVEN_UP"}}},
		"a result":                                     {OfCurrent, running, Said{Event: ReportsPartial}, ready, Ruling{Decision: protocol.CurrentAccepted, Event: ReportsPartial, Verdict: Verdict{To: partial}}},
		"a result of a task queued again without slot": {OfCurrent, queued, Said{Event: ReportsDone, Whole: true}, noSlot, Ruling{Decision: protocol.CurrentAccepted, Event: ReportsDone, Verdict: Verdict{To: completed}}},
		"COMPLETED that contradicts itself":            {OfCurrent, running, Said{Event: ReportsDone}, ready, Ruling{Refusal: "RESULT_INCONSISTENT"}},
		"COMPLETED without a manifest":                 {OfCurrent, running, Said{Event: ReportsDone, Whole: true}, Facts{Manifest: ManifestPurged, Attempt: 1}, Ruling{Refusal: "RESULT_INCONSISTENT"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Rule(c.s, c.from, c.said, c.f); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}
