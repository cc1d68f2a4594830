package manifest_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/bits"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/evidencetest"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/task"
)

// tooDeep has no canonical form, and jsonb holds it.
var tooDeep = strings.Repeat("[", 70) + strings.Repeat("]", 70)

// leaf is the rule for a row of the tree, written out a second time.
func leaf(key string, revision int64, hash [32]byte, deleted bool) [32]byte {
	raw, err := hex.DecodeString(key)
	if err != nil {
		panic(err)
	}
	b := []byte{0}
	b = binary.BigEndian.AppendUint32(b, uint32(len(raw)))
	b = append(b, raw...)
	b = binary.BigEndian.AppendUint64(b, uint64(revision))
	b = append(b, hash[:]...)
	if deleted {
		return sha256.Sum256(append(b, 1))
	}
	return sha256.Sum256(append(b, 0))
}

// root is RFC 6962's definition, by recursion over all leaves.
func root(leaves [][32]byte) [32]byte {
	switch n := len(leaves); n {
	case 0:
		return sha256.Sum256(nil)
	case 1:
		return leaves[0]
	default:
		k := 1 << (bits.Len(uint(n-1)) - 1)
		l, r := root(leaves[:k]), root(leaves[k:])
		return sha256.Sum256(append(append([]byte{1}, l[:]...), r[:]...))
	}
}

func contentHash(canonical string) [32]byte {
	return sha256.Sum256([]byte("lockstep.canon.v1\n" + canonical))
}

func TestMaterialise(t *testing.T) {
	t.Run("freezes every row, whatever it is like", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Answer(evidencetest.Key(1), 3, false, `{"b": 1.0, "a": [true, null]}`)
		w.Answer(evidencetest.Key(2), 4, true, ``)
		w.Answer(evidencetest.Key(3), 5, true, `{"gone": "yes"}`)
		w.Answer(evidencetest.Key(4), 0, false, `{}`)
		w.Answer(evidencetest.Key(5), 6, false, tooDeep)
		w.Answer(evidencetest.Key(6), 7, false, `{"é": "€"}`)
		w.AnswerOf(8, evidencetest.Collection, evidencetest.Key(7), 1, false, `{}`)
		w.AnswerOf(evidencetest.Tenant, "form-2", evidencetest.Key(8), 1, false, `{}`)
		before := time.Now()
		tk := w.Complete()

		want := root([][32]byte{
			leaf(evidencetest.Key(1), 3, contentHash(`{"a":[true,null],"b":1}`), false),
			leaf(evidencetest.Key(2), 4, contentHash(`null`), true),
			leaf(evidencetest.Key(3), 5, contentHash(`{"gone":"yes"}`), true),
			leaf(evidencetest.Key(4), 0, contentHash(`{}`), false),
			leaf(evidencetest.Key(5), 6, [32]byte{}, false),
			leaf(evidencetest.Key(6), 7, contentHash(`{"é":"€"}`), false),
		})
		if [32]byte(tk.ManifestRoot) != want {
			t.Errorf("root %x, want %x", tk.ManifestRoot, want)
		}
		if tk.State != protocol.Queued || tk.ManifestState != task.ManifestComplete || tk.RowCount != 6 || tk.PageCount != 2 || tk.PageRows != 4 {
			t.Errorf("task %+v", tk)
		}
		if tk.Claimed() || !tk.LeaseUntil.IsZero() {
			t.Error("the claim was kept")
		}
		checkHeader(t, w, tk, before)
		if n := w.Int(`SELECT count(*) FROM lockstep.manifest WHERE adopted`); n != 1 {
			t.Errorf("%d adopted sets", n)
		}
	})
	t.Run("an empty collection has an empty manifest", func(t *testing.T) {
		w := evidencetest.New(t)
		tk := w.Complete()
		if tk.RowCount != 0 || tk.PageCount != 0 || tk.ManifestRoot != evidence.EmptyRoot() {
			t.Errorf("task %+v", tk)
		}
	})
	t.Run("every count of rows around the pages' edges has the exact root", func(t *testing.T) {
		w := evidencetest.New(t)
		var leaves [][32]byte
		for n := 1; n <= 17; n++ {
			w.Answer(evidencetest.Key(n), 1, false, `{"a": 1}`)
			leaves = append(leaves, leaf(evidencetest.Key(n), 1, contentHash(`{"a":1}`), false))
			tk := w.Complete()
			if [32]byte(tk.ManifestRoot) != root(leaves) || tk.RowCount != int64(n) || tk.PageCount != (n+3)/4 {
				t.Errorf("%d rows: %d in %d pages, root %x", n, tk.RowCount, tk.PageCount, tk.ManifestRoot)
			}
			end(w)
		}
	})
	t.Run("a record's manifest holds that record or none", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Answers(3)
		tk := w.Materialise(w.RecordTask(evidencetest.Key(2)))
		if want := leaf(evidencetest.Key(2), 1, contentHash(`{"a":1}`), false); tk.RowCount != 1 || [32]byte(tk.ManifestRoot) != want {
			t.Errorf("task %+v", tk)
		}
		none := w.Materialise(w.RecordTask(evidencetest.Between(2)))
		if none.RowCount != 0 || none.ManifestState != task.ManifestComplete {
			t.Errorf("task %+v", none)
		}
	})
	t.Run("with nothing queued there is nothing to do", func(t *testing.T) {
		w := evidencetest.New(t)
		if worked, err := w.Materialiser.MaterialiseOnce(t.Context()); worked || err != nil {
			t.Errorf("worked %t, %v", worked, err)
		}
	})
}

// end closes every task, so that the next one may be queued.
func end(w *evidencetest.World) {
	w.T.Helper()
	w.Exec(`UPDATE lockstep.task SET state = 'CANCELLED', ended_at = now() WHERE ended_at IS NULL`)
}

func checkHeader(t *testing.T, w *evidencetest.World, tk *task.Task, before time.Time) {
	t.Helper()
	env, err := w.Reader.Header(tk)
	if err != nil {
		t.Fatal(err)
	}
	h, err := document.OpenHeader(env, w.Keys)
	if err != nil {
		t.Fatal(err)
	}
	want := protocol.Coordinates{
		Source: "form-center", Consumer: "svc-hall", TaskID: protocol.FormatID(tk.ID), TenantID: 7, CollectionID: "form-1",
		GrantEpoch: 1, CenterEpoch: 1,
	}
	if h.At != want || h.Root != tk.ManifestRoot || h.RowCount != 6 || h.PageCount != 2 || h.PageRows != 4 ||
		h.CanonID != "lockstep.canon.v1" || h.KeyKind != "uuid" || h.Scope != protocol.Collection || h.Mode != protocol.Repair ||
		h.ManifestID != protocol.FormatID(tk.ManifestID) || !h.WindowStart.Equal(tk.WindowStart) {
		t.Errorf("header %+v", h)
	}
	if h.WindowStart.Before(before.Add(-time.Second)) || h.WindowStart.After(time.Now().Add(time.Second)) {
		t.Errorf("window start %s", h.WindowStart)
	}
}

func TestMaterialiseRefuses(t *testing.T) {
	nothingLeft := func(t *testing.T, w *evidencetest.World) {
		t.Helper()
		if n := w.Int(`SELECT (SELECT count(*) FROM lockstep.manifest) + (SELECT count(*) FROM lockstep.manifest_page)`); n != 0 {
			t.Errorf("%d rows are left over", n)
		}
	}
	refused := func(t *testing.T, w *evidencetest.World, tk *task.Task, code fault.Reason, reason string) {
		t.Helper()
		if tk.State != protocol.Failed || tk.ManifestState != task.ManifestFailed || tk.Code != string(code) || tk.Reason != reason {
			t.Errorf("task %s, manifest %s, %s: %s", tk.State, tk.ManifestState, tk.Code, tk.Reason)
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE action = 'task.end'`); n != 1 {
			t.Errorf("%d audit rows of the end", n)
		}
		nothingLeft(t, w)
	}
	t.Run("more rows than max_rows, counted first", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Materialiser.Limits.MaxRows = 5
		w.Answers(6)
		refused(t, w, w.Materialise(w.Task()), fault.ResourceLimit, "more than 5 rows (max_rows)")
	})
	t.Run("more pages than max_pages", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Materialiser.Limits.MaxPages, w.Materialiser.Limits.PageSize = 2, 2
		w.Answers(5)
		refused(t, w, w.Materialise(w.Task()), fault.ResourceLimit, "more than 4 rows (max_pages)")
	})
	t.Run("exactly the limit is within it", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Materialiser.Limits.MaxRows = 6
		w.Answers(6)
		w.Complete()
	})
	t.Run("keys that do not ascend", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Exec(`ALTER TABLE answers.answer DROP CONSTRAINT answer_pkey`)
		w.Answers(2)
		w.Answer(evidencetest.Key(2), 2, false, `{}`)
		refused(t, w, w.Materialise(w.Task()), fault.OrderViolation, "the source gave one key twice")
	})
	t.Run("a lost grant cancels", func(t *testing.T) {
		w := evidencetest.New(t)
		id := w.Task()
		w.Revoke()
		if worked, err := w.Materialiser.MaterialiseOnce(t.Context()); worked || err != nil {
			t.Fatalf("worked %t, %v", worked, err)
		}
		if tk := w.Read(id); tk.State != protocol.Cancelled || tk.Code != "GRANT_REVOKED" {
			t.Errorf("task %s %s", tk.State, tk.Code)
		}
		nothingLeft(t, w)
	})
	t.Run("trouble is tried again, later each time, at most max_dispatch_attempts times", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Answers(6)
		id := w.Task()
		w.Exec(`ALTER TABLE answers.answer RENAME COLUMN seq_no TO elsewhere`)
		for try := 1; try <= 4; try++ {
			tk := w.Materialise(id)
			if want := try < 4; (tk.State == protocol.Queued) != want {
				t.Fatalf("after try %d: %s %s", try, tk.State, tk.Code)
			}
			if try < 4 {
				wait := w.Int(`SELECT round(extract(epoch FROM due_at - now()) / 60) FROM lockstep.task`)
				if want := 1 << (try - 1); wait != want {
					t.Errorf("after try %d it waits %d minutes, want %d", try, wait, want)
				}
				if worked, err := w.Materialiser.MaterialiseOnce(t.Context()); worked || err != nil {
					t.Errorf("taken before it was due: %t, %v", worked, err)
				}
				w.Exec(`UPDATE lockstep.task SET due_at = now()`)
			}
		}
		if tk := w.Read(id); tk.Code != "MATERIALISE_FAILED" || tk.ManifestState != task.ManifestFailed {
			t.Errorf("task %s %s", tk.Code, tk.ManifestState)
		}
		nothingLeft(t, w)
	})
	t.Run("a worker that stops gives the task back, and the try does not count", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Answers(6)
		id := w.Task()
		ctx, stop := context.WithCancel(t.Context())
		manifest.Counted(w.Materialiser, stop)
		if worked, err := w.Materialiser.MaterialiseOnce(ctx); !worked || err != nil {
			t.Errorf("worked %t, %v", worked, err)
		}
		if tk := w.Read(id); tk.State != protocol.Queued || tk.Claimed() || tk.MaterialiseTries != 0 || tk.DueAt.After(time.Now()) {
			t.Errorf("task %+v", tk)
		}
		nothingLeft(t, w)
	})
}

const manyAnswers = `INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values")
	SELECT 7, md5(n::text)::uuid, 'form-1', 1, n, 1, '{"a": 1}' FROM generate_series($1::int, $2::int) AS n`

func TestMaterialiseIsFenced(t *testing.T) {
	t.Run("what a dead worker wrote does not count and is swept", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Answers(9)
		id := w.Task()
		c, _, ok, err := w.Store.ClaimMaterialise(t.Context(), "dead", time.Minute)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		set := frozen.Set{ID: uuid.New(), TenantID: evidencetest.Tenant}
		page := frozen.Page{Number: 0, Rows: 1, LastKey: []byte{1}, Body: []byte("half")}
		if err := errors.Join(w.Frozen.Begin(t.Context(), c, set), w.Frozen.Write(t.Context(), set, []frozen.Page{page})); err != nil {
			t.Fatal(err)
		}
		if err := w.Materialiser.SweepAbandoned(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.manifest_page`); n != 1 {
			t.Error("a set under a claim was swept")
		}
		// The worker dies; its claim is swept, and another one makes the manifest.
		w.Exec(`UPDATE lockstep.task SET claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL`)
		tk := w.Materialise(id)
		if tk.ManifestState != task.ManifestComplete || tk.RowCount != 9 || tk.ManifestID == set.ID {
			t.Errorf("task %+v", tk)
		}
		// The dead one comes back.
		if err := w.Frozen.Adopt(t.Context(), c, frozen.Adoption{Set: set}); err == nil {
			t.Error("the superseded worker adopted its set")
		}
		if err := w.Materialiser.SweepAbandoned(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.manifest_page WHERE manifest_id = $1`, set.ID); n != 0 {
			t.Error("the abandoned pages are still there")
		}
		if err := w.Frozen.Write(t.Context(), set, []frozen.Page{page}); err == nil {
			t.Error("a page was written into a swept set")
		}
		if got := w.Read(id); got.ManifestID != tk.ManifestID || w.Int(`SELECT count(*) FROM lockstep.manifest_page`) != 3 {
			t.Error("the adopted manifest changed")
		}
	})
	t.Run("a very large abandoned set is swept in batches, and never adopted half", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Task()
		c, _, ok, err := w.Store.ClaimMaterialise(t.Context(), "dead", time.Minute)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		set := frozen.Set{ID: uuid.New(), TenantID: evidencetest.Tenant}
		if err := w.Frozen.Begin(t.Context(), c, set); err != nil {
			t.Fatal(err)
		}
		w.Exec(`INSERT INTO lockstep.manifest_page (tenant_id, manifest_id, page, row_count, last_key, root, body)
			SELECT 7, $1, n, 1, int4send(n), sha256('x'), 'x' FROM generate_series(0, 4000) AS n`, set.ID)
		w.Exec(`UPDATE lockstep.task SET claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL`)
		// The database counts the transactions in which pages went.
		w.Exec(`CREATE TABLE batch (xid xid8, pages bigint)`)
		w.Exec(`CREATE FUNCTION note_batch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO batch SELECT pg_current_xact_id(), count(*) FROM gone; RETURN NULL; END $$`)
		w.Exec(`CREATE TRIGGER note_batch AFTER DELETE ON lockstep.manifest_page REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION note_batch()`)
		if err := w.Materialiser.SweepAbandoned(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := w.Int(`SELECT (SELECT count(*) FROM lockstep.manifest) + (SELECT count(*) FROM lockstep.manifest_page)`); n != 0 {
			t.Errorf("%d rows are left over", n)
		}
		if w.Int(`SELECT max(pages) FROM batch`) != 2000 || w.Int(`SELECT count(DISTINCT xid) FROM batch`) != 3 {
			t.Errorf("%d pages at once in %d transactions", w.Int(`SELECT max(pages) FROM batch`), w.Int(`SELECT count(DISTINCT xid) FROM batch`))
		}
		if err := w.Frozen.Adopt(t.Context(), c, frozen.Adoption{Set: set}); err == nil {
			t.Error("a set that was swept was adopted")
		}
	})
	t.Run("a worker that lost its claim leaves the task alone", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Answers(9)
		id := w.Task()
		other := uuid.New()
		manifest.Counted(w.Materialiser, func() { w.Exec(`UPDATE lockstep.task SET claim_token = $1, claimed_by = 'other'`, other) })
		if worked, err := w.Materialiser.MaterialiseOnce(t.Context()); !worked || err != nil {
			t.Errorf("worked %t, %v", worked, err)
		}
		if tk := w.Read(id); tk.ManifestState != task.ManifestPending || tk.ClaimedBy != "other" || tk.MaterialiseTries != 0 {
			t.Errorf("task %+v", tk)
		}
		if n := w.Int(`SELECT count(*) FROM lockstep.manifest`); n != 0 {
			t.Error("the set of the worker without a claim was kept")
		}
	})
	t.Run("one manifest is made ahead for a consumer", func(t *testing.T) {
		w := evidencetest.New(t)
		w.Complete()
		w.Exec(`INSERT INTO lockstep.consumer_grant SELECT consumer, tenant_id, 'form-2', true, true, true, 1 FROM lockstep.consumer_grant`)
		w.Exec(`INSERT INTO lockstep.task (task_id, consumer, tenant_id, collection_id, scope, mode, state, grant_epoch, center_epoch, created_by)
			VALUES (gen_random_uuid(), 'svc-hall', 7, 'form-2', 'COLLECTION', 'REPAIR', 'QUEUED', 1, 1, 'test')`)
		if worked, err := w.Materialiser.MaterialiseOnce(t.Context()); worked || err != nil {
			t.Errorf("worked %t, %v", worked, err)
		}
		w.RecordTask(evidencetest.Key(1))
		if worked, err := w.Materialiser.MaterialiseOnce(t.Context()); !worked || err != nil {
			t.Errorf("a record has to wait: worked %t, %v", worked, err)
		}
	})
}

func TestFrozenRowsAreFrozen(t *testing.T) {
	w := evidencetest.New(t)
	w.Answers(3)
	w.Complete()
	for _, sql := range []string{`UPDATE lockstep.manifest_page SET body = ''`, `DELETE FROM lockstep.manifest_page`} {
		if _, err := w.Store.Pool().Exec(t.Context(), sql); pg.Code(err) != "23000" {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if err := w.Materialiser.SweepAbandoned(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.Int(`SELECT count(*) FROM lockstep.manifest_page`); n != 1 {
		t.Error("an adopted set was swept")
	}
}
