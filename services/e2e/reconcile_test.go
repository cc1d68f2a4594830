package e2e

import (
	"maps"
	"testing"
)

// everything is a damage with each class that can be mended.
var everything = damage{missing: 40, stale: 40, conflict: 30, tombstone: 20, extra: 15}

func (d damage) outcomes() map[string]int64 {
	out := map[string]int64{
		"MISSING/REPAIRED": int64(d.missing), "STALE/REPAIRED": int64(d.stale), "HASH_CONFLICT/REPAIRED": int64(d.conflict),
		"TOMBSTONE/REPAIRED": int64(d.tombstone), "EXTRA_ROW/RETIRED": int64(d.extra),
	}
	maps.DeleteFunc(out, func(_ string, n int64) bool { return n == 0 })
	return out
}

// mended checks all that must be true after a task that mended everything.
func (s *stack) mended(id string, d damage, extensions string) {
	s.t.Helper()
	if state := s.taskState(id); state != "COMPLETED" {
		s.t.Errorf("the task ended %s, want COMPLETED; %s", state, s.states())
	}
	if got, want := s.outcomes(id), d.outcomes(); !maps.Equal(got, want) {
		s.t.Errorf("the ledger has %v, want %v", got, want)
	}
	if n := s.differences(form); n != 0 {
		s.t.Errorf("%d rows still differ", n)
	}
	if now := s.extensions(); now != extensions {
		s.t.Error("extension columns of the host changed")
	}
	s.fsck()
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.fill(form, 3000)
	s.damageAll(form, everything)
	before := s.extensions()
	s.startConsumer("", nil)
	s.startCenter("", nil)

	id := s.create(form)
	s.awaitEnd(id)
	s.mended(id, everything, before)

	t.Run("a second round finds nothing and fetches nothing", func(t *testing.T) {
		again := s.create(form)
		if state := s.awaitEnd(again); state != "COMPLETED" {
			t.Errorf("it ended %s", state)
		}
		var fetched int64
		s.must(s.consumer.QueryRow(t.Context(), `SELECT fetched FROM lockstep.work WHERE task_id = $1::uuid`, again).Scan(&fetched))
		if got := s.outcomes(again); len(got) != 0 || fetched != 0 {
			t.Errorf("it found %v and fetched %d", got, fetched)
		}
	})
}
