package cli

import (
	"strings"
	"testing"
)

func TestAllPages(t *testing.T) {
	first := `{"tasks":[` + task("RUNNING", "") + `,` + task("PARTIAL", "") + `], "nextPageToken":"n"}`
	second := `{"tasks":[` + strings.ReplaceAll(task("QUEUED", ""), `","`, "\",\n\"") + `],"nextPageToken":""}`
	answers := map[string]string{"GET /v1/tasks?page_size=500": first, "GET /v1/tasks?page_size=500&page_token=n": second}
	t.Run("as JSON Lines", func(t *testing.T) {
		w := setup(t, answers)
		if code := w.run(t, "task", "list", "--all", "--json"); code != exitDone {
			t.Fatalf("exit code %d: %s", code, w.err.String())
		}
		if want := task("RUNNING", "") + "\n" + task("PARTIAL", "") + "\n" + task("QUEUED", "") + "\n"; w.out.String() != want {
			t.Errorf("got\n%swant\n%s", w.out.String(), want)
		}
	})
	t.Run("as one table", func(t *testing.T) {
		w := setup(t, answers)
		if code := w.run(t, "task", "list", "--all"); code != exitDone {
			t.Fatalf("exit code %d: %s", code, w.err.String())
		}
		if heads, rows := strings.Count(w.out.String(), "CONSUMER"), strings.Count(w.out.String(), taskID); heads != 1 || rows != 3 || strings.Contains(w.out.String(), "more:") {
			t.Errorf("%d heads, %d rows:\n%s", heads, rows, w.out.String())
		}
	})
	t.Run("with a page size of one's own, from a page on", func(t *testing.T) {
		w := setup(t, map[string]string{"GET /v1/grants?page_size=2&page_token=n": `{"grants":[{"consumer":"c"}]}`})
		if code := w.run(t, "grant", "list", "--all", "--limit", "2", "--page", "n", "--json"); code != exitDone || w.out.String() != `{"consumer":"c"}`+"\n" {
			t.Errorf("exit code %d: %s%s", code, w.out.String(), w.err.String())
		}
	})
	t.Run("a page that fails is no end", func(t *testing.T) {
		w := setup(t, map[string]string{"GET /v1/tasks?page_size=500": first, "GET /v1/tasks?page_size=500&page_token=n": `503 {"code":"UNAVAILABLE","message":"away"}`})
		if code := w.run(t, "task", "list", "--all", "--json"); code != exitError || !strings.Contains(w.err.String(), "UNAVAILABLE: away") {
			t.Errorf("exit code %d: %s", code, w.err.String())
		}
	})
	t.Run("a list in a circle is no list", func(t *testing.T) {
		w := setup(t, map[string]string{
			"GET /v1/tasks?page_size=500":              `{"tasks":[],"nextPageToken":"n"}`,
			"GET /v1/tasks?page_size=500&page_token=n": `{"tasks":[],"nextPageToken":"n"}`,
		})
		if code := w.run(t, "task", "list", "--all"); code != exitError || len(w.asked) != 2 {
			t.Errorf("exit code %d after %d calls", code, len(w.asked))
		}
	})
	t.Run("an empty list has no line", func(t *testing.T) {
		w := setup(t, map[string]string{"GET /v1/tasks?page_size=500": `{"tasks":[],"nextPageToken":""}`})
		if code := w.run(t, "task", "list", "--all", "--json"); code != exitDone || w.out.String() != "" {
			t.Errorf("exit code %d: %q", code, w.out.String())
		}
	})
}
