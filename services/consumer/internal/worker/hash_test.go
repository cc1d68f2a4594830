package worker_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/worker"
)

// hashing has contents hashed: as the table lies where a task has so many rows.
func hashing(heapRows int64, rowWise bool) change {
	return func(in *store.Settings, s *worker.Settings, r *repair.Repairer) {
		in.Content, s.VerifyContent, r.Content, s.HeapRows, s.RowWise = true, true, true, heapRows, rowWise
	}
}

// lying has contents hashed page by page of the table.
func lying(in *store.Settings, s *worker.Settings, r *repair.Repairer) {
	hashing(1, false)(in, s, r)
	s.HeapPages = 1
}

// equal writes the same rows on both sides, and looks at the table as autovacuum does.
func (w *world) equal(rows int) {
	w.t.Helper()
	for n := range rows {
		w.both(k(n), rec(3, fmt.Sprintf(`{"a": %d}`, n)))
	}
	w.exec(`VACUUM ANALYZE hall.answer_projection`)
}

// rot changes contents behind their hashes.
func (w *world) rot(numbers ...int) {
	w.t.Helper()
	w.exec(`UPDATE hall.answer_projection SET "values" = '{"a": "rotten"}' WHERE answer_id = ANY ($1)`, ids(numbers...))
}

// ids are keys as the database has them.
func ids(numbers ...int) (out [][16]byte) {
	for _, n := range numbers {
		out = append(out, [16]byte([]byte(k(n))))
	}
	return out
}

// TestHashedTwins: contents hashed as the table lies, in key order, or row by row:
// the same damage, some of it behind right hashes, ends in the same rows, the same
// ledger and the same report.
func TestHashedTwins(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			var first []string
			for _, twin := range []struct {
				name   string
				change change
				lying  bool
			}{
				{"as the table lies", hashing(1, false), true},
				{"in key order", hashing(math.MaxInt64, false), false},
				{"rows", hashing(1, true), false},
			} {
				w := setup(t, twin.change)
				task := w.harm(seed)
				w.exec(`UPDATE hall.answer_projection SET "values" = '{"rotten": true}' WHERE get_byte(uuid_send(answer_id), 3) % 16 = 3`)
				w.exec(`UPDATE hall.answer_projection SET content_hash = decode(repeat('00', 32), 'hex') WHERE get_byte(uuid_send(answer_id), 3) % 32 = 4`)
				w.exec(`UPDATE hall.answer_projection SET "values" = NULL WHERE get_byte(uuid_send(answer_id), 3) % 32 = 5`)
				w.exec(`UPDATE hall.answer_projection SET content_hash = sha256('other') WHERE get_byte(uuid_send(answer_id), 3) % 32 = 6`)
				w.exec(`ANALYZE hall.answer_projection`)
				lying := false
				w.worker.OnHashed(func() { lying = true })
				w.accept(task, 1)
				w.work()
				if lying != twin.lying {
					t.Errorf("%s: it was read as it lies: %v", twin.name, lying)
				}
				got := w.shown(task)
				if first == nil {
					first = got
				}
				if !slices.Equal(got, first) {
					t.Errorf("%s: got\n%s\nwant\n%s", twin.name, strings.Join(got, "\n"), strings.Join(first, "\n"))
				}
			}
		})
	}
}

// TestWrittenSinceHashed: what was hashed vouches for nothing that has another
// hash or revision since, or was not there.
func TestWrittenSinceHashed(t *testing.T) {
	w := setup(t, lying)
	const rows = 1000
	w.equal(rows)
	w.exec(`CREATE TABLE late AS SELECT * FROM hall.answer_projection WHERE answer_id = ANY ($1)`, ids(2, 500, 999))
	w.exec(`DELETE FROM hall.answer_projection WHERE answer_id = ANY ($1)`, ids(2, 500, 999))
	w.rot(130)
	w.worker.OnHashed(func() {
		// Delivered meanwhile, and rotten at once.
		w.exec(`INSERT INTO hall.answer_projection SELECT * FROM late`)
		w.rot(2, 500, 999)
		w.exec(`UPDATE hall.answer_projection SET "values" = '{"a": "newer"}', revision = 2, content_hash = sha256('newer') WHERE answer_id = ANY ($1)`, ids(300))
		w.exec(`DELETE FROM hall.answer_projection WHERE answer_id = ANY ($1)`, ids(700))
		// Its content alone: as behind a scan in key order, the next task sees it.
		w.rot(900)
	})
	task := w.run()
	w.wantState(task, "COMPLETED", "")
	w.wantLedger(task, "2 HASH_CONFLICT REPAIRED", "130 HASH_CONFLICT REPAIRED", "300 STALE REPAIRED", "500 HASH_CONFLICT REPAIRED",
		"700 MISSING REPAIRED", "999 HASH_CONFLICT REPAIRED")
	last := w.center.Last()
	if last.Verified != protocol.Content || last.LocalScanned != rows-1 || last.CenterScanned != rows {
		t.Errorf("%s verified, %d and %d scanned", last.Verified, last.CenterScanned, last.LocalScanned)
	}
	w.worker.OnHashed(nil)
	w.wantLedger(w.run(), "900 HASH_CONFLICT REPAIRED")
	w.wantLedger(w.run())
}

// TestReplacedSinceHashed: of a table whose rows were all replaced, none is
// believed, though each has the hash that it had.
func TestReplacedSinceHashed(t *testing.T) {
	w := setup(t, lying)
	w.equal(1000)
	w.worker.OnHashed(func() {
		w.exec(`CREATE TABLE copy AS TABLE hall.answer_projection`)
		w.exec(`TRUNCATE hall.answer_projection`)
		w.exec(`UPDATE copy SET "values" = '{"a": "badly converted"}' WHERE answer_id = ANY ($1)`, ids(0, 600, 999))
		w.exec(`INSERT INTO hall.answer_projection SELECT * FROM copy`)
	})
	task := w.run()
	w.wantState(task, "COMPLETED", "")
	w.wantLedger(task, "0 HASH_CONFLICT REPAIRED", "600 HASH_CONFLICT REPAIRED", "999 HASH_CONFLICT REPAIRED")
	if last := w.center.Last(); last.LocalScanned != 1000 {
		t.Errorf("%d scanned", last.LocalScanned)
	}
}

// TestReadTwiceAndRottenBetween: a row that moves in front of the reading is read
// again; what it was before vouches for nothing.
func TestReadTwiceAndRottenBetween(t *testing.T) {
	w := setup(t, lying)
	w.equal(1000)
	var pages int64
	if err := w.pool.QueryRow(t.Context(), `SELECT pg_relation_size('hall.answer_projection') / 8192`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	w.worker.OnPages(func(from int64) {
		if from != pages-1 {
			return
		}
		w.rot(0)
		var page int64
		if err := w.pool.QueryRow(t.Context(), `SELECT (ctid::text::point)[0]::int8 FROM hall.answer_projection WHERE answer_id = ANY ($1)`, ids(0)).Scan(&page); err != nil {
			t.Fatal(err)
		}
		if page != pages-1 {
			t.Errorf("the row is in page %d now, want %d", page, pages-1)
		}
	})
	w.wantLedger(w.run(), "0 HASH_CONFLICT REPAIRED")
}

// TestHashedInKeyOrderAfterAll: where many contents are not what their hashes
// say, reading on as the table lies would be for nothing.
func TestHashedInKeyOrderAfterAll(t *testing.T) {
	w := setup(t, lying)
	w.equal(3000)
	w.exec(`UPDATE hall.answer_projection SET "values" = '{"a": "rotten"}' WHERE get_byte(uuid_send(answer_id), 3) % 64 = 7`)
	w.exec(`CREATE TABLE copy AS TABLE hall.answer_projection`)
	w.exec(`TRUNCATE hall.answer_projection`)
	w.exec(`INSERT INTO hall.answer_projection SELECT * FROM copy ORDER BY answer_id`) // they lie among the others
	w.exec(`ANALYZE hall.answer_projection`)
	w.worker.OnHashed(func() { t.Error("it was read to its end as it lies") })
	task := w.run()
	w.wantState(task, "COMPLETED", "")
	var want []string
	for n := 7; n < 3000; n += 64 {
		want = append(want, fmt.Sprint(n, " HASH_CONFLICT REPAIRED"))
	}
	w.wantLedger(task, want...)
}

// TestHashedOnce: a row that is given back is not hashed again in its attempt; in
// another one, or by a process that has not hashed it, it is hashed in key order.
func TestHashedOnce(t *testing.T) {
	w, busy := guarded(t, lying)
	w.equal(5000) // two checkpoints
	w.rot(4990)   // behind the first one
	hashed := 0
	w.worker.OnHashed(func() {
		hashed++
		busy(true)
	})
	task := w.run()
	w.wantState(task, "QUEUED", "LOAD_GUARD")
	if row := w.row(task); row.NextPage == 0 || row.LocalComplete || row.RetryCount != 0 {
		t.Errorf("page %d, complete %v, %d retries", row.NextPage, row.LocalComplete, row.RetryCount)
	}
	t.Run("the same process", func(t *testing.T) {
		busy(false)
		w.work()
		w.wantState(task, "COMPLETED", "")
		w.wantLedger(task, "4990 HASH_CONFLICT REPAIRED")
		if hashed != 1 {
			t.Errorf("hashed %d times", hashed)
		}
	})
	t.Run("another attempt", func(t *testing.T) {
		w.rot(4970)
		task := w.run()
		w.wantState(task, "QUEUED", "LOAD_GUARD")
		w.rot(4960)
		busy(false)
		w.center.Redispatch(task, 2)
		w.accept(task, 2)
		w.work()
		w.wantState(task, "COMPLETED", "")
		w.wantLedger(task, "4960 HASH_CONFLICT REPAIRED", "4970 HASH_CONFLICT REPAIRED")
	})
	t.Run("another process", func(t *testing.T) {
		w.rot(4980)
		task := w.run()
		w.wantState(task, "QUEUED", "LOAD_GUARD")
		other := w.beside("w2", nil)
		other.worker.OnPages(func(int64) { t.Error("it is read as it lies") })
		other.work()
		w.wantState(task, "COMPLETED", "")
		w.wantLedger(task, "4980 HASH_CONFLICT REPAIRED")
	})
}

// TestHashingEndsAsAScanDoes: a pause, a failure and a lost claim, while the
// table is read as it lies.
func TestHashingEndsAsAScanDoes(t *testing.T) {
	t.Run("a pause gives it back", func(t *testing.T) {
		// The run looks whether it is to rest between nearly any two pages.
		w := setup(t, lying, func(_ *store.Settings, s *worker.Settings, _ *repair.Repairer) { s.ScanInterval = time.Millisecond })
		w.equal(2000)
		task := w.center.Task()
		w.accept(task, 1)
		w.worker.OnPages(func(from int64) {
			if from == 3 {
				if _, err := w.store.SetPaused(t.Context(), w.row(task).TaskID, true, "operator/eva", "later"); err != nil {
					t.Error(err)
				}
			}
		})
		w.worker.OnHashed(func() { t.Error("it was hashed to its end") })
		w.work()
		w.wantState(task, "QUEUED", "")
		if row := w.row(task); !row.Paused || row.NextPage != 0 || row.RetryCount != 0 {
			t.Errorf("paused %v, page %d, %d retries", row.Paused, row.NextPage, row.RetryCount)
		}
		w.worker.OnHashed(nil)
		w.worker.OnPages(func(from int64) {
			if from < 3 {
				t.Errorf("page %d is read once more", from)
			}
		})
		if _, err := w.store.SetPaused(t.Context(), w.row(task).TaskID, false, "operator/eva", ""); err != nil {
			t.Fatal(err)
		}
		w.work()
		w.wantState(task, "COMPLETED", "")
	})
	t.Run("a statement that fails is a failed round", func(t *testing.T) {
		w := setup(t, lying)
		w.equal(1000)
		w.rot(5)
		w.worker.OnPages(func(from int64) {
			if from == 3 {
				w.exec(`ALTER TABLE hall.answer_projection RENAME TO away`)
			}
		})
		task := w.run()
		w.wantState(task, "QUEUED", "UNAVAILABLE")
		if row := w.row(task); row.RetryCount != 1 {
			t.Errorf("%d retries", row.RetryCount)
		}
		w.worker.OnPages(nil)
		w.exec(`ALTER TABLE hall.away RENAME TO answer_projection`)
		w.due()
		w.work()
		w.wantState(task, "COMPLETED", "")
		w.wantLedger(task, "5 HASH_CONFLICT REPAIRED")
	})
	t.Run("a claim that was lost ends it", func(t *testing.T) {
		w := setup(t, lying)
		w.equal(1000)
		task := w.center.Task()
		w.accept(task, 1)
		w.worker.OnHashed(func() {
			w.exec(`UPDATE lockstep.work SET claim_token = gen_random_uuid(), claimed_by = 'other'`)
		})
		if worked, err := w.worker.WorkOnce(t.Context()); !worked || err != nil {
			t.Fatal(worked, err)
		}
		if row := w.row(task); row.NextPage != 0 || row.State != "RUNNING" {
			t.Errorf("%s, page %d", row.State, row.NextPage)
		}
	})
	t.Run("the center is told that it waits", func(t *testing.T) {
		w, busy := guarded(t, lying)
		w.equal(1000)
		w.worker.OnPages(func(from int64) {
			if from == 3 {
				busy(true)
			}
		})
		w.center.Lie(centertest.Lies{Ack: func(r *protocol.Report, _ *centerv1.ReportResultResponse) error {
			if r.Phase == protocol.Waiting {
				busy(false)
			}
			return nil
		}})
		task := w.run()
		w.wantState(task, "COMPLETED", "")
		if codes := told(w); len(codes) != 1 || codes[0] != "LOAD_GUARD" {
			t.Errorf("the center was told %q", codes)
		}
	})
}
