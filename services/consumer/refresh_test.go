package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/services/consumer/internal/centertest"
)

// refreshWorld is the whole consumer with both projections, and a connection to look with.
type refreshWorld struct {
	*service
	conn *pgx.Conn
}

func setupRefresh(t *testing.T) *refreshWorld {
	t.Helper()
	w := &refreshWorld{service: setup(t)}
	w.extra = `
refresh:
  projections: [bills, scores]
  kick: {stages: {scores: {enabled: true, grey: 100}}}
  dependents: [{projection: scores, id: candidate.id, month: period}]
`
	w.start()
	conn, err := pgx.Connect(t.Context(), w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	w.conn = conn
	return w
}

// ask calls a route and returns the status code and the answer's JSON.
func (w *refreshWorld) ask(method, path, body string) (int, map[string]any) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://"+w.http+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is only read
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		w.t.Fatal(err)
	}
	var answer map[string]any
	if err := json.Unmarshal(text.Bytes(), &answer); err != nil {
		answer = map[string]any{"text": text.String()}
	}
	return resp.StatusCode, answer
}

// tables gives every row of every table, with the transaction that wrote it.
func (w *refreshWorld) tables() map[string]string {
	w.t.Helper()
	rows, err := w.conn.Query(w.t.Context(), `SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('lockstep', 'bills', 'scores', 'hall')
		AND tablename NOT LIKE 'audit\_seal%'`) // the audit log is sealed by a loop of its own
	if err != nil {
		w.t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 15 {
		w.t.Fatalf("tables %v, %v", names, err)
	}
	out := map[string]string{}
	for _, name := range names {
		var all string
		err := w.conn.QueryRow(w.t.Context(), `SELECT COALESCE(string_agg(xmin::text || ctid::text || t::text, E'\n' ORDER BY ctid), '') FROM `+name+` t`).Scan(&all)
		if err != nil {
			w.t.Fatal(err)
		}
		out[name] = all
	}
	return out
}

func (w *refreshWorld) exec(sql string) {
	w.t.Helper()
	if _, err := w.conn.Exec(w.t.Context(), sql); err != nil {
		w.t.Fatal(err)
	}
}

// until asks the database until a count is 1; operators' calls are counted.
func (w *refreshWorld) until(sql string) {
	w.t.Helper()
	for start, n := time.Now(), 0; n != 1; {
		if err := w.conn.QueryRow(w.t.Context(), sql).Scan(&n); err != nil || time.Since(start) > 30*time.Second {
			w.t.Fatalf("%s: %d, %v", sql, n, err)
		}
	}
}

func scoreRequest(candidate int) string {
	payload := fmt.Sprintf(`{"mode":"REVIEW_CREATE","scopes":[{"candidate_id":%d,"period":202607}]}`, candidate)
	quoted, _ := json.Marshal(payload)
	return `{"request":{"projection":"scores","payload":` + string(quoted) + `}}`
}

// at walks an answer's members.
func at(answer any, path ...string) any {
	for _, name := range path {
		object, _ := answer.(map[string]any)
		answer = object[name]
	}
	return answer
}

func TestRefreshService(t *testing.T) {
	w := setupRefresh(t)
	w.exec(`INSERT INTO scores.candidate_fact (candidate_id, id, period, dimension, value) VALUES (1, 1, 202607, 8, 70), (2, 1, 202607, 1, 30);
		INSERT INTO bills.bill_snapshot (station_id, id, diff_id, bill_month, partner_org_id, planned_amount, difference_amount)
			SELECT s, s * 10, s * 10, 202607, 3, 100, -100 FROM generate_series(1, 3) s`)

	code, now := w.ask(http.MethodPost, "/v1/refresh/now", scoreRequest(1))
	task, _ := at(now, "task", "taskId").(string)
	if code != http.StatusOK || at(now, "outcome") != "DONE" || at(now, "task", "state") != "REFRESH_STATE_SUCCESS" || task == "" {
		t.Fatalf("refresh now: %d %v", code, now)
	}
	if code, got := w.ask(http.MethodPost, "/v1/refresh/tasks", scoreRequest(1)); code != http.StatusOK || at(got, "submission", "outcome") != "ADVANCED" {
		t.Errorf("submit: %d %v", code, got)
	}
	w.until(`SELECT count(*) FROM lockstep.refresh_task t JOIN lockstep.refresh_progress p USING (task_id) WHERE t.state = 'SUCCESS' AND p.running_generation = 2`)
	if _, got := w.ask(http.MethodGet, "/v1/refresh/tasks/"+task, ""); at(got, "counts", "unchanged") != "1" || at(got, "cursor") != "1:202607" {
		t.Errorf("the second generation, which a kick worked on: %v", got)
	}

	t.Run("reads_write_nothing", func(t *testing.T) {
		before := w.tables()
		for path, want := range map[string]string{
			"/v1/refresh/tasks":                     `"taskId":"` + task,
			"/v1/refresh/tasks?states=2":            `"tasks":[]`,
			"/v1/refresh/tasks/" + task:             `"scopesDone":"1"`,
			"/v1/refresh/tasks/" + task + "/scopes": `"state":"SCOPE_STATE_DONE"`,
			"/v1/bills?page_size=2":                 `"diffId":"30"`,
			"/v1/bills?filter.station_ids=2":        `"diffId":"20"`,
			"/v1/bills/stations":                    `"plannedAmount":"100.00"`,
			"/v1/bills/export":                      `bill_month,station_id,diff_id`,
			"/v1/scores/1/202607":                   `"fit":"70.00"`,
			"/v1/scores/2/202607":                   `"found":false`, // facts, and no row
			"/v1/scores/99/202607":                  `"found":false`,
		} {
			for range 2 {
				if code, body := w.get(path, w.token); code != http.StatusOK || !strings.Contains(strings.ReplaceAll(body, ": ", ":"), want) {
					t.Errorf("%s: %d %s, want %s", path, code, body, want)
				}
			}
		}
		for name, rows := range w.tables() {
			if rows != before[name] {
				t.Errorf("%s was written by a read", name)
			}
		}
	})

	t.Run("lists_go_on_where_they_stopped", func(t *testing.T) {
		w.ask(http.MethodPost, "/v1/refresh/now", scoreRequest(2))
		var seen []string
		path := "/v1/refresh/tasks?page_size=1"
		for token := ""; ; {
			_, got := w.ask(http.MethodGet, path+"&page_token="+token, "")
			tasks, _ := at(got, "tasks").([]any)
			for _, one := range tasks {
				seen = append(seen, at(one, "taskId").(string))
			}
			if token, _ = at(got, "nextPageToken").(string); token == "" {
				break
			}
			if code, got := w.ask(http.MethodGet, path+"&projection=bills&page_token="+token, ""); code != http.StatusBadRequest || at(got, "code") != "CURSOR_INVALID" {
				t.Errorf("another list took the token: %d %v", code, got)
			}
		}
		if len(seen) != 2 || seen[1] != task || slices.Index(seen, task) != 1 {
			t.Errorf("seen %v", seen)
		}
	})

	t.Run("what_names_nothing_or_does_not_parse_is_refused", func(t *testing.T) {
		before := w.tables()
		for _, test := range []struct{ path, body, code string }{
			{"/v1/refresh/tasks:retry", `{}`, "INVALID_ARGUMENT"},
			{"/v1/refresh/tasks:retry", `{"taskCodes":["",  " "]}`, "INVALID_ARGUMENT"},
			{"/v1/refresh/tasks:retry", `{"taskCodes":`, "INVALID_ARGUMENT"},
			{"/v1/refresh/tasks:retry", `{"taskCode":["a"]}`, "INVALID_ARGUMENT"},
			{"/v1/refresh/tasks:retry", `{"businessKeys":["none"]}`, "TASK_NOT_FOUND"},
			{"/v1/refresh/run", `{"maxClaims":501}`, "INVALID_ARGUMENT"},
			{"/v1/refresh/run", `{"maxTaskCount":1}`, "INVALID_ARGUMENT"},
			{"/v1/refresh/tasks", `{"request":{"projection":"scores","payload":"{"}}`, "INVALID_ARGUMENT"},
			{"/v1/refresh/tasks", `{"request":{"projection":"cats","payload":"{}"}}`, "INVALID_ARGUMENT"},
			{"/v1/refresh/tasks/" + task + ":force", `{}`, "TASK_TERMINAL"},
			{"/v1/refresh/tasks/" + task + ":reopen", `{}`, "TASK_TERMINAL"},
			{"/v1/refresh/tasks/0123:cancel", `{}`, "INVALID_ARGUMENT"},
			{"/v1/refresh/tasks/00000000000000000000000000000001:cancel", `{}`, "TASK_NOT_FOUND"},
		} {
			if code, got := w.ask(http.MethodPost, test.path, test.body); code < 400 || at(got, "code") != test.code {
				t.Errorf("%s %s: %d %v, want %s", test.path, test.body, code, got, test.code)
			}
		}
		for name, rows := range w.tables() {
			// That somebody was refused stands in the audit log.
			if rows != before[name] && name != "lockstep.audit" {
				t.Errorf("%s was written by a refused call: %s, before %s", name, rows, before[name])
			}
		}
	})

	t.Run("a_run_tells_what_failed", func(t *testing.T) {
		w.exec(`UPDATE lockstep.refresh_task SET state = 'PENDING', payload = '{"mode":"REVIEW_CREATE","scopes":[{"candidate_id":5,"period":202607}]}',
			request_generation = request_generation + 1, due_at = now() WHERE task_id = '` + task + `'`)
		code, got := w.ask(http.MethodPost, "/v1/refresh/run", `{}`)
		if code != http.StatusOK || at(got, "ok") != false || at(got, "failed") != float64(1) {
			t.Errorf("run: %d %v", code, got)
		}
		_, shown := w.ask(http.MethodGet, "/v1/refresh/tasks/"+task, "")
		if at(shown, "task", "code") != "KEY_RANGE_MISMATCH" || at(shown, "task", "waitingBecause") != "KEY_RANGE_MISMATCH" {
			t.Errorf("the task whose payload is another's: %v", shown)
		}
		code, got = w.ask(http.MethodPost, "/v1/refresh/tasks/"+task+":cancel", `{"reason":"wrong"}`)
		if code != http.StatusOK || at(got, "task", "state") != "REFRESH_STATE_CANCELLED" {
			t.Errorf("cancel: %d %v", code, got)
		}
		code, got = w.ask(http.MethodPost, "/v1/refresh/tasks", scoreRequest(1))
		if code != http.StatusOK || at(got, "submission", "outcome") != "REFUSED" || at(got, "submission", "code") != "CANCELLED_BY_OPERATOR" {
			t.Errorf("submit to a cancelled task: %d %v", code, got)
		}
	})
}

// TestReconcileRefreshesWhatDependsOnIt: a repaired record's content names a
// candidate and a period, whose score is refreshed through the same door.
func TestReconcileRefreshesWhatDependsOnIt(t *testing.T) {
	w := setupRefresh(t)
	w.exec(`INSERT INTO scores.candidate_fact (candidate_id, id, period, dimension, value) VALUES (7, 1, 202607, 8, 70)`)
	w.center.Put("0123456789abcdef", centertest.Record{Revision: 3, Content: `{"candidate":{"id":7},"period":"2026-07-03"}`})
	w.center.Put("0123456789abcdeg", centertest.Record{Revision: 1, Content: `{"about":"nobody"}`})
	if err := w.dispatch(w.centerKey, w.center.Task()); err != nil {
		t.Fatal(err)
	}
	w.until(`SELECT count(*) FROM scores.candidate_score WHERE candidate_id = 7 AND period = 202607 AND fit = 70`)
	w.until(`SELECT count(*) FROM lockstep.refresh_task WHERE requested_by = 'reconcile' AND projection = 'scores'`)

	// The center has it no more: the row is retired, and the score is looked at again.
	w.center.Drop("0123456789abcdef")
	w.exec(`DELETE FROM scores.candidate_fact WHERE candidate_id = 7`)
	if err := w.dispatch(w.centerKey, w.center.Task()); err != nil {
		t.Fatal(err)
	}
	w.until(`SELECT count(*) FROM hall.answer_projection WHERE retired_at IS NOT NULL`)
	w.until(`SELECT count(*) FROM scores.candidate_score WHERE candidate_id = 7 AND fit IS NULL`)
}

func TestRefreshCommandTellsFailuresByItsError(t *testing.T) {
	dsn := pgtest.Consumer(t)
	path := filepath.Join(t.TempDir(), "consumer.yaml")
	text := strings.Replace(good, "postgres://localhost/hall", dsn, 1) + "refresh: {projections: [scores]}\nlog: {level: error}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // the test is over
	once := func(want string, selector ...string) error {
		t.Helper()
		var out bytes.Buffer
		err := command(t.Context(), append([]string{"-config", path, "refresh"}, selector...), &out)
		if !strings.HasPrefix(out.String(), want) {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
		return err
	}
	if err := once("claims=0 "); err != nil {
		t.Errorf("with nothing to do: %v", err)
	}
	_, err = conn.Exec(t.Context(), `INSERT INTO lockstep.refresh_task (task_id, projection, task_code, business_key, custom_key, mode, payload, range_hash, max_retry)
		VALUES (gen_random_uuid(), 'scores', repeat('a', 64), 'k', true, 'EXISTING_ONLY', '{"scopes":7}', decode(repeat('00', 32), 'hex'), 3)`)
	if err != nil {
		t.Fatal(err)
	}
	for _, selector := range []string{`{"keys":["k"]`, `{}`, `{"keys":[" "]}`, `{"taskCodes":["k"]}`} {
		if err := once("", selector); fault.ReasonOf(err) != fault.InvalidArgument {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", selector, err)
		}
	}
	if err := once("claims=0 ", `{"keys":["another"]}`); fault.ReasonOf(err) != fault.TaskNotFound {
		t.Errorf("a selector of no task: %v", err)
	}
	var attempts int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM lockstep.refresh_progress`).Scan(&attempts); err != nil || attempts != 0 {
		t.Errorf("%d claims by selectors that name nothing, %v", attempts, err)
	}
	if err := once("claims=1 succeeded=0 continued=0 failed=1 ", `{"keys":["k"]}`); err == nil {
		t.Error("a run that failed a task ended without an error")
	}
}
