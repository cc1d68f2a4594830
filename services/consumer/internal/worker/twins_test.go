package worker_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/worker"
)

// harm makes both sides differ in every way there is, the same for a seed, and
// gives the task; some records change after its manifest was frozen.
func (w *world) harm(seed uint64) *centertest.Task {
	w.t.Helper()
	random := rand.New(rand.NewPCG(seed, 20261130))
	body := func(n int) string { return fmt.Sprintf(`{"n": %d, "r": %d}`, n, random.IntN(1000)) }
	var late []func()
	for n := range 320 {
		key, here := k(n), rec(2+random.Int64N(5), body(n))
		if random.IntN(3) > 0 {
			w.both(key, here)
			continue
		}
		other := rec(here.Revision, body(-n-1))
		switch random.IntN(14) {
		case 0, 1: // missing
			w.center.Put(key, here)
		case 2:
			w.center.Put(key, here)
			other.Revision--
			w.local(key, other)
		case 3:
			w.center.Put(key, here)
			w.local(key, other)
		case 4:
			w.center.Put(key, centertest.Record{Revision: here.Revision, Content: here.Content, Deleted: true})
			w.local(key, here)
		case 5:
			w.center.Put(key, here)
			other.Revision++
			w.local(key, other)
		case 6: // extra
			w.local(key, here)
		case 7:
			w.center.Put(key, rec(0, here.Content))
			w.local(key, here)
		case 8: // more than the host stores
			w.center.Put(key, rec(here.Revision, `{"n": "`+strings.Repeat("x", 70_000)+`"}`))
			w.local(key, other)
		case 9: // retired here
			w.center.Put(key, here)
			w.local(key, other)
			w.exec(`UPDATE hall.answer_projection SET retired_at = now() WHERE answer_id = $1`, [16]byte([]byte(key)))
		case 10: // held by another collection
			w.center.Put(key, here)
			w.localIn(centertest.Tenant, "form-2", key, other)
		case 11:
			w.center.Put(key, here)
			late = append(late, func() { w.center.Drop(key) })
		case 12:
			w.center.Put(key, here)
			w.local(key, other)
			newer := rec(here.Revision+2, body(n))
			late = append(late, func() { w.center.Put(key, newer) })
		case 13: // a manifest can't hash it
			w.center.Put(key, rec(here.Revision, `{"n": 1, "n": 2}`))
		}
	}
	task := w.center.Task()
	for _, change := range late {
		change()
	}
	return task
}

// shown is everything that twins must have in common.
func (w *world) shown(task *centertest.Task) (out []string) {
	w.t.Helper()
	last := w.center.Last()
	out = append(out, fmt.Sprintf("%s %v %d/%d %v/%v %q", last.State, last.Counts, last.CenterScanned, last.LocalScanned,
		last.CenterComplete, last.LocalComplete, last.RetireCode))
	for _, item := range last.Items {
		out = append(out, fmt.Sprint("item ", item.Key, item.Revision, item.Code))
	}
	out = append(out, w.ledger(task)...)
	rows := w.dump(`(SELECT tenant_id, form_id, answer_id, form_version, seq_no, revision, content_hash, deleted, "values", projection_version,
		retired_at IS NOT NULL AS retired, last_event_id IS NOT NULL AS event, conflict_detail, proof_id IS NOT NULL AS proof, biz_ext, apply_id
		FROM hall.answer_projection)`)
	return append(out, strings.Split(rows, "\n")...)
}

// TestTwins: pages or rows, batches or one row at a time, two ranges at once or
// not: the same damage ends in the same rows, the same ledger and the same report.
func TestTwins(t *testing.T) {
	rowWise := func(_ *store.Settings, s *worker.Settings, _ *repair.Repairer) { s.RowWise = true }
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			var first []string
			classes := map[string]bool{}
			for _, twin := range []struct {
				name    string
				changes []change
				answers int // records a call, and so rows a transaction
				asks    string
			}{
				{"pages, batches", nil, repair.MaxBatch, "GetPages"},
				{"rows, batches", []change{rowWise}, repair.MaxBatch, "ListRows"},
				{"pages, one row at a time", nil, 1, "GetPages"},
			} {
				w := setup(t, twin.changes...)
				w.center.AnswerAtMost(twin.answers)
				task := w.harm(seed)
				w.accept(task, 1)
				w.work()
				got := w.shown(task)
				if first == nil {
					first = got
					for _, line := range w.ledger(task) {
						classes[strings.Fields(line)[1]] = true
					}
				}
				if !slices.Equal(got, first) {
					t.Errorf("%s: got\n%s\nwant\n%s", twin.name, strings.Join(got, "\n"), strings.Join(first, "\n"))
				}
				for _, method := range []string{"GetPages", "ListRows"} {
					if called := w.center.Calls(method) > 0; called != (method == twin.asks) {
						t.Errorf("%s: %s was called: %v", twin.name, method, called)
					}
				}
			}
			for _, class := range protocol.Classes() {
				if !classes[string(class)] {
					t.Errorf("the damage has no %s, only %q", class, slices.Sorted(maps.Keys(classes)))
				}
			}
		})
	}
}

// TestRowsAreProved: a center that lies about single rows is found out as one
// that lies about pages is.
func TestRowsAreProved(t *testing.T) {
	rowWise := func(_ *store.Settings, s *worker.Settings, _ *repair.Repairer) { s.RowWise = true }
	for name, c := range map[string]struct {
		lie  func(*centerv1.ListRowsResponse)
		code string
	}{
		"another revision": {func(r *centerv1.ListRowsResponse) { r.Rows[0].Revision++ }, "PAGE_NOT_PROVEN"},
		"a row left out":   {func(r *centerv1.ListRowsResponse) { r.Rows = r.Rows[1:] }, "PAGE_NOT_PROVEN"},
		"no key":           {func(r *centerv1.ListRowsResponse) { r.Rows[0].Key = "no key" }, "ORDER_VIOLATION"},
		"no hash":          {func(r *centerv1.ListRowsResponse) { r.Rows[0].ContentHash = "no hash" }, "PAGE_NOT_PROVEN"},
		"an early end":     {func(r *centerv1.ListRowsResponse) { r.Rows, r.Completed = r.Rows[:1], true }, "MANIFEST_INCOMPLETE"},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t, rowWise)
			for n := range 10 {
				w.center.Put(k(n), rec(1, `{}`))
			}
			w.local(k(20), rec(1, `{}`))
			w.center.Lie(centertest.Lies{Rows: c.lie})
			task := w.run()
			if row := w.row(task); string(row.State) != "FAILED" || row.Code != c.code {
				t.Errorf("%s %q, want FAILED %q", row.State, row.Code, c.code)
			}
			if rows := w.image(); len(rows) != 1 {
				t.Errorf("%d rows are left of 1", len(rows))
			}
		})
	}
	t.Run("an empty answer is no end", func(t *testing.T) {
		w := setup(t, rowWise)
		w.center.Put(k(1), rec(1, `{}`))
		w.center.Lie(centertest.Lies{Rows: func(r *centerv1.ListRowsResponse) { r.Rows, r.Completed = nil, false }})
		task := w.run()
		w.wantState(task, "QUEUED", "MANIFEST_NOT_READY")
	})
}

// TestRottenContent: content that was changed behind an unchanged hash is seen
// only where it is hashed, and then it is a conflict that is mended.
func TestRottenContent(t *testing.T) {
	for name, rowWise := range map[string]bool{"pages": false, "rows": true} {
		t.Run(name, func(t *testing.T) {
			w := setup(t, func(in *store.Settings, s *worker.Settings, r *repair.Repairer) {
				in.Content, s.VerifyContent, r.Content, s.RowWise = true, true, true, rowWise
			})
			for n := range 300 {
				w.both(k(n), rec(3, fmt.Sprintf(`{"a": %d}`, n)))
			}
			rot := func() {
				w.exec(`UPDATE hall.answer_projection SET "values" = '{"a": "rotten"}' WHERE answer_id = ANY ($1)`,
					[][16]byte{[16]byte([]byte(k(0))), [16]byte([]byte(k(150))), [16]byte([]byte(k(299)))})
			}
			rot()
			task := w.run()
			w.wantState(task, "COMPLETED", "")
			w.wantLedger(task, "0 HASH_CONFLICT REPAIRED", "150 HASH_CONFLICT REPAIRED", "299 HASH_CONFLICT REPAIRED")
			if last := w.center.Last(); last.Verified != protocol.Content {
				t.Errorf("it says that %s were verified", last.Verified)
			}
			var mended int
			if err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM hall.answer_projection
				WHERE "values" = jsonb_build_object('a', get_byte(uuid_send(answer_id), 3) + 256 * get_byte(uuid_send(answer_id), 2))`).Scan(&mended); err != nil {
				t.Fatal(err)
			}
			if mended != 300 {
				t.Errorf("%d of 300 rows have their content", mended)
			}
			again := w.run()
			w.wantState(again, "COMPLETED", "")
			w.wantLedger(again)

			// The stored hashes alone say nothing of it.
			rot()
			w.changes = nil
			blind := w.beside("blind", nil)
			equal := blind.run()
			blind.wantState(equal, "COMPLETED", "")
			blind.wantLedger(equal)
			if last := w.center.Last(); last.Verified != protocol.Hashes {
				t.Errorf("it says that %s were verified", last.Verified)
			}
		})
	}
}
