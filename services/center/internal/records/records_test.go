package records_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/evidencetest"
	"lockstep.dev/services/center/internal/records"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/task"
)

var (
	nonce   = []byte("a nonce of 24 fresh bytes")
	tooDeep = strings.Repeat("[", 70) + strings.Repeat("]", 70)
)

// ask asks for one record and gives its answer.
func ask(t *testing.T, w *evidencetest.World, tk *task.Task, key string, expected int64) records.Answer {
	t.Helper()
	answers, left, err := w.Answerer.Answer(t.Context(), tk, nonce, []records.Request{{Key: key, ExpectedRevision: expected}})
	if err != nil || len(answers) != 1 || len(left) != 0 || answers[0].Key != key {
		t.Fatalf("%d answers, left over %v, %v", len(answers), left, err)
	}
	return answers[0]
}

func wantUndecidable(t *testing.T, w *evidencetest.World, tk *task.Task, key string, code fault.Reason) {
	t.Helper()
	u, err := document.OpenUndecidable(ask(t, w, tk, key, 1).Word, w.Keys)
	if err != nil {
		t.Fatal(err)
	}
	if u.Code != string(code) || u.Key != key || !bytes.Equal(u.Nonce, nonce) || u.At != at(tk) || u.IssuedAt.IsZero() {
		t.Errorf("undecidable %+v, want %s", u, code)
	}
}

func at(tk *task.Task) protocol.Coordinates {
	return protocol.Coordinates{
		Source: "form-center", Consumer: "svc-hall", TaskID: protocol.FormatID(tk.ID), TenantID: 7, CollectionID: "form-1",
		GrantEpoch: 1, CenterEpoch: 1,
	}
}

func TestAnswer(t *testing.T) {
	w := evidencetest.New(t)
	w.Answers(6)
	w.Answer(evidencetest.Key(7), 5, true, "")
	w.Answer(evidencetest.Key(8), 0, false, `{}`)
	w.Answer(evidencetest.Key(9), 2, false, tooDeep)
	w.Answer(evidencetest.Key(10), 1, false, `{"leaves": true}`)
	tk := w.Complete()

	t.Run("a snapshot is of the row as it is now", func(t *testing.T) {
		w.Exec(`UPDATE answers.answer SET revision = 8, version = 4, seq_no = 77, "values" = '{"b": 2.50, "a": "ä"}' WHERE answer_id = $1::text::uuid`, evidencetest.Key(3))
		s, err := document.OpenSnapshot(ask(t, w, tk, evidencetest.Key(3), 1).Word, w.Keys)
		if err != nil {
			t.Fatal(err)
		}
		if s.Revision != 8 || s.Deleted || s.SchemaVersion != 4 || s.Sequence != 77 || s.At != at(tk) || s.Key != evidencetest.Key(3) ||
			!bytes.Equal(s.Nonce, nonce) || len(s.EventID) != 32 || time.Since(s.IssuedAt) > time.Minute {
			t.Errorf("snapshot %+v", s)
		}
		if want := `{"a": "ä", "b": 2.50}`; string(s.Content) != want {
			t.Errorf("content %s, want %s", s.Content, want)
		}
		if want, err := canon.Sum([]byte(`{"b":2.5,"a":"ä"}`)); err != nil || s.Hash != want {
			t.Errorf("hash %s, want %s", s.Hash, want)
		}
	})
	t.Run("a tombstone is a row, and SQL NULL is no content", func(t *testing.T) {
		s, err := document.OpenSnapshot(ask(t, w, tk, evidencetest.Key(7), 4).Word, w.Keys)
		if err != nil {
			t.Fatal(err)
		}
		if want, err := canon.Sum(nil); err != nil || s.Hash != want || !s.Deleted || s.Revision != 5 || s.Content != nil {
			t.Errorf("snapshot %+v", s)
		}
	})
	t.Run("a row that came after the manifest has a snapshot too", func(t *testing.T) {
		w.Answer(evidencetest.Key(20), 1, false, `{}`)
		if _, err := document.OpenSnapshot(ask(t, w, tk, evidencetest.Key(20), 0).Word, w.Keys); err != nil {
			t.Error(err)
		}
	})
	t.Run("revision 0 is undecidable", func(t *testing.T) {
		wantUndecidable(t, w, tk, evidencetest.Key(8), fault.RevisionZero)
	})
	t.Run("content without a canonical form is undecidable", func(t *testing.T) {
		wantUndecidable(t, w, tk, evidencetest.Key(9), fault.CanonRefused)
	})
	t.Run("a row of the manifest that is gone is undecidable", func(t *testing.T) {
		w.Exec(`DELETE FROM answers.answer WHERE answer_id = $1::text::uuid`, evidencetest.Key(4))
		wantUndecidable(t, w, tk, evidencetest.Key(4), fault.RowGone)
	})
	t.Run("a row under another tenant or collection is undecidable", func(t *testing.T) {
		w.AnswerOf(8, "form-1", evidencetest.Key(30), 1, false, `{}`)
		w.AnswerOf(7, "form-2", evidencetest.Key(31), 1, false, `{}`)
		w.Exec(`UPDATE answers.answer SET form_id = 'form-2' WHERE answer_id = $1::text::uuid`, evidencetest.Key(10))
		for _, n := range []int{30, 31, 10} {
			wantUndecidable(t, w, tk, evidencetest.Key(n), fault.ScopeMismatch)
		}
	})
	t.Run("a row of the task wins over its namesake of another tenant", func(t *testing.T) {
		w.AnswerOf(8, "form-1", evidencetest.Key(5), 9, false, `{}`)
		s, err := document.OpenSnapshot(ask(t, w, tk, evidencetest.Key(5), 1).Word, w.Keys)
		if err != nil || s.Revision != 1 {
			t.Errorf("snapshot %+v, %v", s, err)
		}
	})
	t.Run("an absence is proved, and verifies without either database", func(t *testing.T) {
		for _, key := range []string{"00000000000000000000000000000001", evidencetest.Between(4), evidencetest.Between(10)} {
			a, err := document.OpenAbsence(ask(t, w, tk, key, 41).Word, w.Keys)
			if err != nil {
				t.Fatal(err)
			}
			if a.At != at(tk) || a.Key != key || a.ExpectedRevision != 41 || !bytes.Equal(a.Nonce, nonce) || len(a.ProofID) != 32 ||
				a.ManifestID != protocol.FormatID(tk.ManifestID) || a.ManifestRoot != tk.ManifestRoot {
				t.Errorf("absence %+v", a)
			}
			raw, err := protocol.ParseKey(key)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Evidence.Verify(raw, 10, tk.ManifestRoot); err != nil {
				t.Errorf("evidence for %s: %v", key, err)
			}
		}
	})
	t.Run("answers come in the order asked", func(t *testing.T) {
		var requests []records.Request
		for n := 40; n > 0; n-- {
			requests = append(requests, records.Request{Key: evidencetest.Key(n)}, records.Request{Key: evidencetest.Between(n)})
		}
		answers, left, err := w.Answerer.Answer(t.Context(), tk, nonce, requests)
		if err != nil || len(answers) != 80 || len(left) != 0 {
			t.Fatal(len(answers), left, err)
		}
		for i, a := range answers {
			if a.Key != requests[i].Key {
				t.Errorf("answer %d is about %s", i, a.Key)
			}
		}
	})
}

func TestAnswerStatesTheCenterEpochAsItIs(t *testing.T) {
	w := evidencetest.New(t)
	w.Answers(1)
	old := w.Complete()
	w.Exec(`UPDATE lockstep.center SET center_epoch = 4`)
	refusedOfOldEpoch(t, w, old)
	tk := w.Complete()
	s, err := document.OpenSnapshot(ask(t, w, tk, evidencetest.Key(1), 1).Word, w.Keys)
	if err != nil || s.At.CenterEpoch != 4 {
		t.Errorf("snapshot %+v, %v", s, err)
	}
}

// refusedOfOldEpoch wants a task of an older center epoch to be answered no more.
func refusedOfOldEpoch(t *testing.T, w *evidencetest.World, tk *task.Task) {
	t.Helper()
	_, _, err := w.Answerer.Answer(t.Context(), tk, nonce, []records.Request{{Key: evidencetest.Key(1), ExpectedRevision: 1}})
	if fault.ReasonOf(err) != fault.EpochMoved {
		t.Errorf("a task of an older center epoch: %v", err)
	}
	if got := w.Read(tk.ID); got.State != protocol.Cancelled || got.Code != "EPOCH_MOVED" {
		t.Errorf("task %s %s", got.State, got.Code)
	}
}

func TestAnswerIsCutByBytes(t *testing.T) {
	w := evidencetest.New(t)
	w.Exec(`INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values")
		SELECT 7, ('000000000000000000000000000000' || lpad(to_hex(n), 2, '0'))::uuid, 'form-1', 1, n, 1,
		jsonb_build_object('a', repeat('x', CASE n WHEN 1 THEN 9 << 20 ELSE 2 << 20 END)) FROM generate_series(1, 8) AS n`)
	tk := w.Complete()
	var requests []records.Request
	for n := 1; n <= 8; n++ {
		requests = append(requests, records.Request{Key: fmt.Sprintf("%032x", n), ExpectedRevision: 1})
	}
	requests = append(requests, records.Request{Key: fmt.Sprintf("%032x", 9), ExpectedRevision: 1})
	answered := map[string]bool{}
	for calls := 0; len(requests) > 0; calls++ {
		answers, left, err := w.Answerer.Answer(t.Context(), tk, nonce, requests)
		if err != nil || len(answers) == 0 || calls > 8 {
			t.Fatalf("call %d: %d answers, %v", calls, len(answers), err)
		}
		size := 0
		for _, a := range answers {
			size += len(a.Word.Payload)
			answered[a.Key] = true
		}
		if size > 11<<20 {
			t.Errorf("an answer of %d bytes", size)
		}
		requests = requests[:0]
		for _, key := range left {
			requests = append(requests, records.Request{Key: key, ExpectedRevision: 1})
		}
	}
	if len(answered) != 9 {
		t.Errorf("%d records were answered", len(answered))
	}
	wantUndecidable(t, w, tk, fmt.Sprintf("%032x", 1), fault.CanonRefused)
}

// TestALargeRecordKeepsNoOtherBack: what fits comes, in the order asked, and what
// does not is named; asked for again it comes.
func TestALargeRecordKeepsNoOtherBack(t *testing.T) {
	w := evidencetest.New(t)
	w.Exec(`INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values")
		SELECT 7, ('000000000000000000000000000000' || lpad(to_hex(n), 2, '0'))::uuid, 'form-1', 1, n, 1,
		jsonb_build_object('a', repeat('x', (ARRAY[1, 7 << 20, 3 << 20, 1, 2 << 20, 1])[n])) FROM generate_series(1, 6) AS n`)
	tk := w.Complete()
	ask := func(numbers ...int) (answered, leftOver string) {
		t.Helper()
		var requests []records.Request
		for _, n := range numbers {
			requests = append(requests, records.Request{Key: fmt.Sprintf("%032x", n), ExpectedRevision: 1})
		}
		answers, left, err := w.Answerer.Answer(t.Context(), tk, nonce, requests)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range answers {
			answered += a.Key[31:]
		}
		for _, key := range left {
			leftOver += key[31:]
		}
		return answered, leftOver
	}
	for _, c := range []struct {
		asked              []int
		answered, leftOver string
	}{
		{[]int{1, 2, 3, 4, 5, 6}, "13456", "2"},
		{[]int{6, 5, 4, 3, 2, 1}, "65431", "2"},
		{[]int{2, 4}, "24", ""},
		{[]int{2, 3}, "3", "2"},
		{[]int{2}, "2", ""},
	} {
		if answered, leftOver := ask(c.asked...); answered != c.answered || leftOver != c.leftOver {
			t.Errorf("asked for %v: %q, left over %q, want %q and %q", c.asked, answered, leftOver, c.answered, c.leftOver)
		}
	}
}

func TestAnswerRefuses(t *testing.T) {
	w := evidencetest.New(t)
	w.Answers(2)
	tk := w.Complete()
	one := []records.Request{{Key: evidencetest.Key(1)}}
	for name, c := range map[string]struct {
		nonce    []byte
		requests []records.Request
		want     fault.Reason
	}{
		"no nonce":            {nil, one, fault.InvalidArgument},
		"a nonce too short":   {make([]byte, 15), one, fault.InvalidArgument},
		"a nonce too long":    {make([]byte, 65), one, fault.InvalidArgument},
		"no records":          {nonce, nil, fault.InvalidArgument},
		"too many records":    {nonce, make([]records.Request, 501), fault.InvalidArgument},
		"no key":              {nonce, []records.Request{{}}, fault.InvalidArgument},
		"another spelling":    {nonce, []records.Request{{Key: "00000000-0000-0000-0000-000000000100"}}, fault.InvalidArgument},
		"a key twice":         {nonce, []records.Request{one[0], one[0]}, fault.InvalidArgument},
		"a negative revision": {nonce, []records.Request{{Key: evidencetest.Key(1), ExpectedRevision: -1}}, fault.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := w.Answerer.Answer(t.Context(), tk, c.nonce, c.requests)
			if fault.ReasonOf(err) != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	t.Run("another record than the task's", func(t *testing.T) {
		record := w.Materialise(w.RecordTask(evidencetest.Key(2)))
		_, _, err := w.Answerer.Answer(t.Context(), record, nonce, one)
		if fault.ReasonOf(err) != fault.KeyMismatch {
			t.Error(err)
		}
		ask(t, w, record, evidencetest.Key(2), 1)
	})
	t.Run("before the manifest is complete", func(t *testing.T) {
		_, _, err := w.Answerer.Answer(t.Context(), &task.Task{ManifestState: task.ManifestPending}, nonce, one)
		if fault.ReasonOf(err) != fault.ManifestNotReady {
			t.Error(err)
		}
	})
	t.Run("once the grant was revoked, which cancels the task", func(t *testing.T) {
		w.Revoke()
		_, _, err := w.Answerer.Answer(t.Context(), tk, nonce, one)
		if fault.ReasonOf(err) != fault.GrantRevoked {
			t.Error(err)
		}
		if got := w.Read(tk.ID); got.State != protocol.Cancelled || got.Code != "GRANT_REVOKED" {
			t.Errorf("task %s %s", got.State, got.Code)
		}
		_, _, err = w.Answerer.Answer(t.Context(), tk, nonce, one)
		if fault.ReasonOf(err) != fault.TaskTerminal {
			t.Error(err)
		}
	})
}

func TestNoAbsenceOverAReplacedDatabase(t *testing.T) {
	for _, column := range []string{"source_system", "store_system"} {
		w := evidencetest.New(t)
		w.Answers(2)
		tk := w.Complete()
		if n := w.Int(`SELECT count(*) FROM lockstep.center WHERE source_system = store_system`); n != 1 {
			t.Fatal("the identities were not remembered")
		}
		w.Exec(`UPDATE lockstep.center SET ` + column + ` = 'another'`)
		wantUndecidable(t, w, tk, evidencetest.Between(1), fault.RollbackSuspected)
		if _, err := document.OpenSnapshot(ask(t, w, tk, evidencetest.Key(1), 1).Word, w.Keys); err != nil {
			t.Errorf("a snapshot is no absence: %v", err)
		}
		epoch := map[string]int64{"source_system": frozen.KeepEpoch, "store_system": frozen.NextEpoch}[column]
		if err := w.Frozen.Confirm(t.Context(), "ops", "moved to new hardware", epoch); err != nil {
			t.Fatal(err)
		}
		if epoch == frozen.NextEpoch {
			refusedOfOldEpoch(t, w, tk)
			tk = w.Complete()
		}
		a, err := document.OpenAbsence(ask(t, w, tk, evidencetest.Between(1), 1).Word, w.Keys)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]int64{"source_system": 1, "store_system": 2}[column]; a.At.CenterEpoch != want {
			t.Errorf("center epoch %d, want %d", a.At.CenterEpoch, want)
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE actor = 'ops' AND action = 'databases.confirm' AND reason = 'moved to new hardware'`); n != 1 {
			t.Errorf("%d audit rows", n)
		}
	}
}

// BenchmarkAnswer gives the time for one record of a batch of 200 snapshots.
func BenchmarkAnswer(b *testing.B) {
	w := evidencetest.New(b)
	w.Exec(`INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values")
		SELECT 7, md5(n::text)::uuid, 'form-1', 1, n, 1, jsonb_build_object('name', 'Person ' || n, 'notes', repeat(md5(n::text), 10))
		FROM generate_series(1, 5000) AS n`)
	w.Exec(`ANALYZE answers.answer`)
	tk := w.Complete()
	page, err := w.Reader.Rows(b.Context(), tk, "", 200)
	if err != nil {
		b.Fatal(err)
	}
	var requests []records.Request
	for _, r := range page.Rows {
		requests = append(requests, records.Request{Key: protocol.FormatKey(r.Key), ExpectedRevision: 1})
	}
	for b.Loop() {
		if answers, _, err := w.Answerer.Answer(b.Context(), tk, nonce, requests); err != nil || len(answers) != 200 {
			b.Fatal(len(answers), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(200*b.N), "ns/record")
}

// TestRaiseEpochTo: after a restore that lost an earlier raise, the epoch goes
// above what consumers have seen, and never down.
func TestRaiseEpochTo(t *testing.T) {
	w := evidencetest.New(t)
	for _, c := range []struct {
		epoch int64
		want  int
		err   error
	}{{7, 7, nil}, {7, 7, frozen.ErrNotAbove}, {3, 7, frozen.ErrNotAbove}, {frozen.NextEpoch, 8, nil}, {frozen.KeepEpoch, 8, nil}, {9, 9, nil}} {
		if err := w.Frozen.Confirm(t.Context(), "ops", "restored", c.epoch); !errors.Is(err, c.err) {
			t.Errorf("to %d: %v, want %v", c.epoch, err, c.err)
		}
		if got := w.Int(`SELECT center_epoch FROM lockstep.center`); got != c.want {
			t.Errorf("to %d: the epoch is %d, want %d", c.epoch, got, c.want)
		}
	}
	if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE actor = 'ops'`); n != 4 {
		t.Errorf("%d audit rows", n)
	}
}

// Each reason of the protocol's list has a row that it is signed for, and no other is signed.
func TestEveryReasonToStateNothing(t *testing.T) {
	w := evidencetest.New(t)
	w.Answers(4)
	w.Answer(evidencetest.Key(5), 0, false, `{"from": "before revisions"}`)
	w.Answer(evidencetest.Key(6), 1, false, tooDeep)
	tk := w.Complete()
	w.Exec(`ALTER TABLE answers.answer DROP CONSTRAINT answer_pkey`)
	w.Answer(evidencetest.Key(1), 2, false, `{"a": 2}`)
	w.Exec(`UPDATE answers.answer SET form_id = 'form-2' WHERE answer_id = $1::text::uuid`, evidencetest.Key(2))
	w.Exec(`DELETE FROM answers.answer WHERE answer_id = $1::text::uuid`, evidencetest.Key(3))
	w.Exec(`UPDATE lockstep.center SET source_system = 'another'`)
	rows := map[string]string{
		"ORDER_VIOLATION": evidencetest.Key(1), "SCOPE_MISMATCH": evidencetest.Key(2), "ROW_GONE": evidencetest.Key(3),
		"ROLLBACK_SUSPECTED": evidencetest.Between(4), "REVISION_ZERO": evidencetest.Key(5), "CANON_REFUSED": evidencetest.Key(6),
	}
	for _, code := range protocol.UndecidableCodes() {
		if rows[code] == "" {
			t.Fatalf("%s is signed for no row", code)
		}
		wantUndecidable(t, w, tk, rows[code], fault.Reason(code))
	}
	if n := len(protocol.UndecidableCodes()); n != len(rows) {
		t.Errorf("%d reasons, %d are signed", n, len(rows))
	}
}
