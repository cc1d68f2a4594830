package worker_test

import (
	"context"
	"errors"
	"testing"

	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/work"
)

// What a consumer remembers of a record is ordered by (center epoch, revision).
func TestCenterEpochs(t *testing.T) {
	t.Run("an older word than one seen before is refused and freezes retirements", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(5, `{}`))
		w.wantState(w.run(), work.Completed, "")
		w.exec(`DELETE FROM hall.answer_projection`)
		w.center.Put(k(1), rec(4, `{"a":"restored"}`))
		w.local(k(2), rec(1, `{}`))
		task := w.run()
		w.wantState(task, work.Partial, "")
		w.wantLedger(task, "1 MISSING REPORTED ROLLBACK_DETECTED", "2 EXTRA_ROW REPORTED")
		if last := w.center.Last(); last.RetireCode != "ROLLBACK_DETECTED" {
			t.Errorf("retire code %q", last.RetireCode)
		}
		w.wantImage(map[string]centertest.Record{k(2): rec(1, `{}`)})
	})
	t.Run("a lower revision is accepted under a higher center epoch", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(5, `{}`))
		w.wantState(w.run(), work.Completed, "")
		w.exec(`DELETE FROM hall.answer_projection`)
		w.center.Put(k(1), rec(4, `{}`))
		w.center.SetCenterEpoch(2)
		w.wantState(w.run(), work.Completed, "")
		w.wantImage(map[string]centertest.Record{k(1): rec(4, `{}`)})
	})
	t.Run("a row of an older center epoch is lowered to the word of the newer one", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(5, `{}`))
		w.wantState(w.run(), work.Completed, "")
		w.center.Put(k(1), rec(4, `{"a":"restored"}`))
		w.center.SetCenterEpoch(2)
		task := w.run()
		w.wantState(task, work.Completed, "")
		w.wantLedger(task, "1 LOCAL_AHEAD REPAIRED")
		w.wantImage(map[string]centertest.Record{k(1): rec(4, `{"a":"restored"}`)})
		w.center.Put(k(1), rec(3, `{"a":"restored again, and nobody said so"}`))
		w.wantLedger(w.run(), "1 LOCAL_AHEAD REPORTED ROLLBACK_DETECTED")
		w.wantImage(map[string]centertest.Record{k(1): rec(4, `{"a":"restored"}`)})
	})
	t.Run("a row that no older center epoch stated is never lowered", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(5, `{}`))
		w.both(k(2), rec(5, `{}`))
		w.wantState(w.run(), work.Completed, "")
		w.exec(`UPDATE hall.answer_projection SET revision = 7 WHERE answer_id = $1`, [16]byte([]byte(k(1))))
		w.center.Put(k(1), rec(4, `{}`))
		w.center.Put(k(2), rec(4, `{}`))
		w.center.SetCenterEpoch(2)
		w.wantLedger(w.run(), "1 LOCAL_AHEAD REPORTED LOCAL_AHEAD", "2 LOCAL_AHEAD REPORTED LOCAL_AHEAD")
		w.wantImage(map[string]centertest.Record{k(1): rec(7, `{}`), k(2): rec(5, `{}`)})
	})
	t.Run("a row that came back above what the center has says where it is from until the epoch is raised", func(t *testing.T) {
		w := setup(t)
		w.local(k(1), rec(5, `{}`))
		w.both(k(2), rec(1, `{}`))
		w.wantLedger(w.run(), "1 EXTRA_ROW RETIRED")
		w.exec(`UPDATE hall.answer_projection SET retired_at = NULL WHERE answer_id = $1`, [16]byte([]byte(k(1))))
		w.center.Put(k(1), rec(3, `{"a":"made again"}`))
		w.wantLedger(w.run(), "1 LOCAL_AHEAD REPORTED LOCAL_AHEAD")
		w.center.SetCenterEpoch(2)
		task := w.run()
		w.wantState(task, work.Completed, "")
		w.wantLedger(task, "1 LOCAL_AHEAD REPAIRED")
		w.wantImage(map[string]centertest.Record{k(1): rec(3, `{"a":"made again"}`), k(2): rec(1, `{}`)})
	})
	t.Run("a row that a word of the newer center epoch confirmed meanwhile is not lowered", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(5, `{}`))
		w.wantState(w.run(), work.Completed, "")
		w.center.Put(k(1), rec(4, `{"a":"restored"}`))
		w.center.SetCenterEpoch(2)
		confirmed := onCall("GetRecords", 1, func() {
			w.exec(`UPDATE lockstep.high_water SET center_epoch = 2, revision = 5`)
		})
		moved := onCall("GetRecords", 2, func() { w.center.Put(k(1), rec(5, `{}`)) })
		w.center.Lie(centertest.Lies{Call: func(ctx context.Context, method string) error {
			return errors.Join(confirmed(ctx, method), moved(ctx, method))
		}})
		task := w.run()
		w.wantState(task, work.Completed, "")
		w.wantLedger(task, "1 LOCAL_AHEAD SETTLED")
		w.wantImage(map[string]centertest.Record{k(1): rec(5, `{}`)})
	})
}
