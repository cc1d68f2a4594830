package manifest_test

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"lockstep.dev/services/center/internal/evidencetest"
	"lockstep.dev/services/center/internal/manifest"
)

// bulk fills the collection with rows of about 380 bytes of content, in an
// order that has nothing to do with the keys'.
const bulk = `INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, deleted, "values")
	SELECT 7, md5(n::text)::uuid, 'form-1', 1, n, 1 + n % 9, n % 50 = 0, jsonb_build_object(
		'name', 'Person ' || n, 'age', n % 90, 'score', n / 7.0, 'agreed', n % 2 = 0, 'notes', repeat('so it goes. ', 15),
		'address', jsonb_build_object('street', 'Street ' || n % 300, 'zip', n % 99999))
	FROM generate_series(1, $1::int) AS n`

// fill leaves the primary key as the only index: it is enough to read by, and
// the others are most of the time that filling takes.
func fill(w *evidencetest.World, rows int) {
	w.T.Helper()
	w.Exec(`DROP INDEX answers.answer_collection, answers.answer_key`)
	w.Exec(bulk, rows)
	w.Exec(`VACUUM ANALYZE answers.answer`)
}

// TestMaterialiseInFlatMemory: the heap in use depends on the pages in flight.
// 200 000 rows are 70 MB of content and 16 MB of pages.
func TestMaterialiseInFlatMemory(t *testing.T) {
	const rows = 200_000
	const most = 48 << 20
	w := evidencetest.New(t)
	w.Materialiser.Limits.MaxRows, w.Materialiser.Limits.MaxPages, w.Materialiser.Limits.PageRows = rows, rows, 128
	fill(w, rows)
	manifest.SpillAnywhere(w.Materialiser, t.TempDir())
	readBy(t, w, func(_ int64, way string) {
		if way != asLying {
			t.Errorf("read by %s", way)
		}
	})
	id := w.Task()

	runtime.GC()
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		var peak uint64
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse)
			select {
			case <-stop:
				done <- peak
				return
			case <-tick.C:
			}
		}
	}()
	started := time.Now()
	tk := w.Materialise(id)
	took := time.Since(started)
	close(stop)
	peak := <-done
	t.Logf("%d rows in %s (%.0f rows/s), at most %d MB of heap in use", rows, took, float64(rows)/took.Seconds(), peak>>20)
	if tk.RowCount != rows || tk.PageCount != 1563 {
		t.Errorf("task %+v", tk)
	}
	if peak > most {
		t.Errorf("%d MB of heap in use, want at most %d MB", peak>>20, most>>20)
	}
}

// BenchmarkMaterialise gives the time for one row: read, hashed, packed, written.
func BenchmarkMaterialise(b *testing.B) {
	const rows = 400_000
	w := evidencetest.New(b)
	w.Materialiser.Limits.MaxRows, w.Materialiser.Limits.MaxPages, w.Materialiser.Limits.PageRows = rows, rows, 128
	w.Materialiser.Readers = 2
	fill(w, rows)
	for _, way := range []string{byRanges, asLying} {
		b.Run(way, func(b *testing.B) {
			manifest.SpillAnywhere(w.Materialiser, b.TempDir())
			if way == byRanges {
				w.Materialiser.SpillDir = filepath.Join(b.TempDir(), "missing")
			}
			for b.Loop() {
				if tk := w.Materialise(w.Task()); tk.RowCount != rows {
					b.Fatal(tk.RowCount)
				}
				w.Exec(`UPDATE lockstep.task SET state = 'CANCELLED', ended_at = now() WHERE ended_at IS NULL`)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
		})
	}
}
