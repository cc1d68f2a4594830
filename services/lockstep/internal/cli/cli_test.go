package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/pkg/identity"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

const taskID = "0190f5c27cde7a4f8a9b1c2d3e4f5061"

// world is a service that answers from a table, and what was asked of it.
type world struct {
	answers map[string]string // "METHOD /path?query" → body, "409 body" for a refusal
	asked   []string
	env     map[string]string
	out     strings.Builder
	err     strings.Builder
}

func setup(t *testing.T, answers map[string]string) *world {
	t.Helper()
	w := &world{answers: answers}
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	w.env = map[string]string{envCenter: server.URL, envConsumer: server.URL, envToken: "secret"}
	return w
}

func (w *world) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	asked := r.Method + " " + r.URL.RequestURI()
	w.asked = append(w.asked, strings.TrimSpace(asked+" "+string(body)))
	if r.Header.Get("Authorization") != "Bearer secret" {
		out.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(out, `{"code":"PERMISSION_DENIED","message":"the operator's token is not known"}`)
		return
	}
	answer, ok := w.answers[asked]
	if !ok {
		out.WriteHeader(http.StatusNotFound)
		fmt.Fprint(out, `{"code":"TASK_NOT_FOUND","message":"there is no such task"}`)
		return
	}
	var code int
	if n, _ := fmt.Sscanf(answer, "%d ", &code); n == 1 {
		out.WriteHeader(code)
		answer = answer[4:]
	}
	fmt.Fprint(out, answer)
}

func (w *world) run(t *testing.T, args ...string) int {
	t.Helper()
	w.out.Reset()
	w.err.Reset()
	return Run(t.Context(), args, Environment{
		Out: &w.out, Err: &w.err, Getenv: func(name string) string { return w.env[name] },
		Now: func() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) },
	})
}

func task(state, code string) string {
	return fmt.Sprintf(`{"taskId":%q,"consumer":"svc-hall","tenantId":"101","collectionId":"enrolment","scope":"SCOPE_COLLECTION","mode":"MODE_REPAIR",`+
		`"state":"TASK_STATE_%s","code":%q,"attempt":1,"createdAt":"2026-11-30T12:00:00Z"}`, taskID, state, code)
}

func TestExitCodes(t *testing.T) {
	create := []string{"task", "create", "--consumer", "svc-hall", "--tenant", "101", "--collection", "enrolment"}
	wait := append(append([]string{}, create...), "--wait")
	answer := func(made, ended string) map[string]string {
		return map[string]string{
			"POST /v1/tasks":                     `{"tasks":[{"task":` + made + `}]}`,
			"GET /v1/tasks/" + taskID:            `{"task":` + ended + `}`,
			"GET /v1/tasks/" + taskID + ":watch": `{"result":{"task":` + ended + `}}` + "\n",
		}
	}
	for _, c := range []struct {
		name    string
		answers map[string]string
		args    []string
		want    int
	}{
		{"made", answer(task("QUEUED", ""), ""), create, exitDone},
		{"refused_at_once", answer(task("FAILED", "GRANT_REVOKED"), ""), create, exitRefused},
		{"completed", answer(task("QUEUED", ""), task("COMPLETED", "")), wait, exitDone},
		{"partial", answer(task("QUEUED", ""), task("PARTIAL", "")), wait, exitDiffers},
		{"cancelled", answer(task("QUEUED", ""), task("CANCELLED", "")), wait, exitRefused},
		{"resource_limit", answer(task("QUEUED", ""), task("FAILED", "RESOURCE_LIMIT")), wait, exitRefused},
		{"never_dispatched", answer(task("QUEUED", ""), task("FAILED", "DISPATCH_FAILED")), wait, exitError},
		{"left_out", map[string]string{
			"POST /v1/tasks": `{"leftOut":[{"tenantId":"101","collectionId":"enrolment","code":"RESOURCE_LIMIT"}]}`,
		}, []string{"task", "create", "--consumer", "svc-hall", "--all", "--wait"}, exitDiffers},
		{"refused_by_the_service", map[string]string{"POST /v1/tasks": `400 {"code":"SCOPE_MISMATCH","message":"no"}`}, create, exitRefused},
		{"the_service_broke", map[string]string{"POST /v1/tasks": `500 {"code":"INTERNAL","message":"internal error"}`}, create, exitError},
		{"no_such_task", nil, []string{"task", "show", taskID}, exitRefused},
		{"shown", answer("", task("PARTIAL", "")), []string{"task", "show", taskID}, exitDone},
		{"watched", answer("", task("PARTIAL", "")), []string{"task", "watch", taskID}, exitDiffers},
		{"watched_nothing", nil, []string{"task", "watch", taskID}, exitRefused},
		{"unknown_command", nil, []string{"task", "destroy"}, exitError},
		{"unknown_flag", nil, []string{"version", "--loud"}, exitError},
		{"too_few_rows", nil, []string{"demo", "--rows", "5"}, exitError},
		{"version", nil, []string{"version"}, exitDone},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := setup(t, c.answers)
			if got := w.run(t, c.args...); got != c.want {
				t.Errorf("exit code %d, want %d; out %q, err %q", got, c.want, w.out.String(), w.err.String())
			}
			if c.want == exitError && w.err.Len() == 0 && c.name != "never_dispatched" {
				t.Error("it did not say what went wrong")
			}
		})
	}
}

func TestWhatIsAsked(t *testing.T) {
	const tasks = `{"tasks":[]}`
	for _, c := range []struct {
		args string
		want string
	}{
		{"task create --consumer svc-hall --all --dry-run", `POST /v1/tasks {"consumer":"svc-hall","scope":"SCOPE_ALL","mode":"MODE_DRY_RUN"}`},
		{
			"task create --consumer svc-hall --tenant 7 --collection f --key " + taskID,
			`POST /v1/tasks {"consumer":"svc-hall","tenantId":"7","collectionId":"f","scope":"SCOPE_RECORD","key":"` + taskID + `","mode":"MODE_REPAIR"}`,
		},
		{
			"task create --consumer svc-hall --tenant 7 --collection f --override-breaker on-purpose",
			`POST /v1/tasks {"consumer":"svc-hall","tenantId":"7","collectionId":"f","scope":"SCOPE_COLLECTION","mode":"MODE_REPAIR","breakerOverride":true,"overrideReason":"on-purpose"}`,
		},
		{
			"task list --consumer svc-hall --tenant 7 --collection f --state running --state PARTIAL --limit 5 --page p",
			"GET /v1/tasks?collection_id=f&consumer=svc-hall&page_size=5&page_token=p&states=TASK_STATE_RUNNING&states=TASK_STATE_PARTIAL&tenant_id=7",
		},
		{"task cancel x --reason r", `POST /v1/tasks/x:cancel {"reason":"r"}`},
		{"task results a/b", "GET /v1/tasks/a%2Fb/results"},
		{"task outcomes x --class stale", "GET /v1/work/x/outcomes?class=STALE&page_size=50"},
		{"task outcomes x --reported --code stale --attempt 2 --limit 5", "GET /v1/tasks/x/outcomes?attempt=2&code=STALE&page_size=5"},
		{"work list --state parked", "GET /v1/work?page_size=50&states=WORK_STATE_PARKED"},
		{"work show x", "GET /v1/work/x"},
		{"work outcomes x --class stale --outcome repaired", "GET /v1/work/x/outcomes?class=STALE&outcome=REPAIRED&page_size=50"},
		{"work pause x --reason r", `POST /v1/work/x:pause {"reason":"r"}`},
		{"work resume x", "POST /v1/work/x:resume {}"},
		{"grant list --consumer svc-hall", "GET /v1/grants?consumer=svc-hall&page_size=50"},
		{"grant set --consumer svc-hall --tenant 7 --collection f --subscribe=false", `PUT /v1/grants/svc-hall/7/f {"enabled":true,"readAllowed":true}`},
		{"grant revoke --consumer svc-hall --tenant 7 --collection f", "PUT /v1/grants/svc-hall/7/f {}"},
	} {
		t.Run(c.args, func(t *testing.T) {
			w := setup(t, map[string]string{"GET /v1/tasks": tasks})
			w.run(t, strings.Fields(c.args)...)
			// protojson puts blanks where it likes.
			if len(w.asked) != 1 || compact(w.asked[0]) != c.want {
				t.Errorf("got %q, want %q; err %q", w.asked, c.want, w.err.String())
			}
		})
	}
}

func compact(request string) string {
	at := strings.Index(request, "{")
	if at < 0 {
		return request
	}
	var out strings.Builder
	for _, part := range strings.SplitAfter(request[at:], ",") {
		out.WriteString(strings.TrimSpace(strings.ReplaceAll(part, `": `, `":`)))
	}
	return request[:at] + out.String()
}

func TestBadFlagsAskNothing(t *testing.T) {
	for _, args := range []string{
		"task create --tenant 7 --collection f",
		"task create --consumer svc-hall",
		"task create --consumer svc-hall --tenant 7",
		"task create --consumer svc-hall --all --tenant 7",
		"task list --state BROKEN",
		"work list --state WORKING",
		"grant set --consumer svc-hall",
		"task show",
		"task outcomes x --code STALE",
		"task outcomes x --reported --class STALE",
		"task list --token a --token-file b",
		"task list --center localhost:80",
	} {
		t.Run(args, func(t *testing.T) {
			w := setup(t, nil)
			if code := w.run(t, strings.Fields(args)...); code != exitError || len(w.asked) > 0 || w.err.Len() == 0 {
				t.Errorf("exit code %d, asked %q, err %q", code, w.asked, w.err.String())
			}
		})
	}
}

func TestToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := map[string]string{"GET /v1/tasks?page_size=50": `{"tasks":[]}`}
	for _, c := range []struct {
		name string
		env  map[string]string
		args []string
		want int
	}{
		{"variable", map[string]string{envToken: "secret"}, nil, exitDone},
		{"flag_before_variable", map[string]string{envToken: "wrong"}, []string{"--token", "secret"}, exitDone},
		{"file_before_variable", map[string]string{envToken: "wrong"}, []string{"--token-file", file}, exitDone},
		{"file_of_variable", map[string]string{envTokenFile: file}, nil, exitDone},
		{"wrong", map[string]string{envToken: "wrong"}, nil, exitRefused},
		{"none", nil, nil, exitError},
		{"missing_file", nil, []string{"--token-file", file + "x"}, exitError},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := setup(t, list)
			delete(w.env, envToken)
			for name, value := range c.env {
				w.env[name] = value
			}
			if got := w.run(t, append([]string{"task", "list"}, c.args...)...); got != c.want {
				t.Errorf("exit code %d, want %d; err %q", got, c.want, w.err.String())
			}
			if strings.Contains(w.out.String()+w.err.String(), "secret") {
				t.Error("the token is shown")
			}
		})
	}
}

func TestJSONIsTheServicesAnswer(t *testing.T) {
	answer := `{"tasks":[` + task("RUNNING", "") + `],"nextPageToken":"n"}`
	w := setup(t, map[string]string{"GET /v1/tasks?page_size=50": answer})
	if code := w.run(t, "task", "list", "--json"); code != exitDone {
		t.Fatalf("exit code %d: %s", code, w.err.String())
	}
	var got, want any
	if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(answer), &want); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTables(t *testing.T) {
	for _, c := range []struct{ args, path, answer, want string }{
		{
			"task list", "GET /v1/tasks?page_size=50",
			`{"tasks":[` + task("FAILED", "GRANT_REVOKED") + `],"nextPageToken":"n"}`,
			`TASK                              CONSUMER  TENANT  COLLECTION  SCOPE       STATE   SCANNED  ATTEMPT  CREATED               BECAUSE
0190f5c27cde7a4f8a9b1c2d3e4f5061  svc-hall  101     enrolment   COLLECTION  FAILED  -        1        2026-11-30T12:00:00Z  GRANT_REVOKED
more: --page n
`,
		},
		{
			"work outcomes x", "GET /v1/work/x/outcomes?page_size=50",
			`{"outcomes":[{"key":"k1","class":"STALE","outcome":"REPAIRED","centerRevision":"3","centerDeleted":false,"localRevision":"2","localDeleted":false,"evidenceId":"e"},` +
				`{"key":"k2","class":"EXTRA_ROW","outcome":"REPORTED","code":"RETIRE_BREAKER","localRevision":"0","localDeleted":true}]}`,
			`RECORD  CLASS      OUTCOME   CODE            CENTER  LOCAL      EVIDENCE
k1      STALE      REPAIRED  -               3       2          e
k2      EXTRA_ROW  REPORTED  RETIRE_BREAKER  absent  0 deleted  -
`,
		},
		{
			"task outcomes x --reported", "GET /v1/tasks/x/outcomes?page_size=50",
			`{"outcomes":[{"attempt":2,"item":{"key":"k1","revision":"3","code":"QUARANTINED"}},{"attempt":1,"item":{"range":"enrolment","revision":"0","code":"EXTRA_ROW"}}]}`,
			`ATTEMPT  RECORD     REVISION  CODE
2        k1         3         QUARANTINED
1        enrolment  0         EXTRA_ROW
`,
		},
		{
			"work list", "GET /v1/work?page_size=50",
			`{"work":[{"taskId":"t","tenantId":"101","collectionId":"enrolment","state":"WORK_STATE_RUNNING","phase":"PHASE_SCANNING","attempt":1,` +
				`"rowCount":"8","centerRowsScanned":"1","scannedPercent":12.5,"updatedAt":"2026-11-30T12:00:00Z"}]}`,
			`TASK  TENANT  COLLECTION  STATE    PHASE     ATTEMPT  SCANNED    UPDATED               BECAUSE
t     101     enrolment   RUNNING  SCANNING  1        1/8 12.5%  2026-11-30T12:00:00Z  -
`,
		},
		{
			"grant list", "GET /v1/grants?page_size=50",
			`{"grants":[{"consumer":"svc-hall","tenantId":"101","collectionId":"enrolment","enabled":true,"readAllowed":true,"subscribeAllowed":false,"grantEpoch":"2","updatedAt":"2026-11-30T12:00:00Z"}]}`,
			`CONSUMER  TENANT  COLLECTION  ENABLED  READ  SUBSCRIBE  EFFECTIVE  EPOCH  UPDATED
svc-hall  101     enrolment   true     true  false      false      2      2026-11-30T12:00:00Z
`,
		},
	} {
		t.Run(c.args, func(t *testing.T) {
			w := setup(t, map[string]string{c.path: c.answer})
			if code := w.run(t, strings.Fields(c.args)...); code != exitDone {
				t.Fatalf("exit code %d: %s", code, w.err.String())
			}
			if w.out.String() != c.want {
				t.Errorf("got\n%s\nwant\n%s", w.out.String(), c.want)
			}
		})
	}
}

func TestAnEstimateIsShown(t *testing.T) {
	running := strings.TrimSuffix(task("RUNNING", ""), "}") + `,"estimate":{"scannedPercent":12.5,"rowsPerSecond":250,"scanEndsAt":"2026-11-30T12:01:00Z"}}`
	w := setup(t, map[string]string{"GET /v1/tasks/" + taskID: `{"task":` + running + `}`})
	if code := w.run(t, "task", "show", taskID); code != exitDone {
		t.Fatalf("exit code %d: %s", code, w.err.String())
	}
	for _, want := range []string{"scan           12.5%\n", "pace           250 rows a second\n", "scan ends      2026-11-30T12:01:00Z\n"} {
		if !strings.Contains(w.out.String(), want) {
			t.Errorf("%q is not in\n%s", want, w.out.String())
		}
	}
}

func TestKeygen(t *testing.T) {
	dir := t.TempDir()
	key, trust := filepath.Join(dir, "key.json"), filepath.Join(dir, "trust.json")
	args := []string{"keygen", "--app-key", "svc-hall", "--key-id", "hall-1", "--out", key, "--trust-out", trust}
	w := setup(t, nil)
	if code := w.run(t, args...); code != exitDone {
		t.Fatalf("exit code %d: %s", code, w.err.String())
	}
	if _, err := identity.LoadKeyFile(key); err != nil {
		t.Error(err)
	}
	store, err := identity.LoadTrust(trust)
	if err != nil {
		t.Fatal(err)
	}
	if keys := store.Keys("svc-hall", identity.UseStatement, time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)); len(keys) != 1 {
		t.Errorf("%d keys are trusted, want 1", len(keys))
	}
	if code := w.run(t, args...); code != exitError || !strings.Contains(w.err.String(), "never overwritten") {
		t.Errorf("a second time: exit code %d, err %q", code, w.err.String())
	}
}

func TestTokenNew(t *testing.T) {
	w := setup(t, nil)
	if code := w.run(t, "token", "new", "--id", "ada", "--role", "viewer", "--tenant", "101", "--tenant", "102"); code != exitDone {
		t.Fatalf("exit code %d: %s", code, w.err.String())
	}
	lines := strings.Split(w.out.String(), "\n")
	want := `operators:
  - id: "ada"
    role: viewer
    token_sha256: ` + identity.HashOperatorToken(strings.TrimSpace(lines[1])) + `
    tenants: [101, 102]
`
	if !strings.HasSuffix(w.out.String(), want) {
		t.Errorf("got %q, want it to end with %q", w.out.String(), want)
	}
	if code := w.run(t, "token", "new", "--id", "ada", "--role", "king"); code != exitError {
		t.Errorf("an unknown role: exit code %d", code)
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Runnable() && cmd.Name() != "help" && cmd.Parent() != nil && cmd.Parent().Name() != "completion" && cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(newRoot(&Environment{}))
}

func TestRequestOfFlags(t *testing.T) {
	in, err := (&createFlags{consumer: "c", tenant: 1, collection: "f", override: "why"}).request()
	if err != nil {
		t.Fatal(err)
	}
	if !in.GetBreakerOverride() || in.GetOverrideReason() != "why" || in.GetScope() != evidencev1.Scope_SCOPE_COLLECTION {
		t.Errorf("got %v", in)
	}
	if code := taskCode(&centerv1.Task{State: evidencev1.TaskState_TASK_STATE_COMPLETED}); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}
