package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRefresh(t *testing.T) {
	file := filepath.Join(t.TempDir(), "range.json")
	if err := os.WriteFile(file, []byte(`{"month_from":"202611"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const failed = `{"taskId":"r1","projection":"bills","mode":"EXISTING_ONLY","state":"REFRESH_STATE_FAILED","requestGeneration":"2","runningGeneration":"1",` +
		`"retryCount":3,"maxRetry":3,"dueAt":"2026-11-30T12:00:00Z","businessKey":"k","code":"LOCATOR_MISSING"}`
	submitted := func(outcome string) string {
		return `{"submission":{"taskId":"r1","businessKey":"k","generation":"2","outcome":"` + outcome + `","code":"","message":""}}`
	}
	now := func(outcome string) string {
		return strings.TrimSuffix(submitted("ADVANCED"), "}") + `,"outcome":"` + outcome + `"}`
	}
	for _, c := range []struct {
		args, asked, answer, says string
		code                      int
	}{
		{"submit --projection bills --payload @" + file + " --key k --event e --replace", `POST /v1/refresh/tasks {"request":{"projection":"bills","payload":"{\"month_from\":\"202611\"}","businessKey":"k","sourceEventId":"e","replace":true}}`, submitted("CREATED"), "CREATED", exitDone},
		{"submit --projection bills --payload {}", `POST /v1/refresh/tasks {"request":{"projection":"bills","payload":"{}"}}`, submitted("REFUSED"), "REFUSED", exitRefused},
		{"now --projection scores --payload {}", `POST /v1/refresh/now {"request":{"projection":"scores","payload":"{}"}}`, now("DONE"), "DONE", exitDone},
		{"now --projection scores --payload {}", `POST /v1/refresh/now {"request":{"projection":"scores","payload":"{}"}}`, now("FAILED"), "FAILED", exitDiffers},
		{"now --projection scores --payload {}", `POST /v1/refresh/now {"request":{"projection":"scores","payload":"{}"}}`, now("IN_PROGRESS"), "IN_PROGRESS", exitDiffers},
		{"now --projection scores --payload {}", `POST /v1/refresh/now {"request":{"projection":"scores","payload":"{}"}}`, now("REFUSED"), "REFUSED", exitRefused},
		{"list --state failed --projection bills --key k", "GET /v1/refresh/tasks?business_key=k&page_size=50&projection=bills&states=REFRESH_STATE_FAILED", `{"tasks":[` + failed + `]}`, "r1    bills       EXISTING_ONLY  FAILED  1/2         3/3", exitDone},
		{"show r1", "GET /v1/refresh/tasks/r1", `{"task":` + failed + `,"counts":{"updated":"7"},"scopes":"3","scopesDone":"2","scopesFailed":"1"}`, "3, 2 done, 1 failed", exitDone},
		{"scopes r1 --state failed", "GET /v1/refresh/tasks/r1/scopes?page_size=50&states=SCOPE_STATE_FAILED", `{"scopes":[{"id":"17","month":202611,"state":"SCOPE_STATE_FAILED","tries":3,"code":"LOCATOR_MISSING"}]}`, "17     202611  FAILED  3", exitDone},
		{"retry --key k --code c", `POST /v1/refresh/tasks:retry {"taskCodes":["c"],"businessKeys":["k"]}`, `{"taskIds":["r1"]}`, "woken: r1", exitDone},
		{"force r1 --reason why", `POST /v1/refresh/tasks/r1:force {"reason":"why"}`, `{"task":` + failed + `}`, "r1", exitDone},
		{"cancel r1", `POST /v1/refresh/tasks/r1:cancel {}`, `{"task":` + failed + `}`, "r1", exitDone},
		{"reopen r1", `POST /v1/refresh/tasks/r1:reopen {}`, `409 {"code":"INVALID_ARGUMENT","message":"it is not cancelled"}`, "", exitRefused},
	} {
		t.Run(c.args, func(t *testing.T) {
			path, _, _ := strings.Cut(c.asked, " {")
			w := setup(t, map[string]string{path: c.answer})
			code := w.run(t, append([]string{"refresh"}, strings.Fields(c.args)...)...)
			if code != c.code || !strings.Contains(w.out.String(), c.says) {
				t.Errorf("exit code %d, want %d:\n%s%s", code, c.code, w.out.String(), w.err.String())
			}
			if len(w.asked) != 1 || strings.ReplaceAll(compact(w.asked[0]), " ", "") != strings.ReplaceAll(c.asked, " ", "") {
				t.Errorf("asked %q, want %q", w.asked, c.asked)
			}
		})
	}
	t.Run("a selector that names nothing asks nothing", func(t *testing.T) {
		w := setup(t, nil)
		if code := w.run(t, "refresh", "retry"); code != exitError || len(w.asked) > 0 {
			t.Errorf("exit code %d, asked %q", code, w.asked)
		}
	})
}
