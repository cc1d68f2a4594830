package worker_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
)

// refuse makes the host's table refuse, with an SQLSTATE, every update of row n
// for which a condition on OLD and NEW holds; put off, it does so at the commit.
func (w *world) refuse(n int, condition, code string, deferred bool) {
	w.t.Helper()
	w.exec(fmt.Sprintf(`CREATE FUNCTION hall.refuse_%d() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
		RAISE EXCEPTION 'the host wants it so' USING ERRCODE = '%s'; END$$`, n, code))
	when, kind := "BEFORE", "TRIGGER"
	if deferred {
		when, kind = "AFTER", "CONSTRAINT TRIGGER"
	}
	off := ""
	if deferred {
		off = "DEFERRABLE INITIALLY DEFERRED"
	}
	w.exec(fmt.Sprintf(`CREATE %s refuse_%d %s UPDATE ON hall.answer_projection %s FOR EACH ROW
		WHEN (OLD.answer_id = '%s' AND %s) EXECUTE FUNCTION hall.refuse_%[2]d()`, kind, n, when, off, uuid.UUID([]byte(k(n))), condition))
}

// marked lists the rows that hold a conflict's detail.
func (w *world) marked() (out []int) {
	w.t.Helper()
	for n := range 20 {
		var is bool
		if err := w.pool.QueryRow(w.t.Context(), `SELECT COALESCE(bool_or(conflict_detail IS NOT NULL), false) FROM hall.answer_projection WHERE answer_id = $1`,
			[16]byte([]byte(k(n)))).Scan(&is); err != nil {
			w.t.Fatal(err)
		}
		if is {
			out = append(out, n)
		}
	}
	return out
}

// One row in which the host keeps no conflict's mark takes nothing of its batch with it.
func TestAConflictThatTheHostRefusesToKeep(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	but3 := []int{0, 1, 2, 4, 5, 6, 7}
	const marking = `OLD.conflict_detail IS DISTINCT FROM NEW.conflict_detail`
	for name, c := range map[string]struct {
		before func(*world)
		row3   string
		marked []int
	}{
		"nobody refuses": {func(*world) {}, "REPAIRED", all},
		"a trigger":      {func(w *world) { w.refuse(3, marking, "P0001", false) }, "REPAIRED", but3},
		"a trigger at the commit": {
			func(w *world) { w.refuse(3, marking, "23514", true) }, "REPAIRED", but3,
		},
		"a trigger that refuses the repair too": {
			func(w *world) { w.refuse(3, "true", "P0001", false) }, "QUARANTINED QUARANTINED", but3,
		},
		"a check that the old row violates and the new one does not": {
			func(w *world) {
				w.exec(`ALTER TABLE hall.answer_projection ADD CHECK ("values" <> '{"local":3}') NOT VALID`)
			}, "REPAIRED", but3,
		},
		"a column that is too short for any": {
			func(w *world) {
				w.exec(`ALTER TABLE hall.answer_projection ALTER COLUMN conflict_detail TYPE varchar(40)`)
			}, "REPAIRED", nil,
		},
		"a lock that a trigger does not get": {
			func(w *world) { w.refuse(3, marking, "55P03", false) }, "REPAIRED", but3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			want := map[string]centertest.Record{}
			var ledger []string
			for _, n := range all {
				w.local(k(n), rec(1, fmt.Sprintf(`{"local":%d}`, n)))
				w.center.Put(k(n), rec(1, fmt.Sprintf(`{"center":%d}`, n)))
				want[k(n)] = rec(1, fmt.Sprintf(`{"center":%d}`, n))
				ledger = append(ledger, fmt.Sprintf("%d HASH_CONFLICT REPAIRED", n))
			}
			ledger[3] = "3 HASH_CONFLICT " + c.row3
			state := work.Completed
			if c.row3 != "REPAIRED" {
				want[k(3)], state = rec(1, `{"local":3}`), work.Partial
			}
			c.before(w)
			task := w.run()
			w.wantState(task, state, "")
			w.wantLedger(task, ledger...)
			w.wantImage(want)
			if got := w.marked(); !slices.Equal(got, c.marked) {
				t.Errorf("marked are %v, want %v", got, c.marked)
			}
		})
	}
}

// One row that the host refuses to retire is quarantined, and the one
// transaction retires the rest.
func TestARetirementThatTheHostRefuses(t *testing.T) {
	const retiring = `NEW.retired_at IS NOT NULL`
	for name, c := range map[string]struct {
		before func(*world)
		row3   string
	}{
		"a trigger":               {func(w *world) { w.refuse(3, retiring, "P0001", false) }, "QUARANTINED QUARANTINED"},
		"a trigger at the commit": {func(w *world) { w.refuse(3, retiring, "23503", true) }, "QUARANTINED QUARANTINED"},
		"a check": {func(w *world) {
			w.exec(`ALTER TABLE hall.answer_projection ADD CHECK (retired_at IS NULL OR apply_id <> 'open')`)
			w.exec(`UPDATE hall.answer_projection SET apply_id = 'open' WHERE answer_id = $1`, [16]byte([]byte(k(3))))
		}, "QUARANTINED QUARANTINED"},
		"a lock that a trigger does not get": {func(w *world) { w.refuse(3, retiring, "55P03", false) }, "REPORTED REVISION_MISMATCH"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.both(k(9), rec(1, `{}`))
			for n := 1; n <= 5; n++ {
				w.local(k(n), rec(1, `{}`))
			}
			c.before(w)
			task := w.run()
			w.wantState(task, work.Partial, "")
			w.wantRetireCode(task, "")
			w.wantLedger(task, "1 EXTRA_ROW RETIRED", "2 EXTRA_ROW RETIRED", "3 EXTRA_ROW "+c.row3, "4 EXTRA_ROW RETIRED", "5 EXTRA_ROW RETIRED")
			w.wantImage(map[string]centertest.Record{k(3): rec(1, `{}`), k(9): rec(1, `{}`)})
			var transactions, floors int
			if err := w.pool.QueryRow(t.Context(), `SELECT (SELECT count(DISTINCT xmin::text) FROM hall.answer_projection WHERE retired_at IS NOT NULL),
				(SELECT count(*) FROM lockstep.high_water WHERE retired)`).Scan(&transactions, &floors); err != nil {
				t.Fatal(err)
			}
			if transactions != 1 || floors != 4 {
				t.Errorf("retired in %d transactions, with %d floors", transactions, floors)
			}
		})
	}
	t.Run("those that are refused count for the breaker all the same", func(t *testing.T) {
		w := setup(t)
		for n := range 22 {
			w.local(k(1000+n), rec(1, `{}`))
		}
		for n := range 189 {
			w.both(k(n), rec(1, `{}`))
		}
		// 22 of 211 are more than ten percent; 20 would pass whatever their share.
		w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() {
			w.exec(`UPDATE lockstep.outcome SET outcome = 'QUARANTINED', code = 'QUARANTINED' WHERE record_key IN ($1, $2)`, []byte(k(1000)), []byte(k(1001)))
		})})
		task := w.run()
		w.wantRetireCode(task, "RETIRE_BREAKER")
		if left := len(w.image()); left != 211 {
			t.Errorf("%d rows are left", left)
		}
	})
	t.Run("proofs that grow old while the row is looked for are asked for again", func(t *testing.T) {
		w := setup(t)
		w.both(k(9), rec(1, `{}`))
		for n := 1; n <= 5; n++ {
			w.local(k(n), rec(1, `{}`))
		}
		w.refuse(3, retiring, "P0001", false)
		seen := 0
		w.repairer.Changed = func(context.Context, *store.Effect, [][]byte) error {
			// Of the first look for the row; nothing was refused in what was before.
			if seen++; seen == 1 {
				w.skew.Add(int64(2 * time.Minute))
			}
			return nil
		}
		task := w.run()
		w.wantLedger(task, "1 EXTRA_ROW RETIRED", "2 EXTRA_ROW RETIRED", "3 EXTRA_ROW QUARANTINED QUARANTINED", "4 EXTRA_ROW RETIRED", "5 EXTRA_ROW RETIRED")
		if asked := w.center.Asked(); len(asked) != 5+4 {
			t.Errorf("%d rows were asked about, want 5 and 4 of them again", len(asked))
		}
	})
	t.Run("any other failure rolls all back", func(t *testing.T) {
		w := setup(t)
		w.both(k(9), rec(1, `{}`))
		for n := 1; n <= 5; n++ {
			w.local(k(n), rec(1, `{}`))
		}
		w.refuse(3, retiring, "57P03", false)
		before := w.dump("hall.answer_projection", "lockstep.high_water", "lockstep.audit")
		task := w.run()
		w.wantState(task, work.Queued, "UNAVAILABLE")
		w.wantLedger(task, "1 EXTRA_ROW REPORTED", "2 EXTRA_ROW REPORTED", "3 EXTRA_ROW REPORTED", "4 EXTRA_ROW REPORTED", "5 EXTRA_ROW REPORTED")
		if w.dump("hall.answer_projection", "lockstep.high_water", "lockstep.audit") != before {
			t.Error("something was written")
		}
	})
}

// Whatever the center may sign instead of a value is taken, for a row that it has
// and for one that only the consumer has, and stops no other.
func TestEveryReasonToStateNothing(t *testing.T) {
	for _, code := range protocol.UndecidableCodes() {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.center.Put(k(1), rec(1, `{}`))
			w.center.Put(k(2), rec(1, `{}`))
			w.local(k(3), rec(1, `{}`))
			w.local(k(4), rec(1, `{}`))
			w.center.Decline(k(1), fault.Reason(code))
			w.center.Decline(k(3), fault.Reason(code))
			task := w.run()
			w.wantState(task, work.Partial, "")
			w.wantLedger(task, "1 MISSING REPORTED "+code, "2 MISSING REPAIRED", "3 EXTRA_ROW REPORTED "+code, "4 EXTRA_ROW RETIRED")
		})
	}
}
