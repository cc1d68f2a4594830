package worker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/consumer/internal/worker"
)

func TestRun(t *testing.T) {
	t.Run("equal sets end COMPLETED without fetching a page", func(t *testing.T) {
		w := setup(t)
		for n := range 30 {
			w.both(k(n), rec(1, `{"a":1}`))
		}
		task := w.run()
		w.wantState(task, work.Completed, "")
		w.wantLedger(task)
		last := w.center.Last()
		if last.State != protocol.Completed || last.CenterScanned != 30 || last.LocalScanned != 30 || !last.CenterComplete || !last.LocalComplete {
			t.Errorf("report %+v", last)
		}
		if n := w.center.Calls("GetPages") + w.center.Calls("GetRecords"); n != 0 {
			t.Errorf("%d fetches of equal rows", n)
		}
		if row := w.row(task); row.WireBytes == 0 || last.WireBytes == 0 {
			t.Error("no bytes were counted")
		}
	})
	t.Run("every class comes to its outcome, and a second round finds nothing", func(t *testing.T) {
		w := setup(t)
		for n := 100; n < 120; n++ {
			w.both(k(n), rec(1, `{"a":1}`))
		}
		w.center.Put(k(1), rec(2, `{"a":1.50}`)) // MISSING
		w.center.Put(k(2), dead())               // MISSING, a tombstone
		w.local(k(3), rec(1, `{"a":"old"}`))     // STALE
		w.center.Put(k(3), rec(4, `{"a":"new"}`))
		w.local(k(4), rec(2, `{"a":1}`)) // TOMBSTONE
		w.center.Put(k(4), dead())
		w.local(k(5), rec(5, `{"a":1}`)) // HASH_CONFLICT
		w.center.Put(k(5), rec(5, `{"a":2}`))
		w.local(k(6), rec(9, `{}`)) // LOCAL_AHEAD
		w.center.Put(k(6), rec(8, `{}`))
		w.local(k(7), rec(1, `{}`))                 // EXTRA_ROW
		w.center.Put(k(8), rec(0, `{}`))            // REVISION_ZERO
		w.center.Put(k(9), rec(1, `{"a":1,"a":2}`)) // no hash
		task := w.run()
		w.wantState(task, work.Partial, "")
		w.wantLedger(task,
			"1 MISSING REPAIRED", "2 MISSING REPAIRED", "3 STALE REPAIRED", "4 TOMBSTONE REPAIRED", "5 HASH_CONFLICT REPAIRED",
			"6 LOCAL_AHEAD REPORTED LOCAL_AHEAD", "7 EXTRA_ROW RETIRED", "8 REVISION_ZERO REPORTED REVISION_ZERO",
			"9 QUARANTINED QUARANTINED CANON_REFUSED")
		want := map[string]centertest.Record{
			k(1): rec(2, `{"a":1.5}`), k(2): dead(), k(3): rec(4, `{"a":"new"}`), k(4): dead(), k(5): rec(5, `{"a":2}`), k(6): rec(9, `{}`),
		}
		for n := 100; n < 120; n++ {
			want[k(n)] = rec(1, `{"a":1}`)
		}
		w.wantImage(want)
		last := w.center.Last()
		if last.State != protocol.Partial || last.Fetched != 7 || last.Open() != 3 || len(last.Items) != 3 {
			t.Errorf("report %+v", last)
		}
		var kept, proofs int
		if err := w.pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE biz_ext = '{"kept": true}' AND apply_id = 'kept'),
			count(*) FILTER (WHERE retired_at IS NOT NULL AND proof_id IS NOT NULL) FROM hall.answer_projection`).Scan(&kept, &proofs); err != nil {
			t.Fatal(err)
		}
		if kept != 25 || proofs != 1 {
			t.Errorf("%d extension columns kept, %d retired with proof", kept, proofs)
		}
		w.center.Drop(k(6))
		w.center.Drop(k(8))
		w.center.Drop(k(9))
		w.exec(`DELETE FROM hall.answer_projection WHERE answer_id = $1`, [16]byte([]byte(k(6))))
		fetched := w.center.Calls("GetRecords")
		again := w.run()
		w.wantState(again, work.Completed, "")
		w.wantLedger(again)
		if w.center.Calls("GetRecords") != fetched {
			t.Error("the second round fetched records")
		}
	})
	t.Run("an empty projection is filled, batch by batch", func(t *testing.T) {
		w := setup(t)
		want := map[string]centertest.Record{}
		for n := range 450 {
			want[k(n)] = rec(int64(n+1), fmt.Sprintf(`{"n":%d}`, n))
			w.center.Put(k(n), want[k(n)])
		}
		task := w.run()
		w.wantState(task, work.Completed, "")
		w.wantImage(want)
		if last := w.center.Last(); last.Counts[0].Repaired != 450 || last.Fetched != 450 {
			t.Errorf("report %+v", last)
		}
	})
	t.Run("a record's task looks at that record alone", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(5), rec(2, `{}`))
		w.center.Put(k(6), rec(2, `{}`))
		w.local(k(4), rec(1, `{}`))
		w.wantState(w.run(centertest.OfRecord(k(5))), work.Completed, "")
		w.wantImage(map[string]centertest.Record{k(4): rec(1, `{}`), k(5): rec(2, `{}`)})
		task := w.run(centertest.OfRecord(k(4)))
		w.wantState(task, work.Completed, "")
		w.wantLedger(task, "4 EXTRA_ROW RETIRED")
	})
	t.Run("a dry run writes nothing but its own ledger", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		w.local(k(2), rec(1, `{}`))
		w.local(k(3), rec(1, `{"a":1}`))
		w.center.Put(k(3), rec(1, `{"a":2}`))
		before := w.dump("hall.answer_projection", "lockstep.high_water", "lockstep.audit")
		task := w.run(centertest.DryRun)
		w.wantState(task, work.Partial, "")
		w.wantLedger(task, "1 MISSING REPORTED", "2 EXTRA_ROW REPORTED", "3 HASH_CONFLICT REPORTED")
		if w.dump("hall.answer_projection", "lockstep.high_water", "lockstep.audit") != before {
			t.Error("a table changed")
		}
		if w.center.Calls("GetRecords") != 0 {
			t.Error("records were fetched")
		}
	})
	t.Run("content is compared where that is asked for", func(t *testing.T) {
		w := setup(t, func(s *store.Settings, ws *worker.Settings, r *repair.Repairer) {
			s.Content, ws.VerifyContent, r.Content = true, true, true
		})
		w.both(k(1), rec(1, `{"a":1}`))
		w.both(k(2), rec(1, `{"a":1}`))
		w.exec(`UPDATE hall.answer_projection SET "values" = '{"a":"tampered"}' WHERE answer_id = $1`, [16]byte([]byte(k(2))))
		task := w.run()
		w.wantState(task, work.Completed, "")
		w.wantLedger(task, "2 HASH_CONFLICT REPAIRED")
		if last := w.center.Last(); last.Verified != protocol.Content {
			t.Errorf("verified %s", last.Verified)
		}
		w.wantLedger(w.run())
	})
}

// Writers that come between the question and the write.
func TestConcurrentWriters(t *testing.T) {
	bump := func(w *world, raw string, r centertest.Record) {
		h := r.Hash()
		w.exec(`UPDATE hall.answer_projection SET revision = $2, content_hash = $3, "values" = $4, projection_version = projection_version + 1
			WHERE answer_id = $1`, [16]byte([]byte(raw)), r.Revision, h[:], r.Content)
	}
	t.Run("a row healed by delivery is SETTLED", func(t *testing.T) {
		w := setup(t)
		w.local(k(1), rec(1, `{}`))
		w.center.Put(k(1), rec(2, `{"a":2}`))
		w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() { bump(w, k(1), rec(2, `{"a":2}`)) })})
		task := w.run()
		w.wantState(task, work.Completed, "")
		w.wantLedger(task, "1 STALE SETTLED")
	})
	t.Run("a set that moved on both sides is SETTLED too", func(t *testing.T) {
		w := setup(t)
		w.local(k(1), rec(1, `{}`))
		w.center.Put(k(1), rec(2, `{"a":2}`))
		task := w.center.Task()
		w.center.Put(k(1), rec(3, `{"a":3}`))
		w.accept(task, 1)
		w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() { bump(w, k(1), rec(3, `{"a":3}`)) })})
		w.work()
		w.wantLedger(task, "1 STALE SETTLED")
	})
	t.Run("a row that went ahead meanwhile is asked about again and never downgraded", func(t *testing.T) {
		w := setup(t)
		w.local(k(1), rec(1, `{}`))
		w.center.Put(k(1), rec(2, `{"a":2}`))
		w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() { bump(w, k(1), rec(7, `{"a":7}`)) })})
		task := w.run()
		w.wantState(task, work.Partial, "")
		w.wantLedger(task, "1 STALE REPORTED LOCAL_AHEAD")
		w.wantImage(map[string]centertest.Record{k(1): rec(7, `{"a":7}`)})
		if n := w.center.Calls("GetRecords"); n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
	t.Run("LOCAL_AHEAD where the center has moved on is repaired as stale", func(t *testing.T) {
		w := setup(t)
		w.local(k(1), rec(5, `{}`))
		w.center.Put(k(1), rec(4, `{}`))
		task := w.center.Task()
		w.center.Put(k(1), rec(6, `{"a":6}`))
		w.accept(task, 1)
		w.work()
		w.wantLedger(task, "1 LOCAL_AHEAD REPAIRED")
		w.wantImage(map[string]centertest.Record{k(1): rec(6, `{"a":6}`)})
	})
	t.Run("a row that a host transaction holds for ever is EXHAUSTED, its neighbour is repaired", func(t *testing.T) {
		w := setup(t)
		for n := 1; n <= 2; n++ {
			w.local(k(n), rec(1, `{}`))
			w.center.Put(k(n), rec(2, `{}`))
		}
		tx, err := w.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it only held a lock
		if _, err := tx.Exec(t.Context(), `SELECT FROM hall.answer_projection WHERE answer_id = $1 FOR UPDATE`, [16]byte([]byte(k(1)))); err != nil {
			t.Fatal(err)
		}
		task := w.run()
		w.wantState(task, work.Partial, "")
		w.wantLedger(task, "1 STALE EXHAUSTED RETRIES_EXHAUSTED", "2 STALE REPAIRED")
		if n := w.center.Calls("GetRecords"); n != 4 {
			t.Errorf("asked %d times, want once and three retries", n)
		}
	})
	t.Run("a missing row that the host inserts meanwhile is left to a second look", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(2, `{"a":2}`))
		w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() { w.local(k(1), rec(1, `{}`)) })})
		task := w.run()
		w.wantState(task, work.Completed, "")
		w.wantLedger(task, "1 MISSING REPAIRED")
		w.wantImage(map[string]centertest.Record{k(1): rec(2, `{"a":2}`)})
	})
	t.Run("an answer that grew too old is asked for again", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(2, `{"a":2}`))
		w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() { w.skew.Add(int64(2 * time.Minute)) })})
		task := w.run()
		w.wantState(task, work.Completed, "")
		if n := w.center.Calls("GetRecords"); n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestRowsThatCannotBeRepaired(t *testing.T) {
	t.Run("one that a constraint refuses is quarantined, the others go on", func(t *testing.T) {
		w := setup(t)
		big := make([]byte, 70_000)
		for i := range big {
			big[i] = 'a' + byte(i*7%26)
		}
		want := map[string]centertest.Record{}
		for n := range 20 {
			want[k(n)] = rec(1, `{}`)
			w.center.Put(k(n), want[k(n)])
		}
		delete(want, k(13))
		w.center.Put(k(13), rec(1, `{"a":"`+string(big)+`"}`))
		task := w.run()
		w.wantState(task, work.Partial, "")
		w.wantImage(want)
		if got := w.ledger(task)[13]; got != "13 MISSING QUARANTINED QUARANTINED" {
			t.Error(got)
		}
	})
	t.Run("a word that grows old while a batch is halved is asked for again", func(t *testing.T) {
		w := setup(t)
		w.exec(`ALTER TABLE hall.answer_projection ADD CHECK (answer_id <> $$` + uuid.UUID([]byte(k(1))).String() + `$$)`)
		w.repairer.Changed = func(context.Context, *store.Effect, [][]byte) error {
			w.skew.CompareAndSwap(0, int64(2*time.Minute))
			return nil
		}
		for n := range 4 {
			w.center.Put(k(n), rec(1, `{}`))
		}
		task := w.run()
		w.wantLedger(task, "0 MISSING REPAIRED", "1 MISSING QUARANTINED QUARANTINED", "2 MISSING REPAIRED", "3 MISSING REPAIRED")
		// Halved to 0 and 1, then 0 alone is written; by then the others' words are old.
		if asked := w.center.Asked(); len(asked) != 4+3 {
			t.Errorf("%d records were asked for, want 4 and 3 of them again", len(asked))
		}
	})
	t.Run("one whose key another tenant or collection holds is quarantined", func(t *testing.T) {
		w := setup(t)
		w.localIn(centertest.Tenant+1, centertest.Collection, k(1), rec(1, `{}`))
		w.localIn(centertest.Tenant, "other", k(2), rec(1, `{}`))
		w.center.Put(k(1), rec(1, `{}`))
		w.center.Put(k(2), rec(1, `{}`))
		task := w.run()
		w.wantLedger(task, "1 MISSING QUARANTINED SCOPE_MISMATCH", "2 MISSING QUARANTINED SCOPE_MISMATCH")
		w.wantImage(map[string]centertest.Record{})
	})
	t.Run("a record that moved is mended, or comes back, once the host moved its row too", func(t *testing.T) {
		w := setup(t)
		w.localIn(centertest.Tenant, "other", k(1), rec(1, `{}`))
		w.localIn(centertest.Tenant, "other", k(2), rec(1, `{}`))
		w.exec(`UPDATE hall.answer_projection SET retired_at = now() WHERE answer_id = $1`, [16]byte([]byte(k(2))))
		w.center.Put(k(1), rec(2, `{}`))
		w.center.Put(k(2), rec(1, `{}`))
		w.exec(`UPDATE hall.answer_projection SET form_id = $1`, centertest.Collection)
		task := w.run()
		w.wantState(task, work.Completed, "")
		w.wantLedger(task, "1 STALE REPAIRED", "2 MISSING REPAIRED")
		w.wantImage(map[string]centertest.Record{k(1): rec(2, `{}`), k(2): rec(1, `{}`)})
	})
	t.Run("undecidable ones are reported with the center's code", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		w.center.Put(k(2), rec(1, `{}`))
		task := w.center.Task()
		w.center.Drop(k(1))
		w.center.Decline(k(2), fault.ScopeMismatch)
		w.accept(task, 1)
		w.work()
		w.wantState(task, work.Partial, "")
		w.wantLedger(task, "1 MISSING REPORTED ROW_GONE", "2 MISSING REPORTED SCOPE_MISMATCH")
	})
	t.Run("a retired record comes back at any revision", func(t *testing.T) {
		w := setup(t)
		w.local(k(1), rec(9, `{}`))
		w.both(k(2), rec(1, `{}`))
		w.wantLedger(w.run(), "1 EXTRA_ROW RETIRED")
		w.center.Put(k(1), rec(1, `{"a":"reborn"}`))
		task := w.run()
		w.wantState(task, work.Completed, "")
		w.wantLedger(task, "1 MISSING REPAIRED")
		w.wantImage(map[string]centertest.Record{k(1): rec(1, `{"a":"reborn"}`), k(2): rec(1, `{}`)})
	})
}

// Answers that do not verify: nothing is written, the round fails with the code,
// and after the last try the row is parked.
func TestLyingAnswers(t *testing.T) {
	foreign := centertest.New(t)
	snap := func(f func(*protocol.Snapshot)) centertest.Lies {
		return centertest.Lies{Word: func(word any) {
			if s, ok := word.(*protocol.Snapshot); ok {
				f(s)
			}
		}}
	}
	answer := func(f func(*centerv1.GetRecordsResponse)) centertest.Lies { return centertest.Lies{Records: f} }
	for name, c := range map[string]struct {
		lie  centertest.Lies
		code fault.Reason
	}{
		"signed by another key":     {centertest.Lies{Signer: foreign.Signer()}, fault.SignatureInvalid},
		"for another consumer":      {snap(func(s *protocol.Snapshot) { s.At.Consumer = "other" }), fault.AudienceMismatch},
		"from another source":       {snap(func(s *protocol.Snapshot) { s.At.Source = "other" }), fault.AudienceMismatch},
		"of another task":           {snap(func(s *protocol.Snapshot) { s.At.TaskID = protocol.FormatKey(k(9)) }), fault.TaskMismatch},
		"of another tenant":         {snap(func(s *protocol.Snapshot) { s.At.TenantID++ }), fault.TenantMismatch},
		"of another collection":     {snap(func(s *protocol.Snapshot) { s.At.CollectionID = "x" }), fault.CollectionMismatch},
		"of an older grant":         {snap(func(s *protocol.Snapshot) { s.At.GrantEpoch-- }), fault.GrantEpochMismatch},
		"about another key":         {snap(func(s *protocol.Snapshot) { s.Key = protocol.FormatKey(k(9)) }), fault.KeyMismatch},
		"with another nonce":        {snap(func(s *protocol.Snapshot) { s.Nonce = make([]byte, 32) }), fault.NonceMismatch},
		"without a nonce":           {snap(func(s *protocol.Snapshot) { s.Nonce = nil }), fault.NonceMismatch},
		"at revision 0":             {snap(func(s *protocol.Snapshot) { s.Revision = 0 }), fault.RevisionMismatch},
		"with another content":      {snap(func(s *protocol.Snapshot) { s.Content = []byte(`{"evil":1}`) }), fault.HashMismatch},
		"with no content at all":    {snap(func(s *protocol.Snapshot) { s.Content = nil }), fault.HashMismatch},
		"with ambiguous content":    {snap(func(s *protocol.Snapshot) { s.Content = []byte(`{"a":1,"a":1}`) }), fault.CanonRefused},
		"tampered after signing":    {centertest.Lies{Answer: centertest.Flip}, fault.SignatureInvalid},
		"of another document type":  {centertest.Lies{Answer: centertest.Retype}, fault.DocumentType},
		"with an unknown field":     {centertest.Lies{}, fault.DocumentUnknownField},
		"that is empty":             {answer(func(r *centerv1.GetRecordsResponse) { r.Answers = nil }), fault.Unavailable},
		"to a question never asked": {answer(func(r *centerv1.GetRecordsResponse) { r.Answers[0].Key = protocol.FormatKey(k(77)) }), fault.KeyMismatch},
		"given twice":               {answer(func(r *centerv1.GetRecordsResponse) { r.Answers = append(r.Answers, r.Answers[0]) }), fault.KeyMismatch},
		"under a name that is no key": {
			answer(func(r *centerv1.GetRecordsResponse) { r.Answers[0].Key = "K" }), fault.KeyMismatch,
		},
		"leaving over what was not asked": {
			answer(func(r *centerv1.GetRecordsResponse) { r.LeftOver = []string{protocol.FormatKey(k(77))} }), fault.KeyMismatch,
		},
		"swapped with another": {
			answer(func(r *centerv1.GetRecordsResponse) {
				r.Answers[0].Word, r.Answers[1].Word = r.Answers[1].Word, r.Answers[0].Word
			}), fault.KeyMismatch,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.center.Put(k(1), rec(1, `{"a":1}`))
			w.center.Put(k(2), rec(1, `{"a":2}`))
			if name == "with an unknown field" {
				c.lie.Answer = w.center.Unknown
			}
			w.center.Lie(c.lie)
			// The header is told truly: this is about answers.
			if c.lie.Signer != nil {
				w.center.LieAfterHeader()
			}
			before := w.dump("hall.answer_projection", "lockstep.high_water", "lockstep.outcome")
			task := w.run()
			w.wantState(task, work.Queued, string(c.code))
			for range 3 {
				w.due()
				w.work()
			}
			w.wantState(task, work.Parked, string(c.code))
			if w.dump("hall.answer_projection", "lockstep.high_water", "lockstep.outcome") != before {
				t.Error("something was written")
			}
			// The lies over, a newer attempt revives the row.
			w.center.Lie(centertest.Lies{})
			w.center.Redispatch(task, 2)
			w.accept(task, 2)
			w.work()
			w.wantState(task, work.Completed, "")
		})
	}
}

func TestDeferred(t *testing.T) {
	for name, c := range map[string]struct {
		gone func(*world)
		code string
		end  work.State
	}{
		"a grant revoked before the answer": {func(w *world) { w.center.Revoke(fault.GrantRevoked) }, "GRANT_REVOKED", work.Cancelled},
		"a grant whose epoch moved":         {func(w *world) { w.center.Revoke(fault.EpochMoved) }, "EPOCH_MOVED", work.Cancelled},
		"an answer under a newer grant":     {func(w *world) { w.center.SetGrantEpoch(centertest.GrantEpoch + 1) }, "EPOCH_MOVED", work.Partial},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.center.Put(k(1), rec(1, `{}`))
			w.local(k(2), rec(1, `{}`))
			w.center.Lie(centertest.Lies{Call: onCall("GetPages", 1, func() { c.gone(w) })})
			if name != "an answer under a newer grant" {
				w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() { c.gone(w) })})
			}
			task := w.run()
			w.wantState(task, c.end, c.code)
			w.wantLedger(task, "1 MISSING DEFERRED "+c.code, "2 EXTRA_ROW REPORTED")
			w.wantImage(map[string]centertest.Record{k(2): rec(1, `{}`)})
			if row := w.row(task); row.NextPage != 0 || row.CenterComplete {
				t.Errorf("the checkpoint moved to page %d", row.NextPage)
			}
			if last := w.center.Last(); last.State != protocol.Partial || last.Code != c.code {
				t.Errorf("report %s %s", last.State, last.Code)
			}
		})
	}
}
