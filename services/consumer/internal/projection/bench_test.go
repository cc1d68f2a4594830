package projection

import (
	"testing"

	"lockstep.dev/pkg/evidence"
)

// fill gives the bundled table n rows of the scope, their keys in another order
// than the heap's, and makes the index sufficient to read them.
func fill(t testing.TB, w *world, n int) {
	t.Helper()
	// VACUUM marks no page all-visible while the commit that filled it is not on disk.
	w.exec(t, `SET synchronous_commit = on`)
	w.exec(t, `INSERT INTO hall.answer_projection (tenant_id, form_id, answer_id, revision, content_hash, "values")
		SELECT $1, $2, lpad(to_hex(i), 32, '0')::uuid, i % 9, sha256(i::text::bytea), jsonb_build_object('answer', repeat(i::text, 30))
		FROM generate_series(0, $3::int - 1) AS s(i) ORDER BY hashint4(i)`, w.at.TenantID, w.at.CollectionID, n)
	w.exec(t, `VACUUM (ANALYZE, FREEZE) hall.answer_projection`)
}

// BenchmarkImage reads an image of 200 000 rows, a round's share a statement.
func BenchmarkImage(b *testing.B) {
	const size = 200_000
	w := setup(b, bundled)
	fill(b, w, size)
	for name, content := range map[string]bool{"hashes": false, "content": true} {
		b.Run(name, func(b *testing.B) {
			rows := make([]evidence.Row, 0, 4096)
			b.ReportAllocs()
			for b.Loop() {
				c := Chunk{Scope: w.at, Limit: cap(rows), Content: content}
				n := 0
				for {
					var err error
					if rows, err = w.Image(b.Context(), c, rows[:0]); err != nil {
						b.Fatal(err)
					}
					n += len(rows)
					if len(rows) < c.Limit {
						break
					}
					last := rows[len(rows)-1].Key
					c.After = &last
				}
				if n != size {
					b.Fatalf("read %d rows", n)
				}
			}
			b.ReportMetric(size*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkRepair changes batches of 200 rows.
func BenchmarkRepair(b *testing.B) {
	w := setup(b, bundled)
	fill(b, w, 20_000)
	items := make([]Item, 200)
	revision := int64(100)
	for b.Loop() {
		rows, err := w.Image(b.Context(), Chunk{Scope: w.at, Limit: len(items)}, nil)
		if err != nil {
			b.Fatal(err)
		}
		revision++
		for i := range rows {
			items[i] = Item{Key: rows[i].Key, Expected: Live(rows[i]), Snapshot: snapshot(b, uint64(i), revision, body("new"))}
		}
		if written := w.repair(b, items...); len(written) != len(items) {
			b.Fatalf("wrote %d rows", len(written))
		}
	}
	b.ReportMetric(float64(len(items)*b.N)/b.Elapsed().Seconds(), "rows/s")
}
