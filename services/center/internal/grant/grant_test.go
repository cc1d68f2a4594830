package grant_test

import (
	"testing"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/grant"
	"lockstep.dev/services/center/internal/store"
)

func setup(t *testing.T) (*centertest.World, *grant.Keeper) {
	t.Helper()
	w := centertest.New(t)
	return w, &grant.Keeper{Store: w.Store, Wake: func() {}}
}

func TestSetGrant(t *testing.T) {
	full := store.Grant{Scope: centertest.Scope, Enabled: true, ReadAllowed: true, SubscribeAllowed: true}
	t.Run("a_new_grant_begins_with_epoch_1", func(t *testing.T) {
		w, k := setup(t)
		want := full
		want.CollectionID = "form-2"
		got, cancelled, err := k.Set(t.Context(), want, "operator/eva")
		w.Must(err)
		if got.Epoch != 1 || !got.Effective() || cancelled != 0 {
			t.Errorf("got %+v, %d cancelled", got, cancelled)
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE actor = 'operator/eva' AND action = 'grant.set' AND object = 'grant/svc-hall/7/form-2'`); n != 1 {
			t.Errorf("%d audit rows", n)
		}
	})
	t.Run("narrowing_raises_the_epoch_and_cancels_open_tasks", func(t *testing.T) {
		w, k := setup(t)
		id := w.Running(centertest.Scope)
		narrow := full
		narrow.SubscribeAllowed = false
		got, cancelled, err := k.Set(t.Context(), narrow, "operator/eva")
		w.Must(err)
		if got.Epoch != 2 || got.Effective() || cancelled != 1 {
			t.Errorf("got %+v, %d cancelled", got, cancelled)
		}
		w.WantState(id, "CANCELLED GRANT_REVOKED")
	})
	t.Run("widening_and_repeating_keep_the_epoch", func(t *testing.T) {
		w, k := setup(t)
		id := w.Running(centertest.Scope)
		got, cancelled, err := k.Set(t.Context(), full, "operator/eva")
		w.Must(err)
		if got.Epoch != 1 || cancelled != 0 {
			t.Errorf("epoch %d, %d cancelled", got.Epoch, cancelled)
		}
		w.WantState(id, "RUNNING")
	})
	t.Run("a_grant_outside_the_consumer's_tenants_can't_be_made", func(t *testing.T) {
		_, k := setup(t)
		outside := full
		outside.TenantID = 8
		if _, _, err := k.Set(t.Context(), outside, "operator/eva"); fault.ReasonOf(err) != fault.ScopeMismatch {
			t.Errorf("got %v", err)
		}
	})
}

func TestRemoveTenant(t *testing.T) {
	w, k := setup(t)
	second := centertest.Scope
	second.CollectionID = "form-2"
	w.Grant(second)
	first, other := w.Running(centertest.Scope), w.Pending(second)
	cancelled, err := k.RemoveTenant(t.Context(), centertest.Consumer, centertest.Tenant, "operator/eva")
	w.Must(err)
	if cancelled != 2 {
		t.Errorf("%d tasks were cancelled", cancelled)
	}
	w.WantState(first, "CANCELLED GRANT_REVOKED")
	w.WantState(other, "CANCELLED GRANT_REVOKED")
	if n := w.Int(`SELECT count(*) FROM lockstep.consumer_grant WHERE grant_epoch = 2`); n != 2 {
		t.Errorf("%d epochs were raised", n)
	}
	t.Run("adding_it_again_does_not_bring_old_tasks_back", func(t *testing.T) {
		w.Must(k.AddTenant(t.Context(), centertest.Consumer, centertest.Tenant, "operator/eva"))
		epoch, effective, err := w.Store.GrantEffective(t.Context(), centertest.Consumer, centertest.Tenant, centertest.Collection)
		w.Must(err)
		if epoch != 2 || !effective {
			t.Errorf("epoch %d, effective %t", epoch, effective)
		}
		w.WantState(first, "CANCELLED GRANT_REVOKED")
	})
}
