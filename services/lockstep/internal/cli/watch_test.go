package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// watched runs `task watch` against streams that say one line a connection.
func watched(t *testing.T, lines ...string) (code int, w *world, opened int) {
	t.Helper()
	w = setup(t, nil)
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/tasks/"+taskID+":watch" || opened >= len(lines) {
			t.Errorf("asked for %s", r.URL.Path)
			return
		}
		line := lines[opened]
		opened++
		fmt.Fprint(out, line)
		if strings.HasPrefix(line, "{") {
			return
		}
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(server.Close)
	w.env[envCenter] = server.URL
	return w.run(t, "task", "watch", taskID), w, opened
}

func result(task string) string { return `{"result":{"task":` + task + `}}` + "\n" }

func TestAWatchGoesOnWhereAStreamBreaks(t *testing.T) {
	running := strings.TrimSuffix(task("RUNNING", ""), "}") + `,"estimate":{"scannedPercent":42.5,"rowsPerSecond":250,"scanEndsAt":"2026-11-30T12:01:00Z"}}`
	code, w, opened := watched(t,
		result(task("QUEUED", "")),
		" ", // cut in the middle
		result(running)+`{"error":{"code":14,"message":"the service stops; watch again","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"UNAVAILABLE"}]}}`,
		`{"error":{"code":14,"message":"the connection is draining"}}`,
		`{"error":{"code":8,"message":"too many","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"RATE_LIMITED"}]}}`,
		result(task("PARTIAL", "")),
	)
	if code != exitDiffers || opened != 6 {
		t.Errorf("exit code %d after %d streams: %s", code, opened, w.err.String())
	}
	want := "tenant 101 enrolment QUEUED\ntenant 101 enrolment RUNNING 40%\ntenant 101 enrolment PARTIAL\n"
	if w.err.String() != want {
		t.Errorf("progress\n%swant\n%s", w.err.String(), want)
	}
}

func TestAWatchEndsWhereTheTaskIsGone(t *testing.T) {
	code, w, opened := watched(t, result(task("RUNNING", "")),
		`{"error":{"code":5,"message":"there is no task","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"TASK_NOT_FOUND"}]}}`)
	if code != exitRefused || opened != 2 || !strings.Contains(w.err.String(), "TASK_NOT_FOUND: there is no task") {
		t.Errorf("exit code %d after %d streams: %s", code, opened, w.err.String())
	}
}

func TestManyTasksAreWatchedAFewAtATime(t *testing.T) {
	const tasks = 11
	w := setup(t, nil)
	open, most := make(chan struct{}, tasks), make(chan int, tasks)
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		open <- struct{}{}
		most <- len(open)
		id := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v1/tasks/"), ":watch")
		fmt.Fprint(out, result(strings.ReplaceAll(task("COMPLETED", ""), taskID, id)))
		<-open
	}))
	t.Cleanup(server.Close)
	w.env[envCenter] = server.URL
	args := []string{"task", "watch"}
	for i := range tasks {
		args = append(args, fmt.Sprintf("%032x", i))
	}
	if code := w.run(t, args...); code != exitDone {
		t.Fatalf("exit code %d: %s", code, w.err.String())
	}
	close(most)
	for n := range most {
		if n > streams {
			t.Errorf("%d streams at once", n)
		}
	}
	for i := range tasks {
		if !strings.Contains(w.out.String(), fmt.Sprintf("%032x", i)) {
			t.Errorf("task %d is not shown", i)
		}
	}
}
