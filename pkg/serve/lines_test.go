package serve

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// read reads what came before the connection's end, and says whether it broke off.
func (w *world) read(t *testing.T, path string, header http.Header) (got answer, broken bool) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addressOf(w.server.web)+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(response.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(text)}, err != nil
}

// ids are the tasks of the lines, and the last line's error.
func ids(t *testing.T, text string) (all []int, problem map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		var row struct {
			TaskID string         `json:"taskId"`
			Error  map[string]any `json:"error"`
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil || problem != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if row.Error != nil {
			problem = row.Error
			continue
		}
		n, err := strconv.Atoi(row.TaskID)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all, problem
}

func TestAListInLines(t *testing.T) {
	w := setup(t, nil)
	for name, c := range map[string]struct {
		accept, query string
		first, last   int
		pages         int64
	}{
		"through_all_pages":           {"application/jsonl", "", 1, 450, 3},
		"by_its_other_name":           {"application/x-ndjson", "", 1, 450, 3},
		"among_others":                {"text/html, application/jsonl;q=0.9, application/json;q=0.1", "", 1, 450, 3},
		"with_a_page_size_of_its_own": {"application/jsonl", "?page_size=100", 1, 450, 5},
		"going_on_somewhere":          {"application/jsonl", "?page_token=440", 441, 450, 1},
		"that_is_empty":               {"application/jsonl", "?consumer=none", 1, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w.handler.pages.Store(0)
			got, broken := w.read(t, "/v1/tasks"+c.query, bearerHeader("Accept", c.accept))
			all, problem := ids(t, got.body)
			if got.status != http.StatusOK || broken || problem != nil || len(all) != c.last-c.first+1 {
				t.Fatalf("%d, broken %t, %d rows, problem %v", got.status, broken, len(all), problem)
			}
			for i, n := range all {
				if n != c.first+i {
					t.Fatalf("row %d is %d", i, n)
				}
			}
			if media := got.header.Get("Content-Type"); !strings.Contains(c.accept, media) {
				t.Errorf("Content-Type %q", media)
			}
			if pages := w.handler.pages.Load(); pages != c.pages {
				t.Errorf("%d pages", pages)
			}
		})
	}
}

func TestAListInLinesThatBreaksIsNoWholeList(t *testing.T) {
	w := setup(t, nil)
	for consumer, want := range map[string]struct {
		rows int
		code string
	}{"breaks": {400, "INTERNAL"}, "circles": {1, "INTERNAL"}} {
		got, broken := w.read(t, "/v1/tasks?consumer="+consumer, bearerHeader("Accept", "application/jsonl"))
		all, problem := ids(t, got.body)
		if !broken || len(all) != want.rows || problem["code"] != want.code {
			t.Errorf("%s: broken %t, %d rows, problem %v", consumer, broken, len(all), problem)
		}
		if strings.Contains(got.body, "secret") {
			t.Errorf("%s: the detail is told", consumer)
		}
	}
}

func TestWhatIsNoListIsRefused(t *testing.T) {
	w := setup(t, nil)
	for name, c := range map[string]struct {
		path, accept, token string
		status              int
		code                string
	}{
		"one_object":         {"/v1/tasks/t1", "application/jsonl", annsToken, 406, "INVALID_ARGUMENT"},
		"a_stream":           {"/v1/tasks/t1:watch", "application/jsonl", annsToken, 400, "INVALID_ARGUMENT"},
		"a_failing_list":     {"/v1/tasks?consumer=is+broken", "application/jsonl", annsToken, 500, "INTERNAL"},
		"a_refusal":          {"/v1/tasks/gone", "application/jsonl", annsToken, 404, "TASK_NOT_FOUND"},
		"an_unknown_route":   {"/v1/nothing", "application/jsonl", annsToken, 404, "NOT_FOUND"},
		"an_unknown_token":   {"/v1/tasks", "application/jsonl", "nobody", 401, "PERMISSION_DENIED"},
		"JSON_where_no_line": {"/v1/tasks?page_size=1", "application/json, application/jsonl", annsToken, 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, broken := w.read(t, c.path, http.Header{"Authorization": {"Bearer " + c.token}, "Accept": {c.accept}})
			var refusal problem
			if err := json.Unmarshal([]byte(got.body), &refusal); err != nil {
				t.Fatal(got.body)
			}
			if broken || got.status != c.status || string(refusal.Code) != c.code || got.header.Get("Content-Type") != jsonType {
				t.Errorf("%d, broken %t, %s", got.status, broken, got.body)
			}
		})
	}
}

// TestAFastReaderWaits: an operator's pace bounds the pages, and no row is lost.
func TestAFastReaderWaits(t *testing.T) {
	w := setup(t, nil)
	got, broken := w.read(t, "/v1/tasks?page_size=5", bearerHeader("Accept", "application/jsonl"))
	all, problem := ids(t, got.body)
	if broken || len(all) != 450 || problem != nil || w.handler.pages.Load() != 90 {
		t.Errorf("broken %t, %d rows, problem %v, %d pages", broken, len(all), problem, w.handler.pages.Load())
	}
}
