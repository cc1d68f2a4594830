package source_test

import (
	"slices"
	"testing"

	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/source"
)

// pages reads the table in slices of some pages and gives the keys as they come.
func (w *world) pages(slice int64) (pages int64, keys []string) {
	w.Helper()
	p, err := w.src.Begin(w.Context(), w.rng)
	if err != nil {
		w.Fatal(err)
	}
	defer p.Close(w.Context())
	plan, err := p.Plan(w.Context(), 1_000_000, 100)
	if err != nil {
		w.Fatal(err)
	}
	if pages, err = p.HeapPages(w.Context(), plan.Rows); err != nil {
		w.Fatal(err)
	}
	// What is written from here on is of no slice.
	w.exec(`UPDATE item SET rev = rev + 1`)
	w.exec(`INSERT INTO item ("Key", tenant, shelf) SELECT md5('late' || n), 7, $1::text::uuid FROM generate_series(1, 500) AS n`, shelf)
	reader := p.Reader()
	for from := int64(0); from < pages; from += slice {
		err := reader.ReadPages(w.Context(), from, from+slice, func(r *source.Row) error {
			keys = append(keys, protocol.FormatKey(r.Key))
			return nil
		})
		if err != nil {
			w.Fatal(err)
		}
	}
	return pages, keys
}

// Every row of the range comes once, however the pages are cut and whatever is
// written meanwhile, also from pages that updates have moved rows to.
func TestReadPages(t *testing.T) {
	for _, slice := range []int64{1, 3, 1000} {
		w := setup(t)
		w.exec(`INSERT INTO item ("Key", tenant, shelf, rev) SELECT md5(n::text), 7 + n % 5 / 4, $1::text::uuid, 1 FROM generate_series(1, 2000) AS n`, shelf)
		w.exec(`UPDATE item SET rev = 2 WHERE hashtext("Key") % 3 = 0`)
		w.exec(`DELETE FROM item WHERE hashtext("Key") % 7 = 0`)
		w.exec(`ANALYZE item`)
		rows, err := w.pool.Query(t.Context(), `SELECT "Key" FROM item WHERE tenant = 7 ORDER BY "Key" COLLATE "C"`)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for rows.Next() {
			var key string
			if err := rows.Scan(&key); err != nil {
				t.Fatal(err)
			}
			want = append(want, key)
		}
		pages, got := w.pages(slice)
		slices.Sort(got)
		if pages < 10 || len(want) < 1000 || !slices.Equal(got, want) {
			t.Errorf("slices of %d of %d pages: %d keys, want %d", slice, pages, len(got), len(want))
		}
	}
}

// The table is read as it lies only where that is cheaper, and where it is one.
func TestHeapPages(t *testing.T) {
	for name, c := range map[string]struct {
		prepare string
		heap    bool
	}{
		"the whole table":               {`ANALYZE item`, true},
		"nothing is known of the table": {`INSERT INTO item SELECT md5(n::text), 8, '` + shelf + `' FROM generate_series(1, 20000) AS n`, false},
		"a third of it":                 {`INSERT INTO item SELECT md5(n::text), 8, '` + shelf + `' FROM generate_series(1, 2000) AS n; ANALYZE item`, true},
		"a fifth of it":                 {`INSERT INTO item SELECT md5(n::text), 8, '` + shelf + `' FROM generate_series(1, 4000) AS n; ANALYZE item`, false},
		"less than a row a page": {`UPDATE item SET title = repeat(md5(random()::text), 60); UPDATE item SET title = repeat(md5(random()::text), 60);
			ALTER TABLE item ALTER title SET STORAGE PLAIN; UPDATE item SET title = repeat('x', 5000); ANALYZE item`, false},
		"others inherit from it": {`ANALYZE item; CREATE TABLE more () INHERITS (item)`, false},
		"a view":                 {`ALTER TABLE item RENAME TO hidden; CREATE VIEW item AS TABLE hidden`, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.exec(`INSERT INTO item SELECT md5(n::text), 7, $1::text::uuid FROM generate_series(1, 1000) AS n`, shelf)
			w.exec(c.prepare)
			p, err := w.src.Begin(t.Context(), w.rng)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close(t.Context())
			pages, err := p.HeapPages(t.Context(), 1000)
			if err != nil || (pages > 0) != c.heap {
				t.Errorf("%d pages, %v", pages, err)
			}
		})
	}
}
