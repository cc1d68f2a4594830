package delivery_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/claim/claimtest"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/store"
)

func TestSnapshot(t *testing.T) {
	w := setup(t)
	w.answer(1)
	w.read()
	// The value that is sent is the one of now, not of the change.
	w.change()
	w.Exec(`UPDATE lockstep.center SET center_epoch = 4`)
	w.Exec(`UPDATE lockstep.consumer_grant SET grant_epoch = 9`)
	w.send()
	if len(w.consumer.got) != 1 {
		t.Fatalf("%d snapshots", len(w.consumer.got))
	}
	s := w.consumer.got[0]
	at := protocol.Coordinates{Source: "form-center", Consumer: "svc-hall", TenantID: 7, CollectionID: "form-1", GrantEpoch: 9, CenterEpoch: 4}
	if s.At != at || s.Key != key(1) || s.Revision != 2 || s.Deleted || len(s.Nonce) != 0 || len(s.EventID) != 32 || !bytes.Equal(s.Content, []byte(`{"a": 1}`)) {
		t.Errorf("snapshot %+v", s)
	}
	if want, err := canon.Sum([]byte(`{"a":1}`)); err != nil || s.Hash != want {
		t.Errorf("hash %s", s.Hash)
	}
	w.Exec(`UPDATE answers.answer SET deleted = true, "values" = NULL, revision = 3`)
	w.read()
	w.send()
	if s := w.consumer.got[1]; !s.Deleted || s.Content != nil || s.Revision != 3 {
		t.Errorf("tombstone %+v", s)
	}
}

// What an attempt's end makes of the delivery.
func TestConclusions(t *testing.T) {
	answer := func(o consumerv1.DeliveryOutcome) func(*world) {
		return func(w *world) {
			w.consumer.answer = func(*protocol.Snapshot) (consumerv1.DeliveryOutcome, error) { return o, nil }
		}
	}
	refuse := func(code fault.Reason) func(*world) { return func(w *world) { w.consumer.answer = refused(code) } }
	sql := func(sql string) func(*world) { return func(w *world) { w.Exec(sql) } }
	for name, c := range map[string]struct {
		change func(*world)
		want   string
		sent   int
	}{
		"applied":                         {answer(consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_APPLIED), "1 DONE 1  APPLIED", 1},
		"duplicate":                       {answer(consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_DUPLICATE), "1 DONE 1  DUPLICATE", 1},
		"older":                           {answer(consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_OLDER), "1 DONE 1 LOCAL_AHEAD OLDER", 1},
		"retired":                         {answer(consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_RETIRED), "1 DONE 1  RETIRED", 1},
		"a conflict is for an operator":   {answer(consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_CONFLICT), "1 FAILED 1 HASH_CONFLICT CONFLICT", 1},
		"no outcome at all":               {answer(consumerv1.DeliveryOutcome_DELIVERY_OUTCOME_UNSPECIFIED), "1 FAILED 1 DISPATCH_FAILED", 1},
		"unavailable is tried again":      {refuse(fault.Unavailable), "1 PENDING 1 UNAVAILABLE", 1},
		"switched off over there":         {refuse(fault.ExecutionDisabled), "1 PENDING 1 EXECUTION_DISABLED", 1},
		"a rollback is for an operator":   {refuse(fault.RollbackDetected), "1 FAILED 1 ROLLBACK_DETECTED", 1},
		"the host's table refuses it":     {refuse(fault.Quarantined), "1 FAILED 1 QUARANTINED", 1},
		"the key is held elsewhere there": {refuse(fault.ScopeMismatch), "1 FAILED 1 SCOPE_MISMATCH", 1},
		"a refused signature":             {func(w *world) { w.consumer.keys = nil }, "1 PENDING 1 SIGNATURE_INVALID", 0},
		"the grant is revoked meanwhile":  {sql(`UPDATE lockstep.consumer_grant SET read_allowed = false`), "1 DROPPED 1 GRANT_REVOKED", 0},
		"the tenant is taken meanwhile":   {sql(`DELETE FROM lockstep.consumer_tenant`), "1 DROPPED 1 GRANT_REVOKED", 0},
		"the record is gone":              {sql(`DELETE FROM answers.answer`), "1 DROPPED 1 ROW_GONE", 0},
		"the record moved":                {sql(`UPDATE answers.answer SET form_id = 'form-2'`), "1 DROPPED 1 SCOPE_MISMATCH", 0},
		"the record has no revision":      {sql(`UPDATE answers.answer SET revision = 0`), "1 FAILED 1 REVISION_ZERO", 0},
		"the content has no hash": {
			sql(`UPDATE answers.answer SET "values" = (repeat('[', 70) || repeat(']', 70))::jsonb`), "1 FAILED 1 CANON_REFUSED", 0,
		},
		"no target": {sql(`UPDATE lockstep.delivery SET consumer = 'svc-nowhere'; INSERT INTO lockstep.consumer_tenant VALUES ('svc-nowhere', 7);
			UPDATE lockstep.consumer_grant SET consumer = 'svc-nowhere'`), "1 PENDING 1 TARGET_NOT_REGISTERED", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.answer(1)
			w.read()
			c.change(w)
			if n := w.send(); n != 1 {
				t.Errorf("%d attempts", n)
			}
			w.wantQueue(c.want)
			if len(w.consumer.got) != c.sent {
				t.Errorf("%d snapshots reached the consumer, want %d", len(w.consumer.got), c.sent)
			}
		})
	}
}

func TestBackOffAndFailedList(t *testing.T) {
	w := setup(t)
	w.consumer.answer = refused(fault.Unavailable)
	w.answer(1)
	w.read()
	for attempt, wait := range []int{60, 120} {
		w.send()
		w.wantQueue(fmt.Sprintf("1 PENDING %d UNAVAILABLE", attempt+1))
		if due := w.Int(`SELECT round(extract(epoch FROM due_at - now()))::int FROM lockstep.delivery`); due != wait {
			t.Errorf("after attempt %d it is due in %d s, want %d", attempt+1, due, wait)
		}
		w.due()
	}
	w.send()
	w.wantQueue("1 FAILED 3 UNAVAILABLE")
	failed, err := w.Store.Deliveries(t.Context(), store.DeliveryPage{States: []store.DeliveryState{store.DeliveryFailed}, Limit: 10})
	w.Must(err)
	if len(failed) != 1 || failed[0].Key != string(make([]byte, 15))+"\x01" || *failed[0].Revision != 1 || failed[0].EndedAt == nil {
		t.Errorf("the failed list is %+v", failed)
	}
	if got := w.counted("svc-hall", "FAILED", "UNAVAILABLE"); got != 1 {
		t.Errorf("%v failures were counted", got)
	}
	// A change of the record starts anew.
	w.consumer.answer = applied
	w.change()
	w.read()
	w.send()
	w.wantQueue("1 DONE 1  APPLIED")
}

func TestReplay(t *testing.T) {
	w := setup(t)
	w.consumer.answer = refused(fault.Quarantined)
	w.answer(1)
	w.read()
	w.send()
	w.consumer.answer = applied
	raw, err := protocol.ParseKey(key(1))
	w.Must(err)
	replay := func() error {
		_, err := w.Store.Replay(t.Context(), centertest.Scope, raw, "mended", "operator/eva", "record/1")
		return err
	}
	w.Must(replay())
	w.wantQueue("1 PENDING 0")
	w.send()
	w.wantQueue("1 DONE 1  APPLIED")
	if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE action = 'delivery.replay' AND actor = 'operator/eva' AND reason = 'mended'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	// The grant is looked at first, and nothing else happens.
	w.Revoke(centertest.Scope)
	before := w.Everything()
	if code := fault.ReasonOf(replay()); code != fault.GrantRevoked || w.Everything() != before {
		t.Errorf("refused with %q, or something changed", code)
	}
}

func TestAChangeDuringAnAttemptIsSentAfterIt(t *testing.T) {
	for name, answer := range map[string]func(*protocol.Snapshot) (consumerv1.DeliveryOutcome, error){
		"that succeeds": applied, "that is given up": refused(fault.Quarantined),
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.answer(1)
			w.read()
			w.consumer.answer = func(s *protocol.Snapshot) (consumerv1.DeliveryOutcome, error) {
				w.change()
				w.read()
				w.consumer.answer = applied
				return answer(s)
			}
			if n := w.send(); n != 2 {
				t.Errorf("%d attempts", n)
			}
			w.wantSent("1 1", "1 2")
			w.wantQueue("1 DONE 1  APPLIED")
		})
	}
}

func TestSweep(t *testing.T) {
	w := setup(t)
	w.answer(1)
	w.read()
	sweep := func() {
		t.Helper()
		_, err := w.sweeper.SweepOnce(t.Context())
		w.Must(err)
	}
	for attempt, wait := range []int{0, 60} {
		code := []string{"", " LEASE_EXPIRED"}[attempt]
		_, _, ok, err := w.Store.ClaimDelivery(t.Context(), "mortal", policy)
		w.Must(err)
		if !ok {
			t.Fatal("it can't be claimed")
		}
		sweep()
		w.wantQueue(fmt.Sprintf("1 SENDING %d%s", attempt+1, code)) // its lease holds
		w.Exec(`UPDATE lockstep.delivery SET lease_until = now() - interval '1 second'`)
		sweep()
		w.wantQueue(fmt.Sprintf("1 PENDING %d LEASE_EXPIRED", attempt+1))
		if due := w.Int(`SELECT round(extract(epoch FROM due_at - now()))::int FROM lockstep.delivery`); due != wait {
			t.Errorf("due in %d s, want %d", due, wait)
		}
		w.due()
	}
	_, _, _, err := w.Store.ClaimDelivery(t.Context(), "mortal", policy)
	w.Must(err)
	w.Exec(`UPDATE lockstep.delivery SET lease_until = now() - interval '1 second'`)
	sweep()
	w.wantQueue("1 FAILED 3 LEASE_EXPIRED")
	w.Exec(`UPDATE lockstep.delivery SET ended_at = now() - interval '2 hours'`)
	sweep()
	w.wantQueue("1 FAILED 3 LEASE_EXPIRED") // failed ones stay
	w.Exec(`UPDATE lockstep.delivery SET state = 'DONE'`)
	sweep()
	w.wantQueue()
}

func TestFenceDelivery(t *testing.T) {
	w := setup(t)
	n := 0
	raw := func() string { return string([]byte(fmt.Sprintf("%016d", n))) }
	claimtest.Run(t, claimtest.Site{
		Site: store.DeliverySite, Pool: w.Pool,
		NewRow: func(ctx context.Context) (uuid.UUID, error) {
			n++
			// What earlier rounds left due is not taken instead.
			w.Exec(`UPDATE lockstep.delivery SET due_at = now() + interval '1 day' WHERE state = 'PENDING'`)
			d, err := w.Store.Replay(ctx, centertest.Scope, raw(), "", "operator/eva", "record")
			return d.ID, err
		},
		Take: func(ctx context.Context, worker string) (claim.Claim, bool, error) {
			c, _, ok, err := w.Store.ClaimDelivery(ctx, worker, policy)
			return c, ok, err
		},
		Sweep: func(ctx context.Context) error {
			_, err := w.Store.SweepDeliveries(ctx, policy, 10)
			return err
		},
		Ready: "due_at = now()",
		Stale: map[string]func(context.Context, claim.Claim) error{
			"conclusion": func(ctx context.Context, c claim.Claim) error {
				return w.Store.ConcludeDelivery(ctx, c, store.Conclusion{State: store.DeliveryDone, Outcome: "APPLIED", Revision: 9, EventID: "old"})
			},
			"failure": func(ctx context.Context, c claim.Claim) error {
				return w.Store.ConcludeDelivery(ctx, c, store.Conclusion{State: store.DeliveryFailed, Code: "QUARANTINED"})
			},
			"give-back": func(ctx context.Context, c claim.Claim) error {
				return w.Store.ConcludeDelivery(ctx, c, store.Conclusion{State: store.DeliveryPending, Code: "UNAVAILABLE"})
			},
			"renewal": func(ctx context.Context, c claim.Claim) error {
				return store.DeliverySite.Renew(ctx, w.Pool, c, policy.ClaimLease)
			},
		},
		// The record changes once more while the young one sends.
		Conclude: func(ctx context.Context, c claim.Claim) error {
			w.Exec(`UPDATE lockstep.delivery SET generation = generation + 1 WHERE delivery_id = $1`, c.ID)
			return w.Store.ConcludeDelivery(ctx, c, store.Conclusion{State: store.DeliveryDone, Outcome: "APPLIED", Revision: 1, EventID: "young"})
		},
		Request: func(ctx context.Context, _ uuid.UUID) error {
			_, err := w.Store.Replay(ctx, centertest.Scope, raw(), "", "operator/eva", "record")
			return err
		},
		Pending: func(_ context.Context, id uuid.UUID) (bool, error) {
			return w.Int(`SELECT count(*) FROM lockstep.delivery WHERE delivery_id = $1 AND state = 'PENDING' AND attempts = 0`, id) == 1, nil
		},
	})
}
