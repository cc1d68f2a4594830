package worker_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/pkg/protocol"
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

// TestWrittenSinceHashed: what was hashed vouches for nothing that was written
// after it, though it has the hash that the center's has.
func TestWrittenSinceHashed(t *testing.T) {
	w := setup(t, hashing(1, false))
	const rows = 1000
	for n := range rows {
		w.both(k(n), rec(3, fmt.Sprintf(`{"a": %d}`, n)))
	}
	late := ids(2, 500, 999)
	w.exec(`CREATE TABLE late AS SELECT * FROM hall.answer_projection WHERE answer_id = ANY ($1)`, late)
	w.exec(`DELETE FROM hall.answer_projection WHERE answer_id = ANY ($1)`, late)
	w.exec(`UPDATE hall.answer_projection SET "values" = '{"a": "rotten"}' WHERE answer_id = ANY ($1)`, ids(130))
	w.exec(`ANALYZE hall.answer_projection`)
	w.worker.OnHashed(func() {
		// Delivered meanwhile, and rotten at once.
		w.exec(`INSERT INTO hall.answer_projection SELECT * FROM late`)
		w.exec(`UPDATE hall.answer_projection SET "values" = '{"a": "rotten"}' WHERE answer_id = ANY ($1)`, late)
		w.exec(`UPDATE hall.answer_projection SET "values" = '{"a": "newer"}', revision = 2, content_hash = sha256('newer') WHERE answer_id = ANY ($1)`, ids(300))
		w.exec(`DELETE FROM hall.answer_projection WHERE answer_id = ANY ($1)`, ids(700))
		// Moved to another page, and otherwise as it was.
		w.exec(`UPDATE hall.answer_projection SET "values" = "values" WHERE answer_id = ANY ($1)`, ids(701))
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
	again := w.run()
	w.wantState(again, "COMPLETED", "")
	w.wantLedger(again)
}
