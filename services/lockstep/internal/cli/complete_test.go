package cli

import (
	"slices"
	"strings"
	"testing"
)

// complete gives what the shell is offered.
func (w *world) complete(t *testing.T, args ...string) []string {
	t.Helper()
	if code := w.run(t, append([]string{"__complete"}, args...)...); code != exitDone {
		t.Fatalf("exit code %d: %s", code, w.err.String())
	}
	var words []string
	for line := range strings.Lines(w.out.String()) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, ":") {
			words = append(words, line)
		}
	}
	return words
}

func TestCompletion(t *testing.T) {
	tasks := `{"tasks":[` + task("RUNNING", "") + `]}`
	w := setup(t, map[string]string{
		"GET /v1/tasks?page_size=50": tasks,
		"GET /v1/tasks?page_size=50&states=TASK_STATE_QUEUED&states=TASK_STATE_DISPATCHED&states=TASK_STATE_RUNNING": tasks,
		"GET /v1/work?page_size=50":          `{"work":[{"taskId":"w1","state":"WORK_STATE_PARKED","collectionId":"f"}]}`,
		"GET /v1/refresh/tasks?page_size=50": `{"tasks":[{"taskId":"r1","state":"REFRESH_STATE_FAILED","businessKey":"k"}]}`,
	})
	for _, c := range []struct {
		args string
		want []string
	}{
		{"task show ", []string{taskID + "\tRUNNING enrolment"}},
		{"task watch 0190", []string{taskID + "\tRUNNING enrolment"}},
		{"task watch 9", nil},
		{"evidence export ", []string{taskID + "\tRUNNING enrolment"}},
		{"work show ", []string{"w1\tPARKED f"}},
		{"refresh force ", []string{"r1\tFAILED k"}},
		{"refresh list --state ", []string{"PENDING", "RUNNING", "SUCCESS", "FAILED", "CANCELLED"}},
		{"task list --state ", []string{"QUEUED", "DISPATCHED", "RUNNING", "COMPLETED", "PARTIAL", "FAILED", "CANCELLED"}},
		{"work outcomes x --class ", []string{"MISSING", "STALE", "HASH_CONFLICT", "TOMBSTONE", "LOCAL_AHEAD", "EXTRA_ROW", "REVISION_ZERO", "QUARANTINED"}},
		{"refresh submit --projection ", []string{"bills", "scores"}},
	} {
		if got := w.complete(t, strings.Split(c.args, " ")...); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.args, got, c.want)
		}
	}
	t.Run("without a service nothing is offered, and nothing breaks", func(t *testing.T) {
		delete(w.env, envToken)
		if got := w.complete(t, "task", "show", ""); len(got) != 0 {
			t.Errorf("got %q", got)
		}
	})
	t.Run("for every shell", func(t *testing.T) {
		for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
			if code := w.run(t, "completion", shell); code != exitDone || !strings.Contains(w.out.String(), "__complete") {
				t.Errorf("%s: exit code %d, %d bytes", shell, code, w.out.Len())
			}
		}
	})
}

func TestExitCodesAreDocumentedInOnePlace(t *testing.T) {
	w := setup(t, nil)
	if code := w.run(t, "help", "exit-codes"); code != exitDone || w.out.String() == "" {
		t.Fatalf("exit code %d: %s", code, w.err.String())
	}
	for code, begins := range map[int]string{exitDone: "done:", exitDiffers: "it ran to its end", exitRefused: "the service understood and refused", exitError: "it did not work"} {
		if want := "  " + string(rune('0'+code)) + "  " + begins; !strings.Contains(w.out.String(), want) {
			t.Errorf("%q is not in\n%s", want, w.out.String())
		}
	}
	w.run(t, "help")
	if !strings.Contains(w.out.String(), "lockstep help exit-codes") {
		t.Error("the first help does not name it")
	}
}
