package admin_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// past makes work of a collection that was created so many hours ago, in a state.
func (w *world) past(tenant int64, collection string, hours int, scope, state string) string {
	w.t.Helper()
	id := w.task(tenant)
	w.exec(`UPDATE lockstep.work SET collection_id = $2, scope = $4, state = $5, created_at = now() - make_interval(hours => $3),
		ended_at = CASE WHEN $5 = 'QUEUED' THEN NULL ELSE now() - make_interval(hours => $3) END WHERE task_id = $1::text::uuid`, id, collection, hours, scope, state)
	return id
}

// quarantine puts a record on a task's ledger.
func (w *world) quarantine(tenant int64, task string, n int, outcome string) {
	w.t.Helper()
	w.exec(`INSERT INTO lockstep.outcome (tenant_id, task_id, record_key, class, outcome, code, op_id)
		VALUES ($1, $2::text::uuid, decode($3, 'hex'), 'STALE', $4, 'QUARANTINED', gen_random_uuid())`, tenant, task, key(n), outcome)
}

// collections lists by pages of two and tells each collection in a line.
func (w *world) collections(ctx context.Context, filter *consumerv1.ListCollectionsRequest) (lines []string) {
	w.t.Helper()
	request := proto.CloneOf(filter)
	request.PageSize = 2
	for pages := 0; pages == 0 || request.PageToken != ""; pages++ {
		answer, err := w.server.ListCollections(ctx, request)
		w.must(err)
		if len(answer.GetCollections()) > 2 || pages > 5 {
			w.t.Fatalf("page %d holds %d", pages, len(answer.GetCollections()))
		}
		for _, c := range answer.GetCollections() {
			lines = append(lines, fmt.Sprintf("%d %s %s proven=%q quarantined=%d",
				c.GetTenantId(), c.GetCollectionId(), c.GetNewest().GetState(), c.GetProvenBy(), c.GetQuarantined()))
			if (c.GetProvenEqualAt() == nil) != (c.GetProvenBy() == "") {
				w.t.Errorf("proven at %v by %q", c.GetProvenEqualAt(), c.GetProvenBy())
			}
		}
		request.PageToken = answer.GetNextPageToken()
	}
	return lines
}

func TestListCollections(t *testing.T) {
	w := setup(t)
	// Of a, the newest work proves nothing: it found differences, and the one before it was about one record.
	w.past(7, "a", 9, "COLLECTION", "COMPLETED")
	proof := w.past(7, "a", 8, "COLLECTION", "COMPLETED")
	w.past(7, "a", 7, "RECORD", "COMPLETED")
	held := w.past(7, "a", 6, "COLLECTION", "PARTIAL")
	for n := 1; n <= 3; n++ {
		w.quarantine(7, held, n, "QUARANTINED")
	}
	w.exec(`UPDATE lockstep.outcome SET reopened_at = now() WHERE record_key = decode($1, 'hex')`, key(1))
	// Of b, what was quarantined was mended since.
	old := w.past(7, "b", 5, "COLLECTION", "PARTIAL")
	mended := w.past(7, "b", 4, "COLLECTION", "COMPLETED")
	w.quarantine(7, old, 1, "QUARANTINED")
	w.quarantine(7, mended, 1, "REPAIRED")
	w.past(7, "c/1", 3, "RECORD", "FAILED")
	w.past(8, "a", 2, "COLLECTION", "QUEUED")
	w.past(-1, "z", 1, "COLLECTION", "CANCELLED")

	a := `7 a WORK_STATE_PARTIAL proven="` + proof + `" quarantined=2`
	b := `7 b WORK_STATE_COMPLETED proven="` + mended + `" quarantined=0`
	const (
		c     = `7 c/1 WORK_STATE_FAILED proven="" quarantined=0`
		other = `8 a WORK_STATE_QUEUED proven="" quarantined=0`
		below = `-1 z WORK_STATE_CANCELLED proven="" quarantined=0`
	)
	viewer := func(tenants ...int64) context.Context { return w.as(identity.RoleViewer, tenants...) }
	before := w.everything()
	for name, test := range map[string]struct {
		ctx    context.Context
		filter *consumerv1.ListCollectionsRequest
		want   []string
	}{
		"all, by tenant and collection":             {viewer(), &consumerv1.ListCollectionsRequest{}, []string{below, a, b, c, other}},
		"of a tenant":                               {viewer(), &consumerv1.ListCollectionsRequest{TenantId: 7}, []string{a, b, c}},
		"of a name":                                 {viewer(), &consumerv1.ListCollectionsRequest{CollectionId: "a"}, []string{a, other}},
		"of a tenant and a name":                    {viewer(), &consumerv1.ListCollectionsRequest{TenantId: 7, CollectionId: "b"}, []string{b}},
		"that nobody knows":                         {viewer(), &consumerv1.ListCollectionsRequest{CollectionId: "nothing"}, nil},
		"for who may see one tenant":                {viewer(8), &consumerv1.ListCollectionsRequest{}, []string{other}},
		"for who may see two tenants":               {viewer(-1, 8), &consumerv1.ListCollectionsRequest{}, []string{below, other}},
		"of a tenant that the caller may not see":   {viewer(8), &consumerv1.ListCollectionsRequest{TenantId: 7}, nil},
		"for an admin who may see none of them all": {w.as(identity.RoleAdmin, 99), &consumerv1.ListCollectionsRequest{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.collections(test.ctx, test.filter); !slices.Equal(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
	t.Run("what can't be read is refused", func(t *testing.T) {
		for name, request := range map[string]*consumerv1.ListCollectionsRequest{
			"no base64": {PageToken: "!"}, "no token": {PageToken: "YQ"},
		} {
			if err := second(w.server.ListCollections(viewer(), request)); fault.ReasonOf(err) != fault.CursorInvalid {
				t.Errorf("%s: %v", name, err)
			}
		}
		wantReason(t, second(w.server.ListCollections(viewer(), &consumerv1.ListCollectionsRequest{PageSize: 501})), fault.InvalidArgument)
		wantReason(t, second(w.server.ListCollections(viewer(), &consumerv1.ListCollectionsRequest{CollectionId: "a\x00"})), fault.InvalidArgument)
		wantReason(t, second(w.server.ListCollections(t.Context(), &consumerv1.ListCollectionsRequest{})), fault.PermissionDenied)
	})
	if w.everything() != before {
		t.Error("a read wrote something")
	}
}

// A pause of what has ended would surprise whoever starts it anew.
func TestPauseOfAnEndedTask(t *testing.T) {
	w := setup(t)
	operator := w.as(identity.RoleOperator)
	for _, state := range []string{"COMPLETED", "PARTIAL", "FAILED", "CANCELLED"} {
		id := w.past(7, "form-1", 1, "COLLECTION", state)
		before := w.everything()
		err := second(w.server.PauseWork(operator, &consumerv1.PauseWorkRequest{TaskId: id, Reason: "night"}))
		wantReason(t, err, fault.TaskTerminal)
		if got := fault.MetaOf(err)["task_state"]; got != state {
			t.Errorf("the refusal tells state %q, want %s", got, state)
		}
		w.must(second(w.server.ResumeWork(operator, &consumerv1.ResumeWorkRequest{TaskId: id}))) // not paused: nothing to do
		if w.everything() != before {
			t.Errorf("a refused pause of a %s task changed something", state)
		}
		// A pause from before the end can be lifted, so that a newer attempt is not held by it.
		w.exec(`UPDATE lockstep.work SET paused = true WHERE task_id = $1::text::uuid`, id)
		wantReason(t, second(w.server.PauseWork(operator, &consumerv1.PauseWorkRequest{TaskId: id})), fault.TaskTerminal)
		resumed, err := w.server.ResumeWork(operator, &consumerv1.ResumeWorkRequest{TaskId: id})
		w.must(err)
		if resumed.GetWork().GetPaused() {
			t.Errorf("a %s task is still paused", state)
		}
	}
}
