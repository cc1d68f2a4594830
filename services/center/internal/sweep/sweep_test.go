package sweep_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap/zaptest"

	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/sweep"
	"lockstep.dev/services/center/internal/task"
)

type world struct {
	*centertest.World
	s     *sweep.Sweeper
	woken int
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{World: centertest.New(t)}
	w.s = &sweep.Sweeper{
		Store: w.Store, Policy: centertest.Policy, Retention: time.Hour,
		Abandoned: func(context.Context) error { return nil }, Wake: func() { w.woken++ }, Log: zaptest.NewLogger(t),
	}
	return w
}

func (w *world) run(step func(context.Context) (bool, error)) bool {
	w.T.Helper()
	worked, err := step(w.T.Context())
	w.Must(err)
	return worked
}

func (w *world) dueIn(id uuid.UUID) int {
	return w.Int(`SELECT round(extract(epoch FROM due_at - now()))::int FROM lockstep.task WHERE task_id = $1`, id)
}

const expired = `lease_until = now() - interval '1 second'`

func TestExpiredLease(t *testing.T) {
	for _, state := range []string{"DISPATCHED", "RUNNING"} {
		t.Run(state+"_with_attempts_left_is_queued_again_with_the_same_manifest", func(t *testing.T) {
			w := setup(t)
			id := w.Running(centertest.Scope)
			w.Set(id, `state = $2, attempt = 2, `+expired, state)
			before := w.Read(id)
			if !w.run(w.s.WorkOnce) || w.run(w.s.WorkOnce) {
				t.Error("not exactly one lease was swept")
			}
			tk := w.Read(id)
			w.WantState(id, "QUEUED LEASE_EXPIRED")
			if tk.Slot != nil || tk.Attempt != 2 || tk.ManifestID != before.ManifestID || w.dueIn(id) != 120 || w.woken != 1 {
				t.Errorf("slot %v, attempt %d, manifest %s, due in %d s, woken %d", tk.Slot, tk.Attempt, tk.ManifestID, w.dueIn(id), w.woken)
			}
		})
		t.Run(state+"_with_none_left_fails", func(t *testing.T) {
			w := setup(t)
			id := w.Running(centertest.Scope)
			w.Set(id, `state = $2, attempt = 3, `+expired, state)
			w.run(w.s.WorkOnce)
			w.WantState(id, "FAILED LEASE_EXPIRED")
			if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE action = 'task.end' AND decision = 'FAILED'`); n != 1 {
				t.Errorf("%d audit rows", n)
			}
		})
	}
	t.Run("a_queued_task_whose_budget_was_lowered_fails_when_it_is_due", func(t *testing.T) {
		w := setup(t)
		id := w.Ready(centertest.Scope)
		w.Set(id, `attempt = 3, due_at = now() + interval '1 minute'`)
		if w.run(w.s.WorkOnce) {
			t.Error("it was swept before it was due: its report may still come")
		}
		w.Set(id, `due_at = now()`)
		if !w.run(w.s.WorkOnce) || w.run(w.s.WorkOnce) {
			t.Error("not exactly one task was swept")
		}
		w.WantState(id, "FAILED DISPATCH_FAILED")
	})
	t.Run("a_lease_that_holds_is_left_alone", func(t *testing.T) {
		w := setup(t)
		w.Running(centertest.Scope)
		before := w.Everything()
		if w.run(w.s.WorkOnce) || w.Everything() != before {
			t.Error("something moved")
		}
	})
}

func TestExpiredClaims(t *testing.T) {
	t.Run("a_dispatcher_that_died_gives_the_task_back_at_once_and_later_with_back-off", func(t *testing.T) {
		w := setup(t)
		id := w.Ready(centertest.Scope)
		for attempt, wait := range []int{0, 60} {
			_, tk, ok, err := w.Store.ClaimDispatch(t.Context(), "mortal", centertest.Policy)
			w.Must(err)
			if !ok || tk.Attempt != attempt+1 {
				t.Fatalf("claimed %t, attempt %d", ok, tk.Attempt)
			}
			w.Set(id, expired)
			w.run(w.s.WorkOnce)
			w.WantState(id, "QUEUED")
			if w.dueIn(id) != wait || w.Read(id).Claimed() || w.Read(id).Slot != nil {
				t.Errorf("due in %d s, want %d", w.dueIn(id), wait)
			}
			w.Set(id, `due_at = now()`)
		}
		_, _, _, err := w.Store.ClaimDispatch(t.Context(), "mortal", centertest.Policy)
		w.Must(err)
		w.Set(id, expired)
		w.run(w.s.WorkOnce)
		w.WantState(id, "FAILED DISPATCH_FAILED")
	})
	t.Run("a_task_that_kills_its_materialisers_ends", func(t *testing.T) {
		w := setup(t)
		id := w.Pending(centertest.Scope)
		for _, want := range []string{"QUEUED", "QUEUED", "FAILED MATERIALISE_FAILED"} {
			_, _, ok, err := w.Store.ClaimMaterialise(t.Context(), "mortal", centertest.Policy.ClaimLease)
			w.Must(err)
			if !ok {
				t.Fatal("it can't be claimed")
			}
			w.Set(id, expired)
			w.run(w.s.WorkOnce)
			w.WantState(id, want)
			w.Set(id, `due_at = now()`)
		}
		if tk := w.Read(id); tk.ManifestState != task.ManifestFailed || tk.MaterialiseTries != 3 {
			t.Errorf("manifest %s after %d tries", tk.ManifestState, tk.MaterialiseTries)
		}
	})
}

func TestUnfinishedRevocation(t *testing.T) {
	w := setup(t)
	second := store.Scope{Consumer: centertest.Consumer, TenantID: 9, CollectionID: "form-2"}
	w.Grant(second)
	revoked, served := w.Running(centertest.Scope), w.Pending(second)
	if w.run(w.s.RevokeOnce) {
		t.Error("a task with its grant was cancelled")
	}
	if w.woken != 0 {
		t.Error("nothing came free, and the dispatcher was woken")
	}
	w.Revoke(centertest.Scope)
	if !w.run(w.s.RevokeOnce) || w.run(w.s.RevokeOnce) {
		t.Error("not exactly one run had work")
	}
	w.WantState(revoked, "CANCELLED GRANT_REVOKED")
	w.WantState(served, "QUEUED")
	if w.woken != 1 {
		t.Errorf("the dispatcher was woken %d times", w.woken)
	}
	w.Exec(`DELETE FROM lockstep.consumer_tenant WHERE tenant_id = 9`)
	w.run(w.s.RevokeOnce)
	w.WantState(served, "CANCELLED GRANT_REVOKED")
}

func TestTasksOfAnOlderCenterEpochEnd(t *testing.T) {
	w := setup(t)
	old := w.Running(centertest.Scope)
	if w.run(w.s.RevokeOnce) {
		t.Error("a task of this epoch was cancelled")
	}
	w.Exec(`UPDATE lockstep.center SET center_epoch = center_epoch + 1`)
	if !w.run(w.s.RevokeOnce) || w.run(w.s.RevokeOnce) {
		t.Error("not exactly one task was cancelled")
	}
	w.WantState(old, "CANCELLED EPOCH_MOVED")
}

func TestRetention(t *testing.T) {
	w := setup(t)
	old := w.Running(centertest.Scope)
	end := func(id uuid.UUID, ago string) {
		w.Set(id, `state = 'PARTIAL', slot = NULL, lease_until = NULL, ended_at = now() - $2::interval`, ago)
		w.Exec(`INSERT INTO lockstep.manifest (manifest_id, tenant_id, task_id, adopted) SELECT manifest_id, tenant_id, task_id, true FROM lockstep.task WHERE task_id = $1`, id)
		w.Exec(`INSERT INTO lockstep.manifest_page (tenant_id, manifest_id, page, row_count, last_key, root, body)
			SELECT tenant_id, manifest_id, n, 1, 'k', manifest_root, 'body' FROM lockstep.task, generate_series(0, 4) n WHERE task_id = $1`, id)
	}
	end(old, "2 hours")
	young := w.Running(centertest.Scope)
	end(young, "30 minutes")
	// In batches of two pages: the third one finds the last page and marks the task.
	for batch, left := range []int{3, 1, 0} {
		ok, err := w.Store.Purge(t.Context(), time.Hour, 2)
		w.Must(err)
		if n := w.Int(`SELECT count(*) FROM lockstep.manifest_page p JOIN lockstep.task USING (manifest_id) WHERE task_id = $1`, old); !ok || n != left {
			t.Fatalf("batch %d left %d pages, want %d", batch+1, n, left)
		}
	}
	if w.run(w.s.PurgeOnce) {
		t.Error("there was more to purge")
	}
	if tk := w.Read(old); tk.ManifestState != task.ManifestPurged || len(tk.Header) == 0 {
		t.Errorf("the manifest is %s", tk.ManifestState)
	}
	if tk := w.Read(young); tk.ManifestState != task.ManifestComplete || w.Int(`SELECT count(*) FROM lockstep.manifest_page`) != 5 {
		t.Error("a young task's pages were purged")
	}
}
