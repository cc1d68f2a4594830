package store_test

import (
	"testing"

	"github.com/google/uuid"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/centertest"
)

func TestAuthorize(t *testing.T) {
	w := centertest.New(t)
	want := func(t *testing.T, consumer string, id uuid.UUID, want fault.Reason) {
		t.Helper()
		_, err := w.Store.Authorize(t.Context(), consumer, id)
		if got := fault.ReasonOf(err); got != want {
			t.Errorf("got %q (%v), want %q", got, err, want)
		}
		if state := fault.MetaOf(err)["task_state"]; want == fault.TaskTerminal && state != "CANCELLED" {
			t.Errorf("the task ended %q", state)
		}
	}
	id := w.Running(centertest.Scope)
	t.Run("the_task's_consumer_passes_and_nothing_is_written", func(t *testing.T) {
		before := w.Everything()
		want(t, centertest.Consumer, id, fault.None)
		if w.Everything() != before {
			t.Error("a check wrote something")
		}
	})
	t.Run("nobody_learns_of_the_tasks_of_others", func(t *testing.T) {
		want(t, "svc-other", id, fault.TaskNotFound)
		want(t, centertest.Consumer, uuid.New(), fault.TaskNotFound)
	})
	t.Run("a_moved_epoch_cancels_there_and_then", func(t *testing.T) {
		w.Exec(`UPDATE lockstep.consumer_grant SET grant_epoch = 2`)
		want(t, centertest.Consumer, id, fault.EpochMoved)
		w.WantState(id, "CANCELLED EPOCH_MOVED")
	})
	t.Run("a_raised_center_epoch_too", func(t *testing.T) {
		w.Exec(`UPDATE lockstep.consumer_grant SET grant_epoch = 1`)
		next := w.Running(centertest.Scope)
		w.Exec(`UPDATE lockstep.center SET center_epoch = center_epoch + 1`)
		want(t, centertest.Consumer, next, fault.EpochMoved)
		w.WantState(next, "CANCELLED EPOCH_MOVED")
	})
	t.Run("then_the_task_has_ended_and_says_how", func(t *testing.T) {
		want(t, centertest.Consumer, id, fault.TaskTerminal)
	})
	t.Run("a_tenant_taken_away_is_a_lost_grant", func(t *testing.T) {
		w.Exec(`UPDATE lockstep.consumer_grant SET grant_epoch = 1`)
		next := w.Running(centertest.Scope)
		w.Exec(`DELETE FROM lockstep.consumer_tenant`)
		want(t, centertest.Consumer, next, fault.GrantRevoked)
		w.WantState(next, "CANCELLED GRANT_REVOKED")
	})
}
