package admin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/center/internal/admin"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/create"
	"lockstep.dev/services/center/internal/grant"
	"lockstep.dev/services/center/internal/store"
)

type world struct {
	*centertest.World
	s   *admin.Server
	eva context.Context // may see everything
	tom context.Context // may see tenant 9 only
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{World: centertest.New(t)}
	w.eva = identity.WithOperator(t.Context(), identity.Operator{ID: "eva", Role: identity.RoleAdmin})
	w.tom = identity.WithOperator(t.Context(), identity.Operator{ID: "tom", Role: identity.RoleAdmin, Tenants: []int64{9}})
	quiet := func() {}
	w.s = &admin.Server{
		Store: w.Store, Policy: centertest.Policy, Dispatching: true, Wake: quiet,
		Targets: map[string]string{centertest.Consumer: "127.0.0.1:7101"},
		Grants:  &grant.Keeper{Store: w.Store, Wake: quiet},
		Creator: &create.Creator{
			Store: w.Store, MaxTasks: 20, Wake: quiet, NewID: uuid.New,
			Oversize:  func(context.Context, store.Scope) (string, error) { return "", nil },
			Elsewhere: func(context.Context, store.Scope, string) (bool, error) { return false, nil },
		},
	}
	return w
}

func wantReason(t *testing.T, err error, want fault.Reason) {
	t.Helper()
	if got := fault.ReasonOf(err); got != want {
		t.Errorf("refused with %q (%v), want %s", got, err, want)
	}
}

func (w *world) get(ctx context.Context, id uuid.UUID) (*centerv1.Task, error) {
	got, err := w.s.GetTask(ctx, &centerv1.GetTaskRequest{TaskId: protocol.FormatID(id)})
	return got.GetTask(), err
}

func TestCreateTask(t *testing.T) {
	w := setup(t)
	req := &centerv1.CreateTaskRequest{
		Consumer: centertest.Consumer, TenantId: centertest.Tenant, CollectionId: centertest.Collection,
		Scope: evidencev1.Scope_SCOPE_COLLECTION, Mode: evidencev1.Mode_MODE_DRY_RUN,
	}
	got, err := w.s.CreateTask(w.eva, req)
	w.Must(err)
	tk := got.GetTasks()[0].GetTask()
	if tk.GetState() != evidencev1.TaskState_TASK_STATE_QUEUED || tk.GetMode() != evidencev1.Mode_MODE_DRY_RUN || tk.GetCreatedBy() != "operator/eva" ||
		tk.GetManifestState() != centerv1.ManifestState_MANIFEST_STATE_PENDING || tk.GetEndedAt() != nil || tk.GetWaitingBecause() != "the manifest is to be made" {
		t.Errorf("the task is %v", tk)
	}
	again, err := w.s.CreateTask(w.eva, req)
	w.Must(err)
	if !again.GetTasks()[0].GetExisting() || again.GetTasks()[0].GetTask().GetTaskId() != tk.GetTaskId() {
		t.Error("a second task was made")
	}
	_, err = w.s.CreateTask(w.tom, req)
	wantReason(t, err, fault.NotFound)
	_, err = w.s.CreateTask(t.Context(), req)
	wantReason(t, err, fault.PermissionDenied)
}

func TestWaitingBecause(t *testing.T) {
	second := store.Scope{Consumer: centertest.Consumer, TenantID: 9, CollectionID: "form-2"}
	stranger := store.Scope{Consumer: "svc-stranger", TenantID: 9, CollectionID: "form-2"}
	for name, c := range map[string]struct {
		make func(w *world) uuid.UUID
		want string
	}{
		"switched off": {func(w *world) uuid.UUID { w.s.Dispatching = false; return w.Ready(centertest.Scope) }, "dispatch is switched off"},
		"manifest in the making": {func(w *world) uuid.UUID {
			id := w.Pending(centertest.Scope)
			_, _, _, err := w.Store.ClaimMaterialise(w.T.Context(), "worker", time.Minute)
			w.Must(err)
			return id
		}, "the manifest is being made"},
		"made at the rate": {func(w *world) uuid.UUID {
			id := w.Pending(centertest.Scope)
			_, _, _, err := w.Store.ClaimMaterialise(w.T.Context(), "worker", time.Minute)
			w.Must(err)
			w.Set(id, `waiting_code = 'RATE_LIMITED'`)
			return id
		}, "the manifest is being made, and reading the source waits: RATE_LIMITED"},
		"a busy source": {func(w *world) uuid.UUID {
			id := w.Pending(centertest.Scope)
			w.Must(w.Store.HoldUp(w.T.Context(), fault.LoadGuard))
			return id
		}, "the manifest is to be made, and reading the source waits: LOAD_GUARD"},
		"another one ahead": {func(w *world) uuid.UUID { w.Grant(second); w.Ready(second); return w.Pending(centertest.Scope) }, "the manifest of another task is ready first: "},
		"back-off": {func(w *world) uuid.UUID {
			id := w.Ready(centertest.Scope)
			w.Set(id, `attempt = 1, code = 'UNAVAILABLE', due_at = '2040-01-02 03:04:05+00'`)
			return id
		}, "back-off until 2040-01-02T03:04:05Z after UNAVAILABLE"},
		"another one in flight": {func(w *world) uuid.UUID { w.Grant(second); w.Running(second); return w.Ready(centertest.Scope) }, "another task is in flight: "},
		"no target":             {func(w *world) uuid.UUID { w.Grant(stranger); return w.Ready(stranger) }, "no target is registered for svc-stranger (TARGET_NOT_REGISTERED)"},
		"due":                   {func(w *world) uuid.UUID { return w.Ready(centertest.Scope) }, "it is due and will be dispatched"},
		"a dead worker": {func(w *world) uuid.UUID {
			id := w.Pending(centertest.Scope)
			_, _, _, err := w.Store.ClaimMaterialise(w.T.Context(), "worker", time.Minute)
			w.Must(err)
			w.Set(id, `lease_until = now() - interval '1 second'`)
			return id
		}, "its worker is gone; the sweep will take it back"},
		"dispatched": {func(w *world) uuid.UUID { return w.Dispatched(centertest.Scope) }, "the consumer has the instruction and has not begun"},
		"consumer waits": {func(w *world) uuid.UUID {
			id := w.Dispatched(centertest.Scope)
			w.Set(id, `waiting_code = 'PAUSED'`)
			return id
		}, "the consumer waits: PAUSED"},
		"running for all": {func(w *world) uuid.UUID { return w.Running(centertest.Scope) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			tk, err := w.get(w.eva, c.make(w))
			w.Must(err)
			if got := tk.GetWaitingBecause(); got != c.want && (!strings.HasSuffix(c.want, ": ") || !strings.HasPrefix(got, c.want)) {
				t.Errorf("it waits because %q, want %q", got, c.want)
			}
		})
	}
}

// TestWaitingBecauseNamesNoHiddenTask: an operator of one tenant learns that
// another task is in the way, not which one.
func TestWaitingBecauseNamesNoHiddenTask(t *testing.T) {
	visible := store.Scope{Consumer: centertest.Consumer, TenantID: 9, CollectionID: "form-2"}
	for want, waits := range map[string]func(w *world) uuid.UUID{
		"another task is in flight":                   func(w *world) uuid.UUID { w.Running(centertest.Scope); return w.Ready(visible) },
		"the manifest of another task is ready first": func(w *world) uuid.UUID { w.Ready(centertest.Scope); return w.Pending(visible) },
	} {
		t.Run(want, func(t *testing.T) {
			w := setup(t)
			w.Grant(visible)
			tk, err := w.get(w.tom, waits(w))
			w.Must(err)
			if got := tk.GetWaitingBecause(); got != want {
				t.Errorf("tom is told %q, want %q", got, want)
			}
		})
	}
}

func TestListTasks(t *testing.T) {
	w := setup(t)
	for _, collection := range []string{"a", "b", "c", "d", "e"} {
		sc := store.Scope{Consumer: centertest.Consumer, TenantID: 9, CollectionID: collection}
		w.Grant(sc)
		w.Pending(sc)
	}
	w.Exec(`UPDATE lockstep.task SET created_at = '2026-01-01'`) // the id decides then
	hidden := w.Pending(centertest.Scope)
	t.Run("pages_cover_every_task_once", func(t *testing.T) {
		seen := map[string]bool{}
		req := &centerv1.ListTasksRequest{PageSize: 2}
		for pages := 1; ; pages++ {
			got, err := w.s.ListTasks(w.eva, req)
			w.Must(err)
			for _, tk := range got.GetTasks() {
				if seen[tk.GetTaskId()] {
					t.Error("a task came twice")
				}
				seen[tk.GetTaskId()] = true
			}
			if req.PageToken = got.GetNextPageToken(); req.PageToken == "" {
				if len(seen) != 6 || pages != 3 {
					t.Errorf("%d tasks in %d pages", len(seen), pages)
				}
				return
			}
		}
	})
	t.Run("what_lies_outside_the_operator's_tenants_is_absent", func(t *testing.T) {
		got, err := w.s.ListTasks(w.tom, &centerv1.ListTasksRequest{})
		w.Must(err)
		if len(got.GetTasks()) != 5 {
			t.Errorf("%d tasks", len(got.GetTasks()))
		}
		_, err = w.get(w.tom, hidden)
		wantReason(t, err, fault.TaskNotFound)
		_, err = w.s.CancelTask(w.tom, &centerv1.CancelTaskRequest{TaskId: protocol.FormatID(hidden)})
		wantReason(t, err, fault.TaskNotFound)
		_, err = w.s.ListResults(w.tom, &centerv1.ListResultsRequest{TaskId: protocol.FormatID(hidden)})
		wantReason(t, err, fault.TaskNotFound)
	})
	t.Run("filters_narrow_the_list", func(t *testing.T) {
		for want, req := range map[int]*centerv1.ListTasksRequest{
			1: {TenantId: 9, CollectionId: "a"},
			6: {States: []evidencev1.TaskState{evidencev1.TaskState_TASK_STATE_QUEUED}},
			0: {Consumer: "svc-other"},
		} {
			got, err := w.s.ListTasks(w.eva, req)
			w.Must(err)
			if len(got.GetTasks()) != want {
				t.Errorf("%v: %d tasks, want %d", req, len(got.GetTasks()), want)
			}
		}
	})
	t.Run("a_token_goes_on_with_its_own_list_only", func(t *testing.T) {
		first, err := w.s.ListTasks(w.eva, &centerv1.ListTasksRequest{PageSize: 2})
		w.Must(err)
		for name, test := range map[string]struct {
			req  *centerv1.ListTasksRequest
			want fault.Reason
		}{
			"another filter": {&centerv1.ListTasksRequest{PageToken: first.GetNextPageToken(), Consumer: centertest.Consumer}, fault.CursorInvalid},
			"no token":       {&centerv1.ListTasksRequest{PageToken: "!!"}, fault.CursorInvalid},
			"cut off":        {&centerv1.ListTasksRequest{PageToken: first.GetNextPageToken()[:10]}, fault.CursorInvalid},
			"page size":      {&centerv1.ListTasksRequest{PageSize: 501}, fault.InvalidArgument},
			"below 0":        {&centerv1.ListTasksRequest{PageSize: -1}, fault.InvalidArgument},
			"unknown state":  {&centerv1.ListTasksRequest{States: []evidencev1.TaskState{99}}, fault.InvalidArgument},
		} {
			_, err := w.s.ListTasks(w.eva, test.req)
			if got := fault.ReasonOf(err); got != test.want {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestCancelTask(t *testing.T) {
	w := setup(t)
	id := w.Running(centertest.Scope)
	req := &centerv1.CancelTaskRequest{TaskId: protocol.FormatID(id), Reason: "the wrong tenant"}
	got, err := w.s.CancelTask(w.eva, req)
	w.Must(err)
	if tk := got.GetTask(); tk.GetState() != evidencev1.TaskState_TASK_STATE_CANCELLED || tk.GetCode() != "CANCELLED_BY_OPERATOR" || tk.GetReason() != "the wrong tenant" {
		t.Errorf("the task is %v", tk)
	}
	before := w.Everything()
	if _, err := w.s.CancelTask(w.eva, req); err != nil {
		t.Errorf("the second time: %v", err)
	}
	if w.Everything() != before {
		t.Error("cancelling a cancelled task changed something")
	}
	if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE actor = 'operator/eva' AND reason = 'CANCELLED_BY_OPERATOR: the wrong tenant'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	ended := w.Running(centertest.Scope)
	w.Set(ended, `state = 'PARTIAL', slot = NULL, lease_until = NULL, ended_at = now()`)
	_, err = w.s.CancelTask(w.eva, &centerv1.CancelTaskRequest{TaskId: protocol.FormatID(ended)})
	wantReason(t, err, fault.TaskTerminal)
	_, err = w.s.CancelTask(w.eva, &centerv1.CancelTaskRequest{TaskId: "1"})
	wantReason(t, err, fault.InvalidArgument)
}

// report seals what the consumer said; nobody verifies it again here.
func (w *world) report(id uuid.UUID) []byte {
	w.T.Helper()
	signer := evidence.NewSigner("k", make([]byte, 64))
	env, err := document.SealReport(signer, &protocol.Report{
		At: w.Read(id).Coordinates(centertest.Center), Attempt: 1, State: protocol.Partial, Verified: protocol.Hashes, Fetched: 5,
		Counts: []protocol.ClassCount{{Class: protocol.Missing, Found: 2, Repaired: 1, Reported: 1}},
		Items:  []protocol.ErrorItem{{Key: centertest.Key, Code: "QUARANTINED"}},
	})
	w.Must(err)
	stored, err := document.MarshalEnvelope(env)
	w.Must(err)
	return stored
}

func TestReadsWriteNothing(t *testing.T) {
	w := setup(t)
	id := w.Running(centertest.Scope)
	w.Exec(`INSERT INTO lockstep.task_result (task_id, attempt, state, report) VALUES ($1, 1, 'PARTIAL', $2)`, id, w.report(id))
	w.Revoke(centertest.Scope) // what a check would act on
	before := w.Everything()

	_, err := w.get(w.eva, id)
	w.Must(err)
	_, err = w.s.ListTasks(w.eva, &centerv1.ListTasksRequest{})
	w.Must(err)
	results, err := w.s.ListResults(w.eva, &centerv1.ListResultsRequest{TaskId: protocol.FormatID(id)})
	w.Must(err)
	grants, err := w.s.ListGrants(w.eva, &centerv1.ListGrantsRequest{})
	w.Must(err)
	tenants, err := w.s.ListTenants(w.eva, &centerv1.ListTenantsRequest{Consumer: centertest.Consumer})
	w.Must(err)
	targets, err := w.s.ListTargets(w.eva, &centerv1.ListTargetsRequest{})
	w.Must(err)

	if w.Everything() != before {
		t.Error("a read wrote something")
	}
	r := results.GetResults()[0]
	if r.GetState() != evidencev1.TaskState_TASK_STATE_PARTIAL || r.GetFigures().GetFetched() != 5 || r.GetFigures().GetCounts()[0].GetReported() != 1 ||
		r.GetItems()[0].GetCode() != "QUARANTINED" || len(r.GetReport().GetSignatures()) != 1 {
		t.Errorf("the result is %v", r)
	}
	if g := grants.GetGrants()[0]; g.GetEffective() || g.GetGrantEpoch() != 2 {
		t.Errorf("the grant is %v", g)
	}
	if len(tenants.GetTenantIds()) != 1 || targets.GetTargets()[0].GetAddress() != "127.0.0.1:7101" {
		t.Errorf("tenants %v, targets %v", tenants, targets)
	}
}

func TestGrants(t *testing.T) {
	w := setup(t)
	_, err := w.s.AddTenant(w.tom, &centerv1.AddTenantRequest{Consumer: centertest.Consumer, TenantId: 9})
	w.Must(err)
	for _, collection := range []string{"a", "b", "c"} {
		got, err := w.s.SetGrant(w.tom, &centerv1.SetGrantRequest{
			Consumer: centertest.Consumer, TenantId: 9, CollectionId: collection, Enabled: true, ReadAllowed: true, SubscribeAllowed: true,
		})
		w.Must(err)
		if !got.GetGrant().GetEffective() {
			t.Errorf("the grant is %v", got.GetGrant())
		}
	}
	t.Run("pages_cover_the_operator's_tenants", func(t *testing.T) {
		first, err := w.s.ListGrants(w.tom, &centerv1.ListGrantsRequest{PageSize: 2})
		w.Must(err)
		rest, err := w.s.ListGrants(w.tom, &centerv1.ListGrantsRequest{PageSize: 2, PageToken: first.GetNextPageToken()})
		w.Must(err)
		if len(first.GetGrants()) != 2 || len(rest.GetGrants()) != 1 || rest.GetGrants()[0].GetCollectionId() != "c" || rest.GetNextPageToken() != "" {
			t.Errorf("first %v, rest %v", first, rest)
		}
		_, err = w.s.ListGrants(w.tom, &centerv1.ListGrantsRequest{PageSize: 2, PageToken: first.GetNextPageToken(), TenantId: 9})
		wantReason(t, err, fault.CursorInvalid)
	})
	t.Run("other_tenants_are_not_found", func(t *testing.T) {
		_, err := w.s.SetGrant(w.tom, &centerv1.SetGrantRequest{Consumer: centertest.Consumer, TenantId: centertest.Tenant, CollectionId: centertest.Collection})
		wantReason(t, err, fault.NotFound)
		_, err = w.s.RemoveTenant(w.tom, &centerv1.RemoveTenantRequest{Consumer: centertest.Consumer, TenantId: centertest.Tenant})
		wantReason(t, err, fault.NotFound)
		tenants, err := w.s.ListTenants(w.tom, &centerv1.ListTenantsRequest{Consumer: centertest.Consumer})
		w.Must(err)
		if len(tenants.GetTenantIds()) != 1 {
			t.Errorf("tenants %v", tenants.GetTenantIds())
		}
	})
	t.Run("removing_a_tenant_cancels_its_open_tasks", func(t *testing.T) {
		id := w.Running(store.Scope{Consumer: centertest.Consumer, TenantID: 9, CollectionID: "a"})
		got, err := w.s.RemoveTenant(w.eva, &centerv1.RemoveTenantRequest{Consumer: centertest.Consumer, TenantId: 9})
		w.Must(err)
		if got.GetCancelledTasks() != 1 {
			t.Errorf("%d cancelled", got.GetCancelledTasks())
		}
		w.WantState(id, "CANCELLED GRANT_REVOKED")
	})
	t.Run("a_malformed_grant_is_refused", func(t *testing.T) {
		_, err := w.s.SetGrant(w.eva, &centerv1.SetGrantRequest{Consumer: centertest.Consumer, TenantId: 9})
		wantReason(t, err, fault.InvalidArgument)
		_, err = w.s.SetGrant(w.eva, &centerv1.SetGrantRequest{})
		wantReason(t, err, fault.InvalidArgument)
	})
}
