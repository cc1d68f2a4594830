package task

import (
	"strings"
	"testing"
	"time"

	"lockstep.dev/pkg/protocol"
)

// machine is the whole table, written down: for each event and open state the
// verdict where its guard holds, and behind the bar where it does not. "-" is
// a refusal. The terminal states refuse every event.
const machine = `
                     QUEUED                              DISPATCHED                      RUNNING
MATERIALISER_TAKES   QUEUED|-                            -|-                             -|-
MATERIALISED         QUEUED|-                            -|-                             -|-
MATERIALISE_REFUSED  FAILED|-                            -|-                             -|-
MATERIALISE_TROUBLE  QUEUED|FAILED:MATERIALISE_FAILED    -|-                             -|-
DISPATCHER_TAKES     QUEUED|-                            -|-                             -|-
ACCEPTED             DISPATCHED|-                        -|-                             -|-
NOT_ACCEPTED         QUEUED|FAILED:DISPATCH_FAILED       -|-                             -|-
CLAIM_LAPSED         QUEUED|FAILED:DISPATCH_FAILED       -|-                             -|-
PROGRESSED           RUNNING|-                           RUNNING|RUNNING                 RUNNING|RUNNING
WAITS                DISPATCHED|-                        DISPATCHED|FAILED:GIVEN_UP      RUNNING|RUNNING
COMPLETED            COMPLETED|-                         COMPLETED|-                     COMPLETED|-
PARTIAL              PARTIAL|-                           PARTIAL|-                       PARTIAL|-
FAILED               FAILED|-                            FAILED|FAILED                   FAILED|FAILED
CANCELLED            CANCELLED|-                         CANCELLED|CANCELLED             CANCELLED|CANCELLED
LEASE_EXPIRED        -|-                                 QUEUED|FAILED:LEASE_EXPIRED     QUEUED|FAILED:LEASE_EXPIRED
OPERATOR_CANCELS     CANCELLED|CANCELLED                 CANCELLED|CANCELLED             CANCELLED|CANCELLED
GRANT_LOST           CANCELLED|CANCELLED                 CANCELLED|CANCELLED             CANCELLED|CANCELLED
`

// guarded gives facts under which every guard of the event holds, and facts
// under which none does.
func guarded(on Event) (holds, fails Facts) {
	holds = Facts{Manifest: ManifestComplete, Tries: 1, Attempt: 1, MaxAttempts: 3, HasSlot: true}
	fails = Facts{Manifest: ManifestFailed, Tries: 3, Attempt: 3, MaxAttempts: 3, TooOld: true}
	if strings.HasPrefix(string(on), "MATERIALISE") {
		holds.Manifest = ManifestPending
	}
	if strings.HasPrefix(string(on), "REPORTS") || on == ReportsFailed || on == ReportsCancel || on == Progressed || on == Accepted {
		fails.Attempt = 0
	}
	return holds, fails
}

func TestTable(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(machine), "\n")
	states := strings.Fields(lines[0])
	events := map[Event]bool{}
	for _, line := range lines[1:] {
		cells := strings.Fields(line)
		on := Event(cells[0])
		events[on] = true
		holds, fails := guarded(on)
		for i, state := range states {
			want := strings.Split(cells[i+1], "|")
			if got := say(protocol.State(state), on, holds); got != want[0] {
				t.Errorf("%s, %s, its guard holding: %s, want %s", state, on, got, want[0])
			}
			if got := say(protocol.State(state), on, fails); got != want[1] {
				t.Errorf("%s, %s, its guard failing: %s, want %s", state, on, got, want[1])
			}
		}
	}
	for _, on := range Events() {
		if !events[on] {
			t.Errorf("%s is not written down", on)
		}
	}
}

func say(from protocol.State, on Event, f Facts) string {
	v, ok := Next(from, on, f)
	switch {
	case !ok:
		return "-"
	case v.Code != "":
		return string(v.To) + ":" + v.Code
	}
	return string(v.To)
}

func TestNothingMovesATerminalTask(t *testing.T) {
	for _, state := range []protocol.State{protocol.Completed, protocol.Partial, protocol.Failed, protocol.Cancelled, "", "UNKNOWN"} {
		for _, on := range Events() {
			holds, _ := guarded(on)
			if v, ok := Next(state, on, holds); ok {
				t.Errorf("%s on %s went to %s", state, on, v.To)
			}
		}
	}
}

func TestGuards(t *testing.T) {
	ready := Facts{Manifest: ManifestComplete, Tries: 1, Attempt: 1, MaxAttempts: 3, HasSlot: true}
	for name, c := range map[string]struct {
		from protocol.State
		on   Event
		with func(*Facts)
		want string
	}{
		"a complete manifest is not made again":                       {queued, MaterialiserTakes, func(*Facts) {}, "-"},
		"the last try to materialise is the last":                     {queued, MaterialiseTrouble, func(f *Facts) { f.Manifest = ManifestPending; f.Tries = 3 }, "FAILED:MATERIALISE_FAILED"},
		"the last but one try to materialise is not":                  {queued, MaterialiseTrouble, func(f *Facts) { f.Manifest = ManifestPending; f.Tries = 2 }, "QUEUED"},
		"a pending manifest is not dispatched":                        {queued, DispatcherTakes, func(f *Facts) { f.Manifest = ManifestPending }, "-"},
		"without a slot nothing is dispatched":                        {queued, DispatcherTakes, func(f *Facts) { f.HasSlot = false }, "-"},
		"a spent budget is not dispatched":                            {queued, DispatcherTakes, func(f *Facts) { f.Attempt = 3 }, "-"},
		"a dispatch refused in the last attempt fails the task":       {queued, NotAccepted, func(f *Facts) { f.Attempt = 3 }, "FAILED:DISPATCH_FAILED"},
		"a claim that lapsed in the last attempt fails the task":      {queued, ClaimLapsed, func(f *Facts) { f.Attempt = 3 }, "FAILED:DISPATCH_FAILED"},
		"progress of a task queued again needs a slot":                {queued, Progressed, func(f *Facts) { f.HasSlot = false }, "-"},
		"progress of a task never dispatched is none":                 {queued, Progressed, func(f *Facts) { f.Attempt = 0 }, "-"},
		"a result of a task queued again needs no slot":               {queued, ReportsDone, func(f *Facts) { f.HasSlot = false }, "COMPLETED"},
		"a result of a task never dispatched is none":                 {queued, ReportsPartial, func(f *Facts) { f.Attempt = 0 }, "-"},
		"COMPLETED needs the manifest":                                {running, ReportsDone, func(f *Facts) { f.Manifest = ManifestPending }, "-"},
		"a lease that ran out in the last attempt fails the task":     {running, LeaseExpired, func(f *Facts) { f.Attempt = 3 }, "FAILED:LEASE_EXPIRED"},
		"a lease that ran out before it queues the task again":        {dispatched, LeaseExpired, func(f *Facts) { f.Attempt = 2 }, "QUEUED"},
		"a task that waits is given up by age":                        {dispatched, Waits, func(f *Facts) { f.TooOld = true }, "FAILED:GIVEN_UP"},
		"a task that ran waits as long as it likes":                   {running, Waits, func(f *Facts) { f.TooOld = true }, "RUNNING"},
		"progress ends the waiting of a dispatched task whatever age": {dispatched, Progressed, func(f *Facts) { f.TooOld = true }, "RUNNING"},
	} {
		t.Run(name, func(t *testing.T) {
			f := ready
			c.with(&f)
			if got := say(c.from, c.on, f); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	for _, c := range []struct {
		attempts int
		want     time.Duration
	}{{0, time.Minute}, {1, time.Minute}, {2, 2 * time.Minute}, {3, 4 * time.Minute}, {4, 8 * time.Minute}, {7, time.Hour}, {1000, time.Hour}} {
		if got := Backoff(time.Minute, time.Hour, c.attempts); got != c.want {
			t.Errorf("after %d attempts: %s, want %s", c.attempts, got, c.want)
		}
	}
}
