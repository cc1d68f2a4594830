package worker_test

import (
	"fmt"
	"testing"
	"time"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/consumer/internal/worker"
)

// alive says whether the nth row is in the image.
func (w *world) alive(n int) bool {
	_, ok := w.image()[k(n)]
	return ok
}

func (w *world) wantRetireCode(task *centertest.Task, code string) {
	w.t.Helper()
	if got := w.row(task).RetireCode; got != code {
		w.t.Errorf("retire code %q, want %q", got, code)
	}
	if last := w.center.Last(); last.RetireCode != code {
		w.t.Errorf("reported retire code %q, want %q", last.RetireCode, code)
	}
}

// Every precondition by itself: row 1 is extra beside a row that is right.
func TestRetirementPreconditions(t *testing.T) {
	key1 := [16]byte([]byte(k(1)))
	for name, c := range map[string]struct {
		before func(*world)
		lie    func(*world) centertest.Lies
		state  work.State
		ledger string
		alive  bool
	}{
		"all hold": {state: work.Completed, ledger: "1 EXTRA_ROW RETIRED"},
		"created after the window": {
			before: func(w *world) {
				w.exec(`UPDATE hall.answer_projection SET created_at = now() + interval '1 hour' WHERE answer_id = $1`, key1)
			},
			state: work.Partial, ledger: "1 EXTRA_ROW REPORTED NOT_RETIRABLE", alive: true,
		},
		"without a create time": {
			before: func(w *world) {
				w.exec(`UPDATE hall.answer_projection SET created_at = NULL WHERE answer_id = $1`, key1)
			},
			state: work.Partial, ledger: "1 EXTRA_ROW REPORTED NOT_RETIRABLE", alive: true,
		},
		"held by an operator": {
			before: func(w *world) {
				w.exec(`UPDATE hall.answer_projection SET retire_hold = true WHERE answer_id = $1`, key1)
			},
			state: work.Partial, ledger: "1 EXTRA_ROW REPORTED NOT_RETIRABLE", alive: true,
		},
		"young, and the center has it by now": {
			before: func(w *world) {
				w.exec(`UPDATE hall.answer_projection SET created_at = now() + interval '1 hour' WHERE answer_id = $1`, key1)
			},
			lie: func(w *world) centertest.Lies {
				return centertest.Lies{Call: onCall("GetRecords", 1, func() { w.center.Put(k(1), rec(1, `{}`)) })}
			},
			state: work.Completed, ledger: "1 EXTRA_ROW SETTLED", alive: true,
		},
		"the center has it newer by now": {
			lie: func(w *world) centertest.Lies {
				return centertest.Lies{Call: onCall("GetRecords", 1, func() { w.center.Put(k(1), rec(2, `{"a":2}`)) })}
			},
			state: work.Completed, ledger: "1 EXTRA_ROW REPAIRED", alive: true,
		},
		"the center has it older": {
			before: func(w *world) {
				w.exec(`UPDATE hall.answer_projection SET revision = 5 WHERE answer_id = $1`, key1)
			},
			lie: func(w *world) centertest.Lies {
				return centertest.Lies{Call: onCall("GetRecords", 1, func() { w.center.Put(k(1), rec(2, `{"a":2}`)) })}
			},
			state: work.Partial, ledger: "1 EXTRA_ROW REPORTED LOCAL_AHEAD", alive: true,
		},
		"the center has another value of the same revision": {
			lie: func(w *world) centertest.Lies {
				return centertest.Lies{Call: onCall("GetRecords", 1, func() { w.center.Put(k(1), rec(1, `{"a":2}`)) })}
			},
			state: work.Partial, ledger: "1 EXTRA_ROW REPORTED HASH_CONFLICT", alive: true,
		},
		"it lives elsewhere at the center": {
			before: func(w *world) { w.center.Decline(k(1), fault.ScopeMismatch) },
			state:  work.Partial, ledger: "1 EXTRA_ROW REPORTED SCOPE_MISMATCH", alive: true,
		},
		"the center suspects a rollback of its own": {
			before: func(w *world) { w.center.Decline(k(1), fault.RollbackSuspected) },
			state:  work.Partial, ledger: "1 EXTRA_ROW REPORTED ROLLBACK_SUSPECTED", alive: true,
		},
		"the grant was revoked meanwhile": {
			lie: func(w *world) centertest.Lies {
				return centertest.Lies{Call: onCall("GetRecords", 1, func() { w.center.Revoke(fault.GrantRevoked) })}
			},
			state: work.Cancelled, ledger: "1 EXTRA_ROW REPORTED", alive: true,
		},
		"the task ended meanwhile": {
			lie: func(w *world) centertest.Lies {
				return centertest.Lies{Call: onCall("GetRecords", 1, func() { w.center.EndAll(protocol.Failed, fault.LeaseExpired) })}
			},
			state: work.Failed, ledger: "1 EXTRA_ROW REPORTED", alive: true,
		},
		"the proof grew too old, and a second one is fresh": {
			lie: func(w *world) centertest.Lies {
				return centertest.Lies{Call: onCall("GetRecords", 1, func() { w.skew.Add(int64(2 * time.Minute)) })}
			},
			state: work.Completed, ledger: "1 EXTRA_ROW RETIRED",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.local(k(1), rec(1, `{}`))
			w.both(k(2), rec(1, `{}`))
			if c.before != nil {
				c.before(w)
			}
			if c.lie != nil {
				w.center.Lie(c.lie(w))
			}
			task := w.run()
			if got := w.row(task).State; got != c.state {
				t.Errorf("the row is %s, want %s", got, c.state)
			}
			w.wantLedger(task, c.ledger)
			if w.alive(1) != c.alive {
				t.Errorf("alive: %v", w.alive(1))
			}
			w.wantRetired(t, !c.alive)
		})
	}
}

// wantRetired holds a retirement, its floor and its audit row together.
func (w *world) wantRetired(t *testing.T, want bool) {
	t.Helper()
	var rows, floors, audits int
	if err := w.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM hall.answer_projection WHERE retired_at IS NOT NULL AND proof_id <> ''),
		(SELECT count(*) FROM lockstep.high_water WHERE retired), (SELECT count(*) FROM lockstep.audit WHERE action = 'retire')`).Scan(&rows, &floors, &audits); err != nil {
		t.Fatal(err)
	}
	n := 0
	if want {
		n = 1
	}
	if rows != n || floors != n || audits != n {
		t.Errorf("%d rows retired, %d floors, %d audit rows; want %d each", rows, floors, audits, n)
	}
}

func TestARowThatMovedIsLeftWhileOthersAreRetired(t *testing.T) {
	w := setup(t)
	w.both(k(9), rec(1, `{}`))
	for n := 1; n <= 3; n++ {
		w.local(k(n), rec(1, `{}`))
	}
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it only held a lock
	// A host transaction is changing the row when the retirement comes.
	w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() {
		if _, err := tx.Exec(t.Context(), `UPDATE hall.answer_projection SET revision = 2 WHERE answer_id = $1`, [16]byte([]byte(k(2)))); err != nil {
			t.Error(err)
		}
	})})
	task := w.run()
	w.wantState(task, work.Partial, "")
	w.wantLedger(task, "1 EXTRA_ROW RETIRED", "2 EXTRA_ROW REPORTED REVISION_MISMATCH", "3 EXTRA_ROW RETIRED")
}

// Proofs that do not verify: nothing is retired.
func TestLyingProofs(t *testing.T) {
	proof := func(f func(*protocol.Absence)) func(*world) centertest.Lies {
		return func(*world) centertest.Lies {
			return centertest.Lies{Word: func(word any) {
				if a, ok := word.(*protocol.Absence); ok {
					f(a)
				}
			}}
		}
	}
	for name, c := range map[string]struct {
		lie  func(*world) centertest.Lies
		code fault.Reason
	}{
		"of another task":               {proof(func(a *protocol.Absence) { a.At.TaskID = protocol.FormatKey(k(9)) }), fault.TaskMismatch},
		"of another tenant":             {proof(func(a *protocol.Absence) { a.At.TenantID++ }), fault.TenantMismatch},
		"of another collection":         {proof(func(a *protocol.Absence) { a.At.CollectionID = "x" }), fault.CollectionMismatch},
		"of an older grant":             {proof(func(a *protocol.Absence) { a.At.GrantEpoch-- }), fault.GrantEpochMismatch},
		"about another key":             {proof(func(a *protocol.Absence) { a.Key = protocol.FormatKey(k(3)) }), fault.KeyMismatch},
		"with another nonce":            {proof(func(a *protocol.Absence) { a.Nonce[0]++ }), fault.NonceMismatch},
		"of another revision":           {proof(func(a *protocol.Absence) { a.ExpectedRevision++ }), fault.RevisionMismatch},
		"of another manifest":           {proof(func(a *protocol.Absence) { a.ManifestID = protocol.FormatKey(k(9)) }), fault.ManifestMismatch},
		"of another root":               {proof(func(a *protocol.Absence) { a.ManifestRoot[0]++ }), fault.ManifestMismatch},
		"without an id":                 {proof(func(a *protocol.Absence) { a.ProofID = "" }), fault.InvalidArgument},
		"with an id that is too long":   {proof(func(a *protocol.Absence) { a.ProofID = fmt.Sprintf("%0129d", 1) }), fault.InvalidArgument},
		"of a tree of another size":     {proof(func(a *protocol.Absence) { a.Evidence.Size++ }), fault.PageNotProven},
		"without its left neighbour":    {proof(func(a *protocol.Absence) { a.Evidence.Left = nil }), fault.PageNotProven},
		"without its right neighbour":   {proof(func(a *protocol.Absence) { a.Evidence.Right = nil }), fault.PageNotProven},
		"with a forged neighbour":       {proof(func(a *protocol.Absence) { a.Evidence.Left.Row.Revision++ }), fault.PageNotProven},
		"with a neighbour out of place": {proof(func(a *protocol.Absence) { a.Evidence.Left.Index++ }), fault.PageNotProven},
		"with a cut path":               {proof(func(a *protocol.Absence) { a.Evidence.Left.Path = a.Evidence.Left.Path[1:] }), fault.PageNotProven},
		"tampered after signing":        {func(*world) centertest.Lies { return centertest.Lies{Answer: centertest.Flip} }, fault.SignatureInvalid},
		"with an unknown field":         {func(w *world) centertest.Lies { return centertest.Lies{Answer: w.center.Unknown} }, fault.DocumentUnknownField},
		"a reason that is none": {func(w *world) centertest.Lies {
			w.center.Decline(k(5), "BECAUSE")
			return centertest.Lies{}
		}, fault.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			for _, n := range []int{1, 2, 3, 4, 6, 7, 8} {
				w.both(k(n), rec(1, `{}`))
			}
			w.local(k(5), rec(1, `{}`))
			w.center.Lie(c.lie(w))
			before := w.dump("hall.answer_projection", "lockstep.high_water", "lockstep.audit")
			task := w.run()
			w.wantState(task, work.Queued, string(c.code))
			for range 3 {
				w.due()
				w.work()
			}
			w.wantState(task, work.Parked, string(c.code))
			w.wantLedger(task, "5 EXTRA_ROW REPORTED")
			if w.dump("hall.answer_projection", "lockstep.high_water", "lockstep.audit") != before {
				t.Error("something was written")
			}
		})
	}
}

func TestRetirementLimits(t *testing.T) {
	// extras makes n extra rows beside m that are right.
	extras := func(w *world, n, m int) {
		for i := range n {
			w.local(k(1000+i), rec(1, `{}`))
		}
		for i := range m {
			w.both(k(i), rec(1, `{}`))
		}
	}
	for name, c := range map[string]struct {
		extra, right int
		options      []centertest.Option
		limit        int
		code         string
		retired      bool
	}{
		"20 candidates are below the breaker, whatever their share": {extra: 20, right: 1, limit: 500, retired: true},
		"21 of 100 rows trip it":                                    {extra: 21, right: 79, limit: 500, code: "RETIRE_BREAKER"},
		"21 of 210 are ten percent, and pass":                       {extra: 21, right: 189, limit: 500, retired: true},
		"21 of 209 are more, and don't":                             {extra: 21, right: 188, limit: 500, code: "RETIRE_BREAKER"},
		"an empty manifest facing one row trips it":                 {extra: 1, right: 0, limit: 500, code: "RETIRE_BREAKER"},
		"an operator's signed override lets it pass":                {extra: 30, right: 1, limit: 500, options: []centertest.Option{centertest.Override}, retired: true},
		"a record's task is not held to it":                         {extra: 1, right: 0, limit: 500, options: []centertest.Option{centertest.OfRecord(k(1000))}, retired: true},
		"as many candidates as may be":                              {extra: 5, right: 100, limit: 5, retired: true},
		"one candidate too many: none is retired":                   {extra: 6, right: 100, limit: 5, code: "EXTRAS_LIMIT"},
		"an override does not lift the limit of candidates":         {extra: 6, right: 100, limit: 5, options: []centertest.Option{centertest.Override}, code: "EXTRAS_LIMIT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, func(_ *store.Settings, _ *worker.Settings, r *repair.Repairer) { r.MaxExtras = c.limit })
			extras(w, c.extra, c.right)
			task := w.run(c.options...)
			w.wantRetireCode(task, c.code)
			left := len(w.image()) - c.right
			switch {
			case c.retired && left != 0:
				t.Errorf("%d extra rows are left", left)
			case !c.retired && left != c.extra:
				t.Errorf("%d of %d extra rows are left", left, c.extra)
			}
			want := work.Completed
			if !c.retired {
				want = work.Partial
			}
			w.wantState(task, want, "")
		})
	}
}

func TestHeldRowsAreNoCandidates(t *testing.T) {
	w := setup(t, func(_ *store.Settings, _ *worker.Settings, r *repair.Repairer) { r.MaxExtras = 2 })
	w.both(k(100), rec(1, `{}`))
	for n := range 5 {
		w.local(k(n), rec(1, `{}`))
	}
	w.exec(`UPDATE hall.answer_projection SET retire_hold = true WHERE answer_id = ANY($1)`,
		[][16]byte{[16]byte([]byte(k(0))), [16]byte([]byte(k(1))), [16]byte([]byte(k(2)))})
	task := w.run()
	w.wantRetireCode(task, "")
	w.wantLedger(task, "0 EXTRA_ROW REPORTED NOT_RETIRABLE", "1 EXTRA_ROW REPORTED NOT_RETIRABLE", "2 EXTRA_ROW REPORTED NOT_RETIRABLE",
		"3 EXTRA_ROW RETIRED", "4 EXTRA_ROW RETIRED")
	if asked := w.center.Asked(); len(asked) != 2 {
		t.Errorf("%d rows were asked about", len(asked))
	}
}

// Rows that can't be retired, for whatever reason, block no others.
func TestRowsThatCannotBeRetiredDoNotCountForTheLimit(t *testing.T) {
	w := setup(t, func(_ *store.Settings, _ *worker.Settings, r *repair.Repairer) { r.MaxExtras = 2 })
	w.both(k(100), rec(1, `{}`))
	for n := range 10 {
		w.local(k(n), rec(1, `{}`))
	}
	keys := func(ns ...int) (out [][16]byte) {
		for _, n := range ns {
			out = append(out, [16]byte([]byte(k(n))))
		}
		return out
	}
	w.exec(`UPDATE hall.answer_projection SET created_at = NULL WHERE answer_id = ANY($1)`, keys(0, 1))
	w.exec(`UPDATE hall.answer_projection SET created_at = now() + interval '1 hour' WHERE answer_id = ANY($1)`, keys(2, 3))
	w.exec(`UPDATE hall.answer_projection SET retire_hold = true WHERE answer_id = ANY($1)`, keys(6, 7))
	w.center.Decline(k(4), fault.ScopeMismatch)
	w.center.Decline(k(5), fault.ScopeMismatch)
	task := w.run()
	w.wantRetireCode(task, "")
	w.wantLedger(task, "0 EXTRA_ROW REPORTED NOT_RETIRABLE", "1 EXTRA_ROW REPORTED NOT_RETIRABLE", "2 EXTRA_ROW REPORTED NOT_RETIRABLE",
		"3 EXTRA_ROW REPORTED NOT_RETIRABLE", "4 EXTRA_ROW REPORTED SCOPE_MISMATCH", "5 EXTRA_ROW REPORTED SCOPE_MISMATCH",
		"6 EXTRA_ROW REPORTED NOT_RETIRABLE", "7 EXTRA_ROW REPORTED NOT_RETIRABLE", "8 EXTRA_ROW RETIRED", "9 EXTRA_ROW RETIRED")
}

func TestManyRowsAreRetiredInOneTransaction(t *testing.T) {
	w := setup(t, func(_ *store.Settings, _ *worker.Settings, r *repair.Repairer) { r.MaxExtras = 1001 })
	w.center.AnswerAtMost(100)
	w.both(k(0), rec(1, `{}`))
	hash := rec(1, `{}`).Hash()
	w.exec(`INSERT INTO hall.answer_projection (tenant_id, form_id, answer_id, revision, content_hash, "values", created_at)
		SELECT $1, $2, (lpad(to_hex(n), 8, '0') || repeat('0', 24))::uuid, 1, $3, '{}', '2026-01-01Z' FROM generate_series(1, 1002) AS n`,
		centertest.Tenant, centertest.Collection, hash[:])
	w.wantRetireCode(w.run(centertest.Override), "EXTRAS_LIMIT")
	w.wantRetired(t, false)
	w.exec(`DELETE FROM hall.answer_projection WHERE answer_id = $1`, [16]byte([]byte(k(1002))))
	task := w.run(centertest.Override)
	w.wantRetireCode(task, "")
	w.wantState(task, work.Completed, "")
	var transactions, rows, floors, audits int
	if err := w.pool.QueryRow(t.Context(), `SELECT count(DISTINCT xmin::text), count(*), (SELECT count(*) FROM lockstep.high_water WHERE retired),
		(SELECT count(*) FROM lockstep.audit WHERE decision = 'retired 1001 of 1001') FROM hall.answer_projection WHERE retired_at IS NOT NULL`).
		Scan(&transactions, &rows, &floors, &audits); err != nil {
		t.Fatal(err)
	}
	if transactions != 1 || rows != 1001 || floors != 1001 || audits != 1 {
		t.Errorf("%d transactions, %d rows, %d floors, %d audit rows", transactions, rows, floors, audits)
	}
}

// Where proofs grow old over those that have none, these are not asked about again.
func TestProofsThatGrowOldOverOtherRows(t *testing.T) {
	w := setup(t)
	w.both(k(0), rec(1, `{}`))
	for n := 1; n <= 9; n++ {
		w.local(k(n), rec(1, `{}`))
		if n > 1 {
			w.center.Decline(k(n), fault.ScopeMismatch)
		}
	}
	w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 2, func() { w.skew.Add(int64(2 * time.Minute)) })})
	task := w.run()
	w.wantRetireCode(task, "")
	if w.alive(1) {
		t.Error("row 1 is not retired")
	}
	// Of the first answer's seven at most one is a proof; two more were without a word.
	if asked := w.center.Asked(); len(asked) < 9+2 || len(asked) > 9+3 {
		t.Errorf("%d rows were asked about, want 9 and 2 or 3 of them again", len(asked))
	}
}

// A newer word about one row, come in while its absence was proved: none is retired.
func TestANewerWordOvertakesARetirement(t *testing.T) {
	w := setup(t)
	w.both(k(0), rec(1, `{}`))
	w.local(k(1), rec(1, `{}`))
	w.local(k(2), rec(1, `{}`))
	w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() {
		w.exec(`INSERT INTO lockstep.high_water (tenant_id, collection_id, record_key, center_epoch, revision) VALUES ($1, $2, $3, 5, 1)`,
			centertest.Tenant, centertest.Collection, []byte(k(1)))
	})})
	task := w.run()
	w.wantState(task, work.Partial, "")
	w.wantRetireCode(task, "ROLLBACK_DETECTED")
	w.wantLedger(task, "1 EXTRA_ROW REPORTED ROLLBACK_DETECTED", "2 EXTRA_ROW REPORTED")
	w.wantRetired(t, false)
}

// What was found out about a row that never can be retired outlives a failed round.
func TestAFailedRoundAsksOnlyAboutTheRest(t *testing.T) {
	w := setup(t)
	w.both(k(0), rec(1, `{}`))
	for n := 1; n <= 6; n++ {
		w.local(k(n), rec(1, `{}`))
	}
	w.center.Decline(k(1), fault.ScopeMismatch)
	w.center.Decline(k(2), fault.RollbackSuspected)
	w.exec(`UPDATE hall.answer_projection SET created_at = NULL WHERE answer_id = $1`, [16]byte([]byte(k(3))))
	w.refuse(4, "NEW.retired_at IS NOT NULL", "57P03", false)
	task := w.run()
	w.wantState(task, work.Queued, "UNAVAILABLE")
	first := len(w.center.Asked())
	w.exec(`DROP TRIGGER refuse_4 ON hall.answer_projection`)
	w.due()
	w.work()
	w.wantLedger(task, "1 EXTRA_ROW REPORTED SCOPE_MISMATCH", "2 EXTRA_ROW REPORTED ROLLBACK_SUSPECTED", "3 EXTRA_ROW REPORTED NOT_RETIRABLE",
		"4 EXTRA_ROW RETIRED", "5 EXTRA_ROW RETIRED", "6 EXTRA_ROW RETIRED")
	if again := len(w.center.Asked()) - first; first != 6 || again != 4 {
		t.Errorf("%d rows were asked about, and %d in the second round, want 6 and 4", first, again)
	}
}

// However long the asking takes, the center hears that the attempt is alive.
func TestALongRetirementIsReported(t *testing.T) {
	w := setup(t)
	w.center.AnswerAtMost(100)
	w.both(k(0), rec(1, `{}`))
	hash := rec(1, `{}`).Hash()
	w.exec(`INSERT INTO hall.answer_projection (tenant_id, form_id, answer_id, revision, content_hash, "values", created_at)
		SELECT $1, $2, (lpad(to_hex(n), 8, '0') || repeat('0', 24))::uuid, 1, $3, '{}', '2026-01-01Z' FROM generate_series(1, 250) AS n`,
		centertest.Tenant, centertest.Collection, hash[:])
	w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() { w.skew.Add(int64(30 * time.Second)) })})
	task := w.run(centertest.Override)
	w.wantState(task, work.Completed, "")
	told := 0
	for _, r := range w.center.Reports() {
		if r.Phase == protocol.Retiring {
			told++
		}
	}
	// A third of the lease is 20 seconds.
	if told != 2 {
		t.Errorf("retiring was reported %d times, want at its begin and once between", told)
	}
}

func TestARollbackIsNotForgottenWhereProofsGrowOld(t *testing.T) {
	w := setup(t)
	w.center.AnswerAtMost(1)
	w.both(k(0), rec(1, `{}`))
	w.local(k(1), rec(1, `{}`))
	w.local(k(2), rec(1, `{}`))
	w.exec(`INSERT INTO lockstep.high_water (tenant_id, collection_id, record_key, center_epoch, revision) VALUES ($1, $2, $3, 5, 1)`,
		centertest.Tenant, centertest.Collection, []byte(k(1)))
	w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 2, func() { w.skew.Add(int64(2 * time.Minute)) })})
	task := w.run()
	w.wantRetireCode(task, "ROLLBACK_DETECTED")
	w.wantLedger(task, "1 EXTRA_ROW REPORTED ROLLBACK_DETECTED", "2 EXTRA_ROW REPORTED")
	w.wantRetired(t, false)
}

func TestHashOfTheFakeIsTheSharedOne(t *testing.T) {
	want, err := canon.Sum([]byte(`{"a":1}`))
	if err != nil || rec(1, `{"a":1.0}`).Hash() != want {
		t.Error("the fake center hashes otherwise")
	}
}

// Of the candidates' words no more are held than an answer has, but for the proofs.
func TestCandidatesAreActedUponAnswerByAnswer(t *testing.T) {
	w := setup(t)
	w.both(k(0), rec(1, `{}`))
	for n := 1; n <= 14; n++ {
		w.local(k(n), rec(1, `{}`))
	}
	task := w.center.Task()
	for n := 1; n <= 14; n++ {
		w.center.Put(k(n), rec(1, `{}`)) // after the manifest was frozen
	}
	settled := 0
	w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 2, func() {
		if err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM lockstep.outcome WHERE outcome = 'SETTLED'`).Scan(&settled); err != nil {
			t.Error(err)
		}
	})})
	w.accept(task, 1)
	w.work()
	w.wantState(task, work.Completed, "")
	if settled != 7 {
		t.Errorf("%d rows were settled before the second answer", settled)
	}
	if n := w.center.Calls("GetRecords"); n != 2 {
		t.Errorf("%d calls", n)
	}
}
