package work

import (
	"testing"
	"time"

	"lockstep.dev/pkg/protocol"
)

// The whole table, every cell written down; "-" is a transition that is not there.
func TestTable(t *testing.T) {
	states := []State{Queued, Running, Reporting, Parked, Completed, Partial, Failed, Cancelled}
	const none = State("-")
	want := []struct {
		e    Event
		from [8]State
	}{
		{AcceptedSame, [8]State{Queued, Running, Reporting, Parked, Completed, Partial, Failed, Cancelled}},
		{AcceptedNewer, [8]State{Queued, Queued, Reporting, Queued, Queued, Queued, Queued, Queued}},
		{AcceptedHeld, [8]State{none, Running, Reporting, none, none, none, none, none}},
		{Claimed, [8]State{Running, none, Reporting, none, none, none, none, none}},
		{RoundDone, [8]State{none, Running, none, none, none, none, none, none}},
		{RoundFailed, [8]State{none, Queued, none, none, none, none, none, none}},
		{RetriesSpent, [8]State{none, Parked, Parked, none, none, none, none, none}},
		{GivenBack, [8]State{none, Queued, Reporting, none, none, none, none, none}},
		{LeaseExpired, [8]State{none, Queued, Reporting, none, none, none, none, none}},
		{Frozen, [8]State{none, Reporting, Reporting, none, none, none, none, none}},
		{AckLost, [8]State{Queued, none, Reporting, none, none, none, none, none}},
		{StaleAdopt, [8]State{Queued, Running, Reporting, none, none, none, none, none}},
		{StaleNone, [8]State{Parked, Parked, Parked, none, none, none, none, none}},
		{Unknown, [8]State{Parked, Parked, Parked, none, none, none, none, none}},
		{EndCompleted, [8]State{Completed, Completed, Completed, Completed, none, none, none, none}},
		{EndPartial, [8]State{Partial, Partial, Partial, Partial, none, none, none, none}},
		{EndFailed, [8]State{Failed, Failed, Failed, Failed, none, none, none, none}},
		{EndCancelled, [8]State{Cancelled, Cancelled, Cancelled, Cancelled, none, none, none, none}},
	}
	if len(want) != len(Events()) || len(states) != len(States()) {
		t.Fatalf("%d events of %d, %d states of %d are written down", len(want), len(Events()), len(states), len(States()))
	}
	cells := 0
	for i, row := range want {
		if Events()[i] != row.e {
			t.Fatalf("event %d is %q", i, Events()[i])
		}
		for j, from := range states {
			got, ok := next[from][row.e]
			if !ok {
				got = none
			} else {
				cells++
			}
			if got != row.from[j] {
				t.Errorf("%s, %s: %s, want %s", from, row.e, got, row.from[j])
			}
		}
	}
	for _, from := range states {
		cells -= len(next[from])
	}
	if cells != 0 {
		t.Errorf("%d cells of the table are not in the list", -cells)
	}
}

// What an event does to the attempt and the budgets, beside the state.
func TestOn(t *testing.T) {
	const budget = 6
	at := func(s State) Row { return Row{State: s, Attempt: 2, Wanted: 3, Retries: 4, Tries: 1} }
	for name, c := range map[string]struct {
		row  Row
		e    Event
		want Row
	}{
		"a claim adopts the newest instruction":        {at(Queued), Claimed, Row{Running, 3, 3, 4, 1}},
		"a claim of a report too":                      {at(Reporting), Claimed, Row{Reporting, 3, 3, 4, 1}},
		"a finished page resets both budgets":          {at(Running), RoundDone, Row{Running, 3, 3, 0, 0}},
		"a failed round takes a retry":                 {at(Running), RoundFailed, Row{Queued, 2, 3, 5, 1}},
		"the last failure parks":                       {Row{Running, 2, 3, 6, 0}, RoundFailed, Row{Parked, 2, 3, 6, 0}},
		"the last but one does not":                    {Row{Running, 2, 3, 5, 0}, RoundFailed, Row{Queued, 2, 3, 6, 0}},
		"giving back spends nothing":                   {at(Running), GivenBack, Row{Queued, 2, 3, 4, 1}},
		"an expired lease spends a try":                {at(Running), LeaseExpired, Row{Queued, 2, 3, 4, 2}},
		"freezing starts the report's own budget":      {at(Running), Frozen, Row{Reporting, 3, 3, 0, 0}},
		"an unacknowledged report takes a retry":       {at(Reporting), AckLost, Row{Reporting, 2, 3, 5, 1}},
		"the last unacknowledged report parks":         {Row{Reporting, 2, 2, 6, 0}, AckLost, Row{Parked, 2, 2, 6, 0}},
		"an unanswered WAITING takes none":             {Row{Queued, 2, 2, 6, 0}, AckLost, Row{Queued, 2, 2, 6, 0}},
		"STALE_RETRY adopts what is remembered":        {at(Running), Stale, Row{Running, 3, 3, 4, 1}},
		"STALE_RETRY without a newer instruction":      {Row{Running, 3, 3, 4, 1}, Stale, Row{Parked, 3, 3, 4, 1}},
		"STALE_RETRY to a report":                      {at(Reporting), Stale, Row{Reporting, 3, 3, 4, 1}},
		"STALE_RETRY to a report, none remembered":     {Row{Reporting, 3, 3, 0, 0}, Stale, Row{Parked, 3, 3, 0, 0}},
		"an end keeps the attempt it was reported for": {at(Reporting), EndPartial, Row{Partial, 2, 3, 4, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.row.On(c.e, budget)
			if err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	t.Run("what is not in the table is an error and changes nothing", func(t *testing.T) {
		row := Row{State: Completed, Attempt: 1, Wanted: 1}
		if got, err := row.On(RoundDone, budget); err == nil || got != row {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestAccept(t *testing.T) {
	for name, c := range map[string]struct {
		row     Row
		attempt int
		held    bool
		want    Row
		event   Event
	}{
		"the same attempt changes nothing":          {Row{Queued, 1, 2, 3, 1}, 2, false, Row{Queued, 1, 2, 3, 1}, AcceptedSame},
		"an older one neither":                      {Row{Queued, 1, 2, 3, 1}, 1, false, Row{Queued, 1, 2, 3, 1}, AcceptedSame},
		"a terminal row is not reopened by it":      {Row{Completed, 2, 2, 0, 0}, 2, false, Row{Completed, 2, 2, 0, 0}, AcceptedSame},
		"a newer one starts retries anew":           {Row{Queued, 1, 2, 3, 1}, 3, false, Row{Queued, 1, 3, 0, 0}, AcceptedNewer},
		"a held run is not disturbed":               {Row{Running, 1, 1, 3, 1}, 2, true, Row{Running, 1, 2, 0, 0}, AcceptedHeld},
		"a run whose lease is over is free again":   {Row{Running, 1, 1, 3, 1}, 2, false, Row{Queued, 1, 2, 0, 0}, AcceptedNewer},
		"a report is sent again, without scanning":  {Row{Reporting, 1, 1, 3, 1}, 2, false, Row{Reporting, 1, 2, 0, 0}, AcceptedNewer},
		"a report in hand is not taken away":        {Row{Reporting, 1, 1, 3, 1}, 2, true, Row{Reporting, 1, 2, 0, 0}, AcceptedHeld},
		"a parked row is revived":                   {Row{Parked, 1, 1, 6, 0}, 2, false, Row{Queued, 1, 2, 0, 0}, AcceptedNewer},
		"a terminal row is reopened by a newer one": {Row{Cancelled, 1, 1, 0, 0}, 4, false, Row{Queued, 1, 4, 0, 0}, AcceptedNewer},
	} {
		t.Run(name, func(t *testing.T) {
			got, event, err := c.row.Accept(c.attempt, c.held)
			if err != nil || got != c.want || event != c.event {
				t.Errorf("%+v, %q, %v; want %+v, %q", got, event, err, c.want, c.event)
			}
		})
	}
}

// Over every row of a small world and every event: the attempt never falls, is
// never one that no instruction named, and an ended row moves by a newer
// attempt only.
func TestInvariants(t *testing.T) {
	events := append(Events(), Stale)
	for _, s := range States() {
		for attempt := 1; attempt <= 3; attempt++ {
			for wanted := attempt; wanted <= 3; wanted++ {
				for retries := range 3 {
					row := Row{State: s, Attempt: attempt, Wanted: wanted, Retries: retries}
					for _, e := range events {
						after, err := row.On(e, 2)
						switch {
						case err != nil:
							continue
						case after.Attempt < row.Attempt || after.Wanted < row.Wanted || after.Attempt > after.Wanted:
							t.Errorf("%+v, %s: %+v", row, e, after)
						case s.Ended() && e != AcceptedNewer && after != row:
							t.Errorf("%+v, %s: an ended row became %+v", row, e, after)
						case after.Retries > 2 && after.State != Parked:
							t.Errorf("%+v, %s: %d retries", row, e, after.Retries)
						}
					}
				}
			}
		}
	}
}

func TestEndOf(t *testing.T) {
	for s, want := range map[protocol.State]Event{
		protocol.Completed: EndCompleted, protocol.Partial: EndPartial, protocol.Failed: EndFailed, protocol.Cancelled: EndCancelled,
		protocol.Queued: "", protocol.Dispatched: "", protocol.Running: "", "": "", "OTHER": "",
	} {
		if got, ok := EndOf(s); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", s, got, ok)
		}
	}
}

func TestBackoff(t *testing.T) {
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		if got := Backoff(time.Minute, 30*time.Minute, n); got != want*time.Minute {
			t.Errorf("after %d failures %s, want %d m", n, got, want)
		}
	}
	if got := Backoff(time.Minute, 30*time.Minute, 1<<30); got != 30*time.Minute {
		t.Errorf("after very many %s", got)
	}
}
