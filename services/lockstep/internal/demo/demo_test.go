package demo

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/lockstep/internal/world"
)

// mended is what the center shows of the first round of "enrolment".
func mended() *centerv1.Task {
	begin := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	return &centerv1.Task{
		TenantId: 101, CollectionId: "enrolment", State: evidencev1.TaskState_TASK_STATE_COMPLETED,
		CreatedAt: timestamppb.New(begin), EndedAt: timestamppb.New(begin.Add(3500 * time.Millisecond)),
		Progress: &centerv1.Progress{
			StartedAt: timestamppb.New(begin.Add(time.Second)), Fetched: 33, WireBytes: 61234,
			Counts: []*evidencev1.ClassCount{
				{Class: "MISSING", Found: 10, Repaired: 10},
				{Class: "STALE", Found: 8, Repaired: 8},
				{Class: "HASH_CONFLICT", Found: 6, Repaired: 6},
				{Class: "TOMBSTONE", Found: 4, Repaired: 4},
				{Class: "EXTRA_ROW", Found: 5, Retired: 5},
			},
		},
	}
}

func enrolment() world.Expected { return world.Forms()[1].Damage.Expect(1) }

func TestDeviations(t *testing.T) {
	t.Run("every_figure_as_expected", func(t *testing.T) {
		if got := taskResult(mended()).deviations(1, enrolment()); got != nil {
			t.Errorf("got %q", got)
		}
	})
	t.Run("each_wrong_figure_is_named", func(t *testing.T) {
		task := mended()
		task.State = evidencev1.TaskState_TASK_STATE_PARTIAL
		task.Progress.Counts[0] = &evidencev1.ClassCount{Class: "MISSING", Found: 10, Repaired: 9, Exhausted: 1}
		want := []string{
			"round 1, tenant 101, enrolment: state: expected COMPLETED, got PARTIAL",
			"round 1, tenant 101, enrolment: repaired: expected 28, got 27",
			"round 1, tenant 101, enrolment: deferred or exhausted: expected 0, got 1",
		}
		if got := taskResult(task).deviations(1, enrolment()); !reflect.DeepEqual(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a_form_without_a_task_is_named", func(t *testing.T) {
		got := deviations(Round{Round: 1, Tasks: []Task{taskResult(mended())}})
		want := []string{
			"round 1, tenant 101, course-feedback: expected a task, got none",
			"round 1, tenant 102, health-check: expected a task, got none",
			"round 1, tenant 102, parents-survey: expected a task, got none",
			"round 1: expected 4 tasks, got 1",
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestResultAsJSON(t *testing.T) {
	refresh := &Refresh{Requests: []RefreshRequest{requestResult(refreshed())}}
	refresh.add(refresh.Requests[0].RefreshFigures)
	result := Result{Rows: 20000, Seconds: 4.2, Rounds: []Round{{Round: 1, Tasks: []Task{taskResult(mended())}}}, Refresh: refresh}
	got, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"rows":20000,"seconds":4.2,"rounds":[{"round":1,"tasks":[{"tenant":101,"collection":"enrolment","state":"COMPLETED",` +
		`"found":{"EXTRA_ROW":5,"HASH_CONFLICT":6,"LOCAL_AHEAD":0,"MISSING":10,"REVISION_ZERO":0,"STALE":8,"TOMBSTONE":4},` +
		`"repaired":28,"retired":5,"quarantined":0,"report_only":0,"fetched":33,"wire_bytes":61234,"seconds":2.5}]}],` +
		`"refresh":{"scopes":12,"differences":73,"created":0,"updated":60,"unchanged":12,"missed":1,"seconds":0.35,` +
		`"requests":[{"mode":"EXISTING_ONLY","scopes":12,"differences":73,"created":0,"updated":60,"unchanged":12,"missed":1,"seconds":0.35}]}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestWriteRound(t *testing.T) {
	var out strings.Builder
	if err := WriteRound(&out, Round{Round: 1, Seconds: 3.21, Tasks: []Task{taskResult(mended())}}); err != nil {
		t.Fatal(err)
	}
	want := `        round 1  found  repaired  retired  reported  quarantined
        MISSING     10        10        ·         ·            ·
          STALE      8         8        ·         ·            ·
  HASH_CONFLICT      6         6        ·         ·            ·
      TOMBSTONE      4         4        ·         ·            ·
    LOCAL_AHEAD      ·         ·        ·         ·            ·
      EXTRA_ROW      5         ·        5         ·            ·
  REVISION_ZERO      ·         ·        ·         ·            ·
            all     33        28        5         ·            ·

tenant  form       state      open  fetched  over the wire  seconds
101     enrolment  COMPLETED  0     33       61.2 kB        2.50
61.2 kB in 3.21 s

`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 1234567: "1.2 MB", 5_000_000_000_000: "5 TB", 5_000_000_000_000_000: "5000 TB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

func TestProgress(t *testing.T) {
	running := mended()
	running.State, running.RowCount = evidencev1.TaskState_TASK_STATE_RUNNING, 5000
	running.Estimate = &centerv1.Estimate{ScannedPercent: 25}
	waiting := &centerv1.Task{TaskId: "b", TenantId: 102, CollectionId: "health-check", State: evidencev1.TaskState_TASK_STATE_QUEUED, WaitingBecause: "behind another task"}

	t.Run("a_terminal_has_one_line", func(t *testing.T) {
		var out strings.Builder
		p := NewProgress(&out, true)
		p.Show("round 1: ", []*centerv1.Task{running, waiting})
		p.Show("round 1: ", []*centerv1.Task{mended(), waiting})
		p.End()
		want := "\rround 1: 0 of 2 ended · enrolment running 25.0%" +
			"\rround 1: 1 of 2 ended · health-check queued    " +
			"\r                                           \r"
		if out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	})
	t.Run("elsewhere_a_line_tells_each_change", func(t *testing.T) {
		var out strings.Builder
		p := NewProgress(&out, false)
		p.Show("round 1: ", []*centerv1.Task{running, waiting})
		p.Show("round 1: ", []*centerv1.Task{running, waiting})
		p.Show("round 1: ", []*centerv1.Task{mended(), waiting})
		p.End()
		want := "round 1: tenant 101 enrolment RUNNING 20%\n" +
			"round 1: tenant 102 health-check QUEUED (behind another task)\n" +
			"round 1: tenant 101 enrolment COMPLETED\n"
		if out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	})
}

func TestUnlike(t *testing.T) {
	a, b := world.Ref{TenantID: 1, Key: world.Key{1}}, world.Ref{TenantID: 1, Key: world.Key{2}}
	got := unlike(2, "retired rows", []world.Ref{a}, []world.Ref{b})
	want := []string{
		"round 2, retired rows: expected tenant 1, answer 01000000000000000000000000000000, it is not among them",
		"round 2, retired rows: got tenant 1, answer 02000000000000000000000000000000, which was not expected",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := unlike(2, "retired rows", []world.Ref{a, b}, []world.Ref{b, a}); got != nil {
		t.Errorf("the order counts: %q", got)
	}
}
