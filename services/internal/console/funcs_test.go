package console

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

func TestTimes(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		0: "now", 900 * time.Millisecond: "now", 119 * time.Second: "119 s ago", 2 * time.Minute: "2 min ago", 119 * time.Minute: "119 min ago",
		2 * time.Hour: "2 h ago", 47 * time.Hour: "47 h ago", 49 * time.Hour: "2 days ago", -90 * time.Second: "in 90 s",
	} {
		if got := ago(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
	if got, want := when(timestamppb.New(now.Add(-time.Hour)), now), `<time datetime="2026-03-01T11:00:00Z" title="2026-03-01 11:00:00 UTC" data-ago>60 min ago</time>`; string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := when((*timestamppb.Timestamp)(nil), now); got != `<span class="none">–</span>` {
		t.Errorf("no time is %s", got)
	}
	for d, want := range map[time.Duration]string{
		1500 * time.Millisecond: "1.50 s", 61 * time.Second: "61 s", 200 * time.Second: "3 min 20 s", 150 * time.Minute: "2 h 30 min",
	} {
		if got := took(now, now.Add(d)); got != want {
			t.Errorf("%s took %q, want %q", d, got, want)
		}
	}
}

func TestWordsAndFigures(t *testing.T) {
	for value, want := range map[any]string{
		evidencev1.TaskState_TASK_STATE_RUNNING: "RUNNING", evidencev1.TaskState(0): "", evidencev1.TaskState(99): "99",
		centerv1.DeliveryState_DELIVERY_STATE_DONE: "DONE", "as it is": "as it is",
	} {
		if got := Word(value); got != want {
			t.Errorf("%v is %q, want %q", value, got, want)
		}
	}
	for value, want := range map[int64]string{0: "0", 999: "999", 1000: "1\u202f000", 1234567: "1\u202f234\u202f567", -1234: "−1\u202f234"} {
		if got := number(value); got != want {
			t.Errorf("%d is %q, want %q", value, got, want)
		}
	}
	for value, want := range map[int64]string{0: "0 B", 1023: "1\u202f023 B", 1536: "1.5 KiB", 5 << 20: "5.0 MiB"} {
		if got := size(value); got != want {
			t.Errorf("%d bytes are %q, want %q", value, got, want)
		}
	}
	if got, want := short(`"<x>-and-much-more`), `<code title="&#34;&lt;x&gt;-and-much-more">&#34;&lt;x&gt;-and…</code>`; string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := badge("no such tone", "<b>"), `<span class="badge idle"><span aria-hidden="true">○</span> &lt;b&gt;</span>`; string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := Href(Path("tasks", "a/b?c", "x")), "/console/tasks/a%2Fb%3Fc/x"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestBarsHaveOneScale(t *testing.T) {
	got := bars([]*evidencev1.ClassCount{
		{Class: "MISSING", Found: 200, Repaired: 150, Reported: 50}, {Class: "STALE", Found: 1_00, Repaired: 100}, {Class: "EXTRA_ROW", Found: 0},
	})
	if len(got) != 3 || len(got[0].Parts) != 2 || len(got[1].Parts) != 1 || len(got[2].Parts) != 0 {
		t.Fatalf("the bars are %v", got)
	}
	if a, b := got[0].Parts[0], got[0].Parts[1]; a != (barPart{"repaired", 150, 0, 75}) || b != (barPart{"reported", 50, 75, 25}) {
		t.Errorf("the first bar is %v %v", a, b)
	}
	if c := got[1].Parts[0]; c != (barPart{"repaired", 100, 0, 50}) {
		t.Errorf("the second bar is %v", c)
	}
	million := bars([]*evidencev1.ClassCount{{Class: "MISSING", Found: 1_000_000, Repaired: 999_999, Reported: 1}})
	if last := million[0].Parts[1]; last.Width <= 0 {
		t.Errorf("one row among a million has the width %v", last.Width)
	}
}
