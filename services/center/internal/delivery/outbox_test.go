package delivery_test

import (
	"testing"

	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/store"
)

func TestReader(t *testing.T) {
	t.Run("changes_of_granted_records_are_queued_once_a_consumer", func(t *testing.T) {
		w := setup(t)
		other := store.Scope{Consumer: "svc-other", TenantID: centertest.Tenant, CollectionID: centertest.Collection}
		w.Grant(other)
		w.answer(1)
		w.Exec(insertAnswer, key(2), "form-without-a-grant")
		w.read()
		w.wantQueue("1 PENDING 0", "1 PENDING 0")
		if w.woken != 1 {
			t.Errorf("woken %d times", w.woken)
		}
	})
	t.Run("a_tenant_that_the_consumer_does_not_serve_is_not_queued", func(t *testing.T) {
		w := setup(t)
		w.Exec(`DELETE FROM lockstep.consumer_tenant`)
		w.answer(1)
		w.read()
		w.wantQueue()
	})
	t.Run("a_late_commit_is_not_skipped", func(t *testing.T) {
		w := setup(t)
		// The older transaction writes first and commits last.
		late, err := w.Connect().Begin(t.Context())
		w.Must(err)
		_, err = late.Exec(t.Context(), insertAnswer, key(1), centertest.Collection)
		w.Must(err)
		w.answer(2)
		w.read()
		w.wantQueue() // the younger one waits for the older to end, one way or the other
		w.Must(late.Commit(t.Context()))
		w.read()
		w.wantQueue("1 PENDING 0", "2 PENDING 0")
	})
	t.Run("an_older_transaction_that_rolls_back_holds_nothing_up_for_ever", func(t *testing.T) {
		w := setup(t)
		late, err := w.Connect().Begin(t.Context())
		w.Must(err)
		_, err = late.Exec(t.Context(), insertAnswer, key(1), centertest.Collection)
		w.Must(err)
		w.answer(2)
		w.read()
		w.Must(late.Rollback(t.Context()))
		w.read()
		w.wantQueue("2 PENDING 0")
	})
	t.Run("many_transactions_in_any_order_of_commits_lose_nothing", func(t *testing.T) {
		w := setup(t)
		const transactions = 40
		done := make(chan error, transactions)
		pool := w.Connect()
		for n := 1; n <= transactions; n++ {
			go func() {
				tx, err := pool.Begin(t.Context())
				if err == nil {
					_, err = tx.Exec(t.Context(), insertAnswer, key(n), centertest.Collection)
				}
				if err == nil {
					err = tx.Commit(t.Context())
				}
				done <- err
			}()
		}
		for range transactions {
			w.Must(<-done)
			w.read()
		}
		w.read()
		if n := w.Int(`SELECT count(*) FROM lockstep.delivery`); n != transactions {
			t.Errorf("%d of %d changes were queued", n, transactions)
		}
	})
	t.Run("the_position_is_kept_and_nothing_is_read_twice", func(t *testing.T) {
		w := setup(t)
		w.answer(1)
		w.read()
		before := w.Everything()
		w.read()
		if w.Everything() != before {
			t.Error("reading again changed something")
		}
	})
	t.Run("a_batch_is_read_by_one_of_two_processes", func(t *testing.T) {
		w := setup(t)
		w.answer(1)
		from, err := w.Store.OutboxPosition(t.Context(), "answers.answer_outbox")
		w.Must(err)
		w.read()
		to := from
		to.ID, to.System = 99, "elsewhere"
		_, moved, err := w.Store.Advance(t.Context(), "answers.answer_outbox", from, to, []store.Changed{{TenantID: 7, CollectionID: centertest.Collection, Key: "0123456789abcdef"}})
		w.Must(err)
		if moved {
			t.Error("the slower one moved the position back")
		}
		w.wantQueue("1 PENDING 0")
	})
	t.Run("another_database_is_read_from_the_beginning", func(t *testing.T) {
		w := setup(t)
		w.answer(1)
		w.read()
		w.Exec(`DELETE FROM lockstep.delivery`)
		w.Exec(`UPDATE lockstep.delivery_position SET source_system = 'another', xid = '999999999999', id = 99`)
		w.read()
		w.wantQueue("1 PENDING 0")
	})
}

func TestCoalescing(t *testing.T) {
	w := setup(t)
	w.answer(1)
	w.change()
	w.read()
	w.change()
	w.read()
	w.wantQueue("1 PENDING 0")
	if n := w.send(); n != 1 {
		t.Errorf("%d attempts", n)
	}
	w.wantSent("1 3")
	w.wantQueue("1 DONE 1  APPLIED")
	w.change()
	w.read()
	w.wantQueue("1 PENDING 0  APPLIED")
	w.send()
	w.wantSent("1 3", "1 4")
}
