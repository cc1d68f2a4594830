package create_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/create"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

type world struct {
	*centertest.World
	c         *create.Creator
	woken     int
	oversize  string
	elsewhere bool
	sourceErr error
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{World: centertest.New(t)}
	w.c = &create.Creator{
		Store: w.Store, MaxTasks: 2, Wake: func() { w.woken++ }, NewID: uuid.New,
		Oversize:  func(context.Context, store.Scope) (string, error) { return w.oversize, w.sourceErr },
		Elsewhere: func(context.Context, store.Scope, string) (bool, error) { return w.elsewhere, w.sourceErr },
	}
	return w
}

func collection() create.Request {
	return create.Request{Scope: centertest.Scope, What: protocol.Collection, Actor: "operator/eva"}
}

func record() create.Request {
	r := collection()
	r.What, r.Key = protocol.Record, centertest.Key
	return r
}

func (w *world) one(r create.Request) create.Created {
	w.T.Helper()
	out, err := w.c.Create(w.T.Context(), r)
	w.Must(err)
	if len(out.Tasks) != 1 {
		w.T.Fatalf("%d tasks", len(out.Tasks))
	}
	return out.Tasks[0]
}

func TestCreate(t *testing.T) {
	t.Run("a_collection_becomes_a_queued_task_under_the_grant's_epoch", func(t *testing.T) {
		w := setup(t)
		w.Exec(`UPDATE lockstep.consumer_grant SET grant_epoch = 5`)
		w.Exec(`UPDATE lockstep.center SET center_epoch = 4`)
		tk := w.one(collection()).Task
		if tk.State != protocol.Queued || tk.ManifestState != task.ManifestPending || tk.GrantEpoch != 5 || tk.CenterEpoch != 4 || tk.Mode != protocol.Repair || tk.Attempt != 0 {
			t.Errorf("the task is %+v", tk)
		}
		if w.woken != 1 {
			t.Error("no loop was woken")
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE actor = 'operator/eva' AND action = 'task.create' AND decision = 'QUEUED'`); n != 1 {
			t.Errorf("%d audit rows", n)
		}
	})
	t.Run("an_open_task_is_returned_and_a_record_is_another_one", func(t *testing.T) {
		w := setup(t)
		first := w.one(collection())
		again := w.one(collection())
		if again.Task.ID != first.Task.ID || !again.Existing || first.Existing {
			t.Errorf("again %v, existing %t", again.Task.ID, again.Existing)
		}
		if other := w.one(record()); other.Existing || other.Task.Key != centertest.Key {
			t.Errorf("the record's task is %+v", other.Task)
		}
		w.Must(w.Store.Cancel(t.Context(), first.Task.ID, "", "operator/eva"))
		if next := w.one(collection()); next.Existing {
			t.Error("a cancelled task was returned")
		}
	})
	t.Run("an_open_task_of_an_older_center_epoch_is_no_answer", func(t *testing.T) {
		w := setup(t)
		first := w.one(collection())
		w.Exec(`UPDATE lockstep.center SET center_epoch = 2`)
		if next := w.one(collection()); next.Existing || next.Task.ID == first.Task.ID || next.Task.CenterEpoch != 2 {
			t.Errorf("%+v", next)
		}
		w.WantState(first.Task.ID, "CANCELLED EPOCH_MOVED")
	})
	t.Run("many_at_once_make_one", func(t *testing.T) {
		w := setup(t)
		made := make(chan create.Created, 8)
		for range cap(made) {
			go func() {
				out, err := w.c.Create(context.Background(), collection())
				if err != nil {
					t.Error(err)
					out = &create.Outcome{Tasks: []create.Created{{Existing: true}}}
				}
				made <- out.Tasks[0]
			}()
		}
		fresh := 0
		for range cap(made) {
			if !(<-made).Existing {
				fresh++
			}
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.task`); fresh != 1 || n != 1 {
			t.Errorf("%d say they made it, %d rows", fresh, n)
		}
	})
	t.Run("an_override_is_kept_and_audited", func(t *testing.T) {
		w := setup(t)
		r := collection()
		r.BreakerOverride, r.OverrideReason = true, "tenant 7 was emptied on purpose"
		if tk := w.one(r).Task; !tk.BreakerOverride {
			t.Error("no override")
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE reason = 'breaker overridden: tenant 7 was emptied on purpose'`); n != 1 {
			t.Errorf("%d audit rows", n)
		}
	})
}

func TestARefusalIsAFact(t *testing.T) {
	for name, c := range map[string]struct {
		request create.Request
		prepare func(w *world)
		want    string
	}{
		"a revoked grant":                         {collection(), func(w *world) { w.Revoke(centertest.Scope) }, "FAILED GRANT_REVOKED"},
		"no subscription, for a record too":       {record(), func(w *world) { w.Exec(`UPDATE lockstep.consumer_grant SET subscribe_allowed = false`) }, "FAILED GRANT_REVOKED"},
		"a tenant the consumer does not serve":    {collection(), func(w *world) { w.Exec(`DELETE FROM lockstep.consumer_tenant`) }, "FAILED SCOPE_MISMATCH"},
		"a record of another tenant":              {record(), func(w *world) { w.elsewhere = true }, "FAILED SCOPE_MISMATCH"},
		"more rows than may be":                   {collection(), func(w *world) { w.oversize = "more than 20000 rows (max_rows)" }, "FAILED RESOURCE_LIMIT"},
		"a consumer that nobody granted anything": {func() create.Request { r := collection(); r.CollectionID = "form-9"; return r }(), func(*world) {}, "FAILED GRANT_REVOKED"},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			c.prepare(w)
			tk := w.one(c.request).Task
			w.WantState(tk.ID, c.want)
			if tk.ManifestState != task.ManifestFailed || tk.Reason == "" || tk.EndedAt.IsZero() {
				t.Errorf("manifest %s, reason %q", tk.ManifestState, tk.Reason)
			}
			if w.woken != 0 {
				t.Error("a loop was woken for nothing")
			}
			if _, _, ok, err := w.Store.ClaimMaterialise(t.Context(), "worker", time.Minute); ok || err != nil {
				t.Errorf("a worker took it: %t, %v", ok, err)
			}
			if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE action = 'task.create' AND decision = 'FAILED'`); n != 1 {
				t.Errorf("%d audit rows", n)
			}
		})
	}
}

func TestAMalformedRequestLeavesNothing(t *testing.T) {
	w := setup(t)
	before := w.Everything()
	for field, change := range map[string]func(r *create.Request){
		"consumer":        func(r *create.Request) { r.Consumer = "" },
		"tenant_id":       func(r *create.Request) { r.TenantID = 0 },
		"collection_id":   func(r *create.Request) { r.CollectionID = "" },
		"scope":           func(r *create.Request) { r.What = "" },
		"key":             func(r *create.Request) { r.What, r.Key = protocol.Record, "00000000-0000-0000-0000-000000000001" },
		"mode":            func(r *create.Request) { r.Mode = "ODD" },
		"override_reason": func(r *create.Request) { r.BreakerOverride = true },
	} {
		t.Run(field, func(t *testing.T) {
			r := collection()
			change(&r)
			_, err := w.c.Create(t.Context(), r)
			bad, ok := errors.AsType[*fault.Error](err)
			if !ok || bad.Reason != fault.InvalidArgument || len(bad.Fields) != 1 || bad.Fields[0].Name != field {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("an_unreachable_source_leaves_nothing_either", func(t *testing.T) {
		w.sourceErr = errors.New("the source is away")
		if _, err := w.c.Create(t.Context(), collection()); err == nil {
			t.Error("a task was made blindly")
		}
	})
	if w.Everything() != before {
		t.Error("something was written")
	}
}

func TestAll(t *testing.T) {
	w := setup(t)
	scope := func(n int) store.Scope {
		return store.Scope{Consumer: centertest.Consumer, TenantID: 10, CollectionID: fmt.Sprintf("c%d", n)}
	}
	for n := 1; n <= 4; n++ {
		w.Grant(scope(n))
	}
	w.Exec(`UPDATE lockstep.consumer_grant SET enabled = false WHERE collection_id = $1`, centertest.Collection)
	// c2 was proven an hour ago, c3 two hours; c1 and c4 never.
	for n, ago := range map[int]string{2: "1 hour", 3: "2 hours"} {
		id := w.Running(scope(n))
		w.Set(id, `state = 'COMPLETED', slot = NULL, lease_until = NULL, ended_at = now() - $2::interval`, ago)
	}
	open := w.Pending(scope(4))
	r := create.Request{Scope: store.Scope{Consumer: centertest.Consumer}, What: protocol.All, Actor: "operator/eva"}
	out, err := w.c.Create(t.Context(), r)
	w.Must(err)
	var got []string
	for _, c := range out.Tasks {
		got = append(got, fmt.Sprintf("%s existing=%t", c.Task.CollectionID, c.Existing))
	}
	if fmt.Sprint(got) != "[c1 existing=false c4 existing=true c3 existing=false]" {
		t.Errorf("made %v", got)
	}
	if out.Tasks[1].Task.ID != open {
		t.Error("another task than the open one was returned")
	}
	if len(out.LeftOut) != 1 || out.LeftOut[0] != scope(2) {
		t.Errorf("left out %v", out.LeftOut)
	}
	t.Run("spans_only_the_operator's_tenants", func(t *testing.T) {
		r.Tenants = []int64{11}
		if _, err := w.c.Create(t.Context(), r); fault.ReasonOf(err) != fault.GrantRevoked {
			t.Errorf("got %v", err)
		}
	})
}

// TestTooManySubscriptions: what can't be named in one answer is refused, not cut.
func TestTooManySubscriptions(t *testing.T) {
	w := setup(t)
	const most = 10_000
	w.Exec(`INSERT INTO lockstep.consumer_grant (consumer, tenant_id, collection_id, enabled, read_allowed, subscribe_allowed)
		SELECT $1, $2, 'c' || n, true, true, true FROM generate_series(1, $3) n`, centertest.Consumer, centertest.Tenant, most)
	r := create.Request{Scope: store.Scope{Consumer: centertest.Consumer}, What: protocol.All, Actor: "operator/eva"}
	if _, err := w.c.Create(t.Context(), r); fault.ReasonOf(err) != fault.ResourceLimit {
		t.Errorf("got %v", err)
	}
	if n := w.Int(`SELECT count(*) FROM lockstep.task`); n != 0 {
		t.Errorf("%d tasks were made", n)
	}
	w.Exec(`DELETE FROM lockstep.consumer_grant WHERE collection_id = 'c1'`)
	out, err := w.c.Create(t.Context(), r)
	w.Must(err)
	if len(out.Tasks)+len(out.LeftOut) != most {
		t.Errorf("%d tasks, %d left out", len(out.Tasks), len(out.LeftOut))
	}
}

// TestRevocationRacesACreation: the creation waits for a revocation that came
// first, and then refuses.
func TestRevocationRacesACreation(t *testing.T) {
	w := setup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	revoker, err := w.Connect().Begin(ctx)
	w.Must(err)
	_, err = revoker.Exec(ctx, `UPDATE lockstep.consumer_grant SET enabled = false, grant_epoch = grant_epoch + 1`)
	w.Must(err)
	made := make(chan *create.Outcome)
	go func() {
		out, err := w.c.Create(ctx, collection())
		if err != nil {
			t.Error(err)
		}
		made <- out
	}()
	w.Blocked(ctx)
	w.Must(revoker.Commit(ctx))
	if out := <-made; out != nil {
		w.WantState(out.Tasks[0].Task.ID, "FAILED GRANT_REVOKED")
	}
	if n := w.Int(`SELECT count(*) FROM lockstep.task`); n != 1 {
		t.Errorf("%d tasks", n)
	}
}
