package admin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/admin"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
)

type world struct {
	t      *testing.T
	pool   *pgxpool.Pool
	store  *store.Store
	server *admin.Server
	kicks  int
}

func setup(t *testing.T) *world {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), pgtest.Consumer(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w := &world{t: t, pool: pool, store: store.New(pool, pool, store.Settings{Lease: time.Minute, MaxRetries: 6, BackoffBase: time.Minute, BackoffCap: time.Hour})}
	w.server = &admin.Server{Store: w.store, Kick: func() { w.kicks++ }, WaitsFor: func(row *store.Work) fault.Reason {
		if row.Paused {
			return fault.Paused
		}
		return fault.None
	}}
	return w
}

func (w *world) as(role identity.Role, tenants ...int64) context.Context {
	return identity.WithOperator(w.t.Context(), identity.Operator{ID: "ann", Role: role, Tenants: tenants})
}

// task accepts an instruction of a tenant.
func (w *world) task(tenant int64) string {
	w.t.Helper()
	in := &protocol.Instruction{
		At: protocol.Coordinates{
			Source: "center", Consumer: "hall", TaskID: protocol.FormatID(uuid.New()), TenantID: tenant, CollectionID: "form-1", GrantEpoch: 1,
		},
		Attempt: 1, Scope: protocol.Collection, Mode: protocol.Repair, WindowStart: time.Unix(1, 0),
		ManifestID: protocol.FormatID(uuid.New()), ManifestRoot: evidence.Node{1}, RowCount: 10,
	}
	if _, err := w.store.Accept(w.t.Context(), in, []byte("e")); err != nil {
		w.t.Fatal(err)
	}
	return in.At.TaskID
}

// ledger works a task to a checkpoint with some outcomes.
func (w *world) ledger() string {
	w.t.Helper()
	id := w.task(7)
	c, row, err := w.store.Claim(w.t.Context(), "host/1", false)
	if err != nil || row == nil {
		w.t.Fatal(err)
	}
	var entries []store.Entry
	for n := byte(1); n <= 5; n++ {
		entries = append(entries, store.Entry{
			Key: string([]byte{15: n}), Class: protocol.Stale, Outcome: protocol.Repaired, EvidenceID: "ev", Evidence: []byte("secret content"),
			Center: &evidence.Row{Revision: 2}, Local: &evidence.Row{Revision: 1},
		})
	}
	entries[4].Class, entries[4].Outcome, entries[4].Code, entries[4].Local = protocol.Missing, protocol.Reported, "ROW_GONE", nil
	if err := w.store.InEffect(w.t.Context(), c, row, store.RepairPoints, func(e *store.Effect) error {
		return e.Note(entries)
	}); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.store.Step(w.t.Context(), c, work.RoundDone, store.Progress{NextPage: 1, CursorKey: []byte("0123456789abcdef"), CenterScanned: 4, LocalScanned: 5}, ""); err != nil {
		w.t.Fatal(err)
	}
	return id
}

func TestReads(t *testing.T) {
	w := setup(t)
	id := w.ledger()
	ctx := w.as(identity.RoleViewer)
	var before string
	dump := func() (s string) {
		if err := w.pool.QueryRow(t.Context(), `SELECT concat((SELECT string_agg(t::text, '|' ORDER BY t::text) FROM lockstep.work t),
			(SELECT string_agg(t::text, '|' ORDER BY t::text) FROM lockstep.outcome t), (SELECT count(*) FROM lockstep.audit))`).Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	before = dump()
	t.Run("a row is shown with the ledger's live counts", func(t *testing.T) {
		resp, err := w.server.GetWork(ctx, &consumerv1.GetWorkRequest{TaskId: id})
		if err != nil {
			t.Fatal(err)
		}
		got := resp.GetWork()
		if got.GetState() != consumerv1.WorkState_WORK_STATE_RUNNING || got.GetTenantId() != 7 || got.GetCheckpoint() != protocol.FormatKey("0123456789abcdef") ||
			got.GetScannedPercent() != 40 || len(got.GetCounts()) != 2 || got.GetCounts()[0].GetReported() != 1 || got.GetCounts()[1].GetRepaired() != 4 {
			t.Errorf("%v", got)
		}
		var token string
		if err := w.pool.QueryRow(t.Context(), `SELECT claim_token::text FROM lockstep.work`).Scan(&token); err != nil {
			t.Fatal(err)
		}
		if text := got.String(); strings.Contains(text, token) || strings.Contains(text, strings.ReplaceAll(token, "-", "")) {
			t.Error("the claim token is in the answer")
		}
	})
	t.Run("outcomes come in key order, by page and by filter, without content", func(t *testing.T) {
		var keys []string
		token := ""
		for pages := 0; ; pages++ {
			resp, err := w.server.ListOutcomes(ctx, &consumerv1.ListOutcomesRequest{TaskId: id, PageSize: 2, PageToken: token})
			if err != nil || pages > 3 {
				t.Fatal(pages, err)
			}
			if strings.Contains(resp.String(), "secret") {
				t.Error("content is in the answer")
			}
			for _, o := range resp.GetOutcomes() {
				keys = append(keys, o.GetKey())
			}
			if token = resp.GetNextPageToken(); token == "" {
				break
			}
		}
		if len(keys) != 5 || keys[0] != protocol.FormatKey(string([]byte{15: 1})) || keys[4] != protocol.FormatKey(string([]byte{15: 5})) {
			t.Errorf("%v", keys)
		}
		resp, err := w.server.ListOutcomes(ctx, &consumerv1.ListOutcomesRequest{TaskId: id, Class: "MISSING", Outcome: "REPORTED"})
		if err != nil || len(resp.GetOutcomes()) != 1 {
			t.Fatalf("%v, %v", resp, err)
		}
		o := resp.GetOutcomes()[0]
		if o.GetCode() != "ROW_GONE" || o.GetCenterRevision() != 2 || o.LocalRevision != nil || o.GetLocalHash() != "" || o.GetOpId() == "" {
			t.Errorf("%v", o)
		}
	})
	t.Run("work is listed newest first, by page", func(t *testing.T) {
		second := w.task(8)
		defer func() { before = dump() }()
		first, err := w.server.ListWork(ctx, &consumerv1.ListWorkRequest{PageSize: 1})
		if err != nil || len(first.GetWork()) != 1 || first.GetWork()[0].GetTaskId() != second || first.GetNextPageToken() == "" {
			t.Fatalf("%v, %v", first, err)
		}
		rest, err := w.server.ListWork(ctx, &consumerv1.ListWorkRequest{PageSize: 1, PageToken: first.GetNextPageToken()})
		if err != nil || len(rest.GetWork()) != 1 || rest.GetWork()[0].GetTaskId() != id || rest.GetNextPageToken() != "" {
			t.Fatalf("%v, %v", rest, err)
		}
		queued, err := w.server.ListWork(ctx, &consumerv1.ListWorkRequest{States: []consumerv1.WorkState{consumerv1.WorkState_WORK_STATE_QUEUED}})
		if err != nil || len(queued.GetWork()) != 1 {
			t.Fatalf("%v, %v", queued, err)
		}
	})
	if dump() != before {
		t.Error("a read wrote something")
	}
}

func TestAccess(t *testing.T) {
	w := setup(t)
	id := w.task(7)
	other := w.as(identity.RoleAdmin, 8)
	t.Run("another tenant's task is not found, read or written", func(t *testing.T) {
		_, get := w.server.GetWork(other, &consumerv1.GetWorkRequest{TaskId: id})
		_, list := w.server.ListOutcomes(other, &consumerv1.ListOutcomesRequest{TaskId: id})
		_, pause := w.server.PauseWork(other, &consumerv1.PauseWorkRequest{TaskId: id})
		_, resume := w.server.ResumeWork(other, &consumerv1.ResumeWorkRequest{TaskId: id})
		_, none := w.server.GetWork(other, &consumerv1.GetWorkRequest{TaskId: protocol.FormatID(uuid.New())})
		for _, err := range []error{get, list, pause, resume, none} {
			if fault.ReasonOf(err) != fault.TaskNotFound {
				t.Error(err)
			}
		}
		resp, err := w.server.ListWork(other, &consumerv1.ListWorkRequest{TenantId: 7})
		if err != nil || len(resp.GetWork()) != 0 {
			t.Errorf("%v, %v", resp, err)
		}
	})
	t.Run("nobody is nobody", func(t *testing.T) {
		if _, err := w.server.ListWork(t.Context(), &consumerv1.ListWorkRequest{}); fault.ReasonOf(err) != fault.PermissionDenied {
			t.Error(err)
		}
	})
	t.Run("what can't be read is refused", func(t *testing.T) {
		ctx := w.as(identity.RoleViewer)
		for name, err := range map[string]error{
			"id":       second(w.server.GetWork(ctx, &consumerv1.GetWorkRequest{TaskId: uuid.NewString()})),
			"page":     second(w.server.ListWork(ctx, &consumerv1.ListWorkRequest{PageSize: 501})),
			"negative": second(w.server.ListOutcomes(ctx, &consumerv1.ListOutcomesRequest{TaskId: id, PageSize: -1})),
			"state":    second(w.server.ListWork(ctx, &consumerv1.ListWorkRequest{States: []consumerv1.WorkState{99}})),
			"reason":   second(w.server.PauseWork(ctx, &consumerv1.PauseWorkRequest{TaskId: id, Reason: strings.Repeat("x", 501)})),
		} {
			if fault.ReasonOf(err) != fault.InvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
		}
		for name, err := range map[string]error{
			"work token":    second(w.server.ListWork(ctx, &consumerv1.ListWorkRequest{PageToken: "nonsense"})),
			"outcome token": second(w.server.ListOutcomes(ctx, &consumerv1.ListOutcomesRequest{TaskId: id, PageToken: "nonsense"})),
		} {
			if fault.ReasonOf(err) != fault.CursorInvalid {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestPause(t *testing.T) {
	w := setup(t)
	id := w.task(7)
	ctx := w.as(identity.RoleOperator, 7)
	resp, err := w.server.PauseWork(ctx, &consumerv1.PauseWorkRequest{TaskId: id, Reason: "night"})
	if err != nil || !resp.GetWork().GetPaused() || resp.GetWork().GetWaitingBecause() != "PAUSED" {
		t.Fatalf("%v, %v", resp, err)
	}
	if _, err := w.server.PauseWork(ctx, &consumerv1.PauseWorkRequest{TaskId: id}); err != nil { // again changes nothing
		t.Fatal(err)
	}
	if _, row, err := w.store.Claim(t.Context(), "w", false); err != nil || row != nil {
		t.Fatalf("a paused row was claimed: %v", err)
	}
	resumed, err := w.server.ResumeWork(ctx, &consumerv1.ResumeWorkRequest{TaskId: id, Reason: "morning"})
	if err != nil || resumed.GetWork().GetPaused() || w.kicks != 1 {
		t.Fatalf("%v, %v", resumed, err)
	}
	if _, row, err := w.store.Claim(t.Context(), "w", false); err != nil || row == nil {
		t.Fatalf("a resumed row was not claimed: %v", err)
	}
	var audit string
	if err := w.pool.QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', actor, action, object, reason), ', ' ORDER BY audit_id) FROM lockstep.audit`).Scan(&audit); err != nil {
		t.Fatal(err)
	}
	if want := "operator/ann pause task " + id + " night, operator/ann resume task " + id + " morning"; audit != want {
		t.Errorf("audited %q, want %q", audit, want)
	}
}

// Every method has a rule, and none that writes, or shows content, is a viewer's.
func TestRules(t *testing.T) {
	rules := admin.Rules()
	for _, m := range consumerv1.AdminService_ServiceDesc.Methods {
		full := "/" + consumerv1.AdminService_ServiceDesc.ServiceName + "/" + m.MethodName
		want := identity.OperatorWith(identity.RoleOperator)
		if strings.HasPrefix(m.MethodName, "Get") || strings.HasPrefix(m.MethodName, "List") && m.MethodName != "ListEvidence" {
			want = identity.OperatorWith(identity.RoleViewer)
		}
		if rules[full] != want {
			t.Errorf("%s has %+v", m.MethodName, rules[full])
		}
	}
}
