package admin_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/store"
)

// ended makes a running task of a scope end.
func (w *world) ended(sc store.Scope, state, at string) string {
	w.T.Helper()
	id := w.Running(sc)
	w.Set(id, `state = $2, slot = NULL, lease_until = NULL, created_at = $3::timestamptz - interval '1 minute', ended_at = $3::timestamptz, row_count = 12`, state, at)
	return protocol.FormatID(id)
}

func TestListCollections(t *testing.T) {
	w := setup(t)
	other := store.Scope{Consumer: centertest.Consumer, TenantID: 9, CollectionID: "form-2"}
	w.Grant(other)
	first := w.ended(centertest.Scope, "COMPLETED", "2026-03-01 04:00:00+00")
	w.ended(centertest.Scope, "COMPLETED", "2026-02-01 04:00:00+00")
	partial := w.ended(centertest.Scope, "PARTIAL", "2026-03-02 04:00:00+00")
	record := w.ReadyRecord(other, centertest.Key)
	w.Set(record, `created_at = '2026-03-03'`)
	w.Revoke(other)

	t.Run("each_says_when_it_was_proven_equal_and_what_came_last", func(t *testing.T) {
		got, err := w.s.ListCollections(w.eva, &centerv1.ListCollectionsRequest{})
		w.Must(err)
		if len(got.GetCollections()) != 2 || got.GetNextPageToken() != "" {
			t.Fatalf("got %v", got)
		}
		proven, never := got.GetCollections()[0], got.GetCollections()[1]
		if proven.GetConsumer() != centertest.Consumer || proven.GetTenantId() != centertest.Tenant || proven.GetCollectionId() != centertest.Collection || !proven.GetEffective() {
			t.Errorf("the first is %v", proven)
		}
		if at := proven.GetProvenEqualAt().AsTime().Format("2006-01-02T15:04"); at != "2026-03-01T04:00" || proven.GetProvenBy() != first || proven.GetRowCount() != 12 {
			t.Errorf("proven equal at %s by %s with %d rows", at, proven.GetProvenBy(), proven.GetRowCount())
		}
		if n := proven.GetNewest(); n.GetTaskId() != partial || n.GetState() != evidencev1.TaskState_TASK_STATE_PARTIAL {
			t.Errorf("the newest task is %v", n)
		}
		if never.GetEffective() || never.GetProvenEqualAt() != nil || never.GetProvenBy() != "" || never.GetRowCount() != 0 {
			t.Errorf("the second is %v", never)
		}
		if n := never.GetNewest(); n.GetTaskId() != protocol.FormatID(record) || n.GetScope() != evidencev1.Scope_SCOPE_RECORD || n.GetWaitingBecause() == "" {
			t.Errorf("its newest task is %v", n)
		}
	})
	t.Run("a_scope_without_a_task_has_none", func(t *testing.T) {
		w.Grant(store.Scope{Consumer: centertest.Consumer, TenantID: 11, CollectionID: "form-3"})
		got, err := w.s.ListCollections(w.eva, &centerv1.ListCollectionsRequest{TenantId: 11})
		w.Must(err)
		if len(got.GetCollections()) != 1 || got.GetCollections()[0].GetNewest() != nil {
			t.Errorf("got %v", got)
		}
	})
	t.Run("other_tenants_are_absent", func(t *testing.T) {
		got, err := w.s.ListCollections(w.tom, &centerv1.ListCollectionsRequest{})
		w.Must(err)
		if len(got.GetCollections()) != 1 || got.GetCollections()[0].GetTenantId() != 9 {
			t.Errorf("tom sees %v", got)
		}
		got, err = w.s.ListCollections(w.tom, &centerv1.ListCollectionsRequest{TenantId: centertest.Tenant})
		w.Must(err)
		if len(got.GetCollections()) != 0 {
			t.Errorf("tom sees %v", got)
		}
		_, err = w.s.ListCollections(t.Context(), &centerv1.ListCollectionsRequest{})
		wantReason(t, err, fault.PermissionDenied)
	})
	t.Run("pages_cover_every_scope_once", func(t *testing.T) {
		var seen []string
		req := &centerv1.ListCollectionsRequest{PageSize: 1, Consumer: centertest.Consumer}
		for {
			got, err := w.s.ListCollections(w.eva, req)
			w.Must(err)
			for _, c := range got.GetCollections() {
				seen = append(seen, c.GetCollectionId())
			}
			if req.PageToken = got.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if !slices.Equal(seen, []string{"form-1", "form-2", "form-3"}) {
			t.Errorf("saw %v", seen)
		}
	})
	t.Run("filters_narrow_the_list_and_belong_to_its_token", func(t *testing.T) {
		for want, req := range map[int]*centerv1.ListCollectionsRequest{1: {CollectionId: "form-2"}, 3: {}, 0: {Consumer: "svc-other"}} {
			got, err := w.s.ListCollections(w.eva, req)
			w.Must(err)
			if len(got.GetCollections()) != want {
				t.Errorf("%v: %d", req, len(got.GetCollections()))
			}
		}
		got, err := w.s.ListCollections(w.eva, &centerv1.ListCollectionsRequest{PageSize: 1})
		w.Must(err)
		_, err = w.s.ListCollections(w.eva, &centerv1.ListCollectionsRequest{PageSize: 1, CollectionId: "form-1", PageToken: got.GetNextPageToken()})
		wantReason(t, err, fault.CursorInvalid)
		_, err = w.s.ListCollections(w.eva, &centerv1.ListCollectionsRequest{PageSize: -1})
		wantReason(t, err, fault.InvalidArgument)
	})
	t.Run("the_newest_task_of_a_scope_comes_from_its_index", func(t *testing.T) {
		tx, err := w.Pool.Begin(t.Context())
		w.Must(err)
		defer func() { w.Must(tx.Rollback(t.Context())) }()
		_, err = tx.Exec(t.Context(), `SET LOCAL enable_seqscan = off`) // the table is small
		w.Must(err)
		rows, err := tx.Query(t.Context(), `EXPLAIN SELECT task_id FROM lockstep.task WHERE consumer = 'a' AND tenant_id = 1 AND collection_id = 'b'
			ORDER BY created_at DESC, task_id DESC LIMIT 1`)
		w.Must(err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		w.Must(err)
		if plan := strings.Join(lines, "\n"); !strings.Contains(plan, "task_scope_created") || strings.Contains(plan, "Sort") {
			t.Errorf("the plan is\n%s", plan)
		}
	})
}

func TestListEvents(t *testing.T) {
	w := setup(t)
	id := w.Running(centertest.Scope)
	req := &centerv1.ListEventsRequest{TaskId: protocol.FormatID(id)}
	w.Exec(`DELETE FROM lockstep.task_event`)
	w.Exec(`INSERT INTO lockstep.task_event (task_id, at, attempt, event, state, code) VALUES
		($1, '2026-03-01 04:00:00+00', 0, 'MATERIALISED', 'QUEUED', ''), ($1, '2026-03-01 04:00:01+00', 1, 'ACCEPTED', 'DISPATCHED', ''),
		(gen_random_uuid(), '2026-03-01 04:00:02+00', 1, 'ACCEPTED', 'DISPATCHED', ''),
		($1, '2026-03-01 04:00:02+00', 1, 'FAILED_RETRYABLE', 'QUEUED', 'UNAVAILABLE')`, id)

	t.Run("oldest_first_and_of_this_task_only", func(t *testing.T) {
		got, err := w.s.ListEvents(w.eva, req)
		w.Must(err)
		var seen []string
		for _, e := range got.GetEvents() {
			seen = append(seen, e.GetEvent()+" "+e.GetState().String()+" "+e.GetCode()+" "+e.GetAt().AsTime().Format("05"))
		}
		want := []string{"MATERIALISED TASK_STATE_QUEUED  00", "ACCEPTED TASK_STATE_DISPATCHED  01", "FAILED_RETRYABLE TASK_STATE_QUEUED UNAVAILABLE 02"}
		if !slices.Equal(seen, want) || got.GetNextPageToken() != "" {
			t.Errorf("saw %q, want %q", seen, want)
		}
		if got.GetEvents()[0].GetAttempt() != 0 || got.GetEvents()[1].GetAttempt() != 1 {
			t.Errorf("the attempts are %v", got.GetEvents())
		}
	})
	t.Run("pages_cover_every_event_once", func(t *testing.T) {
		first, err := w.s.ListEvents(w.eva, &centerv1.ListEventsRequest{TaskId: req.GetTaskId(), PageSize: 2})
		w.Must(err)
		rest, err := w.s.ListEvents(w.eva, &centerv1.ListEventsRequest{TaskId: req.GetTaskId(), PageSize: 2, PageToken: first.GetNextPageToken()})
		w.Must(err)
		if len(first.GetEvents()) != 2 || len(rest.GetEvents()) != 1 || rest.GetEvents()[0].GetCode() != "UNAVAILABLE" || rest.GetNextPageToken() != "" {
			t.Errorf("first %v, rest %v", first, rest)
		}
		another := w.ReadyRecord(centertest.Scope, centertest.Key)
		_, err = w.s.ListEvents(w.eva, &centerv1.ListEventsRequest{TaskId: protocol.FormatID(another), PageToken: first.GetNextPageToken()})
		wantReason(t, err, fault.CursorInvalid)
	})
	t.Run("another_tenant's_task_is_not_found", func(t *testing.T) {
		_, err := w.s.ListEvents(w.tom, req)
		wantReason(t, err, fault.TaskNotFound)
		_, err = w.s.ListEvents(w.eva, &centerv1.ListEventsRequest{TaskId: "7"})
		wantReason(t, err, fault.InvalidArgument)
		_, err = w.s.ListEvents(t.Context(), req)
		wantReason(t, err, fault.PermissionDenied)
	})
	t.Run("reading_writes_nothing", func(t *testing.T) {
		before := w.Everything()
		_, err := w.s.ListEvents(w.eva, req)
		w.Must(err)
		_, err = w.s.ListCollections(w.eva, &centerv1.ListCollectionsRequest{})
		w.Must(err)
		if w.Everything() != before {
			t.Error("a read wrote something")
		}
	})
}
