package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/claim/claimtest"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// scopes gives each row a consumer of its own, so that no slot is in the way.
func scopes(w *centertest.World) func() store.Scope {
	n := 0
	return func() store.Scope {
		n++
		sc := store.Scope{Consumer: fmt.Sprintf("svc-%d", n), TenantID: centertest.Tenant, CollectionID: centertest.Collection}
		w.Grant(sc)
		return sc
	}
}

// concluded is the dispatcher's conclusion as the table has it.
func concluded(w *centertest.World, on task.Event) func(context.Context, claim.Claim) error {
	return func(ctx context.Context, c claim.Claim) error {
		return w.Store.ConcludeDispatch(ctx, c, func(tk *task.Task) (store.Move, bool) {
			v, ok := task.Next(tk.State, on, tk.Facts(centertest.Policy, false))
			return store.Move{Event: on, To: v.To, Code: v.Code, Lease: centertest.Policy.Lease, Due: centertest.Policy.Backoff(tk.Attempt)}, ok
		})
	}
}

func TestFenceDispatch(t *testing.T) {
	w := centertest.New(t)
	next := scopes(w)
	claimtest.Run(t, claimtest.Site{
		Site: store.DispatchSite, Pool: w.Pool,
		NewRow: func(context.Context) (uuid.UUID, error) { return w.Ready(next()), nil },
		Take: func(ctx context.Context, worker string) (claim.Claim, bool, error) {
			c, _, ok, err := w.Store.ClaimDispatch(ctx, worker, centertest.Policy)
			return c, ok, err
		},
		Sweep: func(ctx context.Context) error {
			_, err := w.Store.SweepClaims(ctx, store.DispatchSite, task.ClaimLapsed, centertest.Policy, 10)
			return err
		},
		Ready: "due_at = now()",
		Stale: map[string]func(context.Context, claim.Claim) error{
			"conclusion": concluded(w, task.Accepted),
			"failure":    concluded(w, task.NotAccepted),
			"renewal": func(ctx context.Context, c claim.Claim) error {
				return store.DispatchSite.Renew(ctx, w.Pool, c, centertest.Policy.ClaimLease)
			},
		},
		Effects: func(_ context.Context, id uuid.UUID) (int, error) {
			return w.Int(`SELECT count(*) FROM lockstep.task_event WHERE task_id = $1`, id), nil
		},
		Conclude: concluded(w, task.Accepted),
	})
}

func TestMaterialiseClaims(t *testing.T) {
	second := store.Scope{Consumer: centertest.Consumer, TenantID: centertest.Tenant, CollectionID: "form-2"}
	take := func(t *testing.T, w *centertest.World) (uuid.UUID, bool) {
		t.Helper()
		c, _, ok, err := w.Store.ClaimMaterialise(t.Context(), "worker", centertest.Policy.ClaimLease)
		w.Must(err)
		return c.ID, ok
	}
	t.Run("one_collection_of_a_consumer_is_materialised_ahead", func(t *testing.T) {
		w := centertest.New(t)
		w.Grant(second)
		first, other := w.Pending(centertest.Scope), w.Pending(second)
		if id, ok := take(t, w); !ok || id != first {
			t.Fatalf("took %s, %t", id, ok)
		}
		if _, ok := take(t, w); ok {
			t.Error("a second one was taken while the first is being made")
		}
		w.Exec(`DELETE FROM lockstep.task WHERE task_id = $1`, first)
		w.Ready(centertest.Scope)
		if _, ok := take(t, w); ok {
			t.Error("a second one was taken while the first is ready and not dispatched")
		}
		w.Exec(`UPDATE lockstep.task SET attempt = 1, slot = 1, state = 'RUNNING', lease_until = now() WHERE manifest_state = 'COMPLETE'`)
		if id, ok := take(t, w); !ok || id != other {
			t.Errorf("took %s, %t", id, ok)
		}
	})
	t.Run("two_materialisers_at_once_make_one", func(t *testing.T) {
		w := centertest.New(t)
		w.Grant(second)
		w.Pending(centertest.Scope)
		w.Pending(second)
		took := make(chan bool, 2)
		for range 2 {
			go func() {
				_, _, ok, err := w.Store.ClaimMaterialise(t.Context(), "racer", centertest.Policy.ClaimLease)
				if err != nil {
					t.Error(err)
				}
				took <- ok
			}()
		}
		if a, b := <-took, <-took; a == b {
			t.Errorf("both took one, or neither: %t", a)
		}
	})
	t.Run("a_record_need_not_wait", func(t *testing.T) {
		w := centertest.New(t)
		w.Pending(centertest.Scope)
		take(t, w)
		w.Must(w.Store.InTx(t.Context(), func(tx *store.Tx) error {
			_, _, err := tx.InsertTask(t.Context(), store.NewTask{
				ID: uuid.New(), Scope: centertest.Scope, What: protocol.Record, Key: centertest.Key, Mode: protocol.Repair, GrantEpoch: 1, CreatedBy: "test",
			})
			return err
		}))
		if _, ok := take(t, w); !ok {
			t.Error("the record waits")
		}
	})
	t.Run("a_task_whose_grant_was_lost_is_cancelled_and_the_next_one_taken", func(t *testing.T) {
		w := centertest.New(t)
		w.Grant(second)
		first, other := w.Pending(centertest.Scope), w.Pending(second)
		w.Revoke(centertest.Scope)
		if id, _ := take(t, w); id != other {
			t.Errorf("took %s", id)
		}
		w.WantState(first, "CANCELLED GRANT_REVOKED")
	})
	t.Run("trouble_backs_off_and_ends_with_the_budget", func(t *testing.T) {
		w := centertest.New(t)
		id := w.Pending(centertest.Scope)
		for try, wait := range []int{60, 120} {
			c, _, _, err := w.Store.ClaimMaterialise(t.Context(), "worker", centertest.Policy.ClaimLease)
			w.Must(err)
			w.Must(w.Store.RetryMaterialise(t.Context(), c, centertest.Policy, fault.Unavailable))
			w.WantState(id, "QUEUED UNAVAILABLE")
			if due := w.Int(`SELECT round(extract(epoch FROM due_at - now()))::int FROM lockstep.task`); due != wait {
				t.Errorf("after try %d it is due in %d s, want %d", try+1, due, wait)
			}
			w.Set(id, `due_at = now()`)
		}
		c, _, _, err := w.Store.ClaimMaterialise(t.Context(), "worker", centertest.Policy.ClaimLease)
		w.Must(err)
		w.Must(w.Store.RetryMaterialise(t.Context(), c, centertest.Policy, fault.Unavailable))
		w.WantState(id, "FAILED MATERIALISE_FAILED")
		if tk := w.Read(id); tk.ManifestState != task.ManifestFailed || tk.EndedAt.IsZero() {
			t.Errorf("manifest %s, ended %s", tk.ManifestState, tk.EndedAt)
		}
	})
}
