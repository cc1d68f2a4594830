package source_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/source"
)

// parts reads a plan part by part and gives the keys of each, in order.
func (w *world) parts(limit int64, partRows int) (plan source.Plan, keys [][]string, err error) {
	p, err := w.src.Begin(w.Context(), w.rng)
	if err != nil {
		return plan, nil, err
	}
	defer p.Close(w.Context())
	if plan, err = p.Plan(w.Context(), limit, partRows); err != nil {
		return plan, nil, err
	}
	for _, part := range plan.Parts {
		var of []string
		err := p.Reader().Read(w.Context(), part, func(r *source.Row) error {
			of = append(of, protocol.FormatKey(r.Key))
			return nil
		})
		if err != nil {
			return plan, keys, err
		}
		slices.Sort(of)
		keys = append(keys, of)
	}
	return plan, keys, nil
}

func TestPlan(t *testing.T) {
	first, last := "00000000000000000000000000000000", "ffffffffffffffffffffffffffffffff"
	// indexed is a shelf of uuid keys with an index that can be walked, the first
	// and the last key of all among them.
	indexed := func(t *testing.T, rows int) (*world, []string) {
		t.Helper()
		w := setup(t)
		// So few rows are read and sorted faster than walked.
		w.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET enable_sort = off', current_database()); END $$`)
		w.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET enable_seqscan = off', current_database()); END $$`)
		w.pool.Reset()
		w.exec(`ALTER TABLE item ALTER "Key" TYPE uuid USING "Key"::uuid; CREATE INDEX ON item (tenant, shelf, "Key")`)
		w.src = w.source(w.pool)
		w.exec(`INSERT INTO item ("Key", tenant, shelf) SELECT k::uuid, 7, $1::text::uuid FROM (
			SELECT md5(n::text) AS k FROM generate_series(3, $2::int) AS n UNION ALL SELECT $3 WHERE $2::int > 0 UNION ALL SELECT $4 WHERE $2::int > 1) AS k`,
			shelf, rows, first, last)
		w.exec(`INSERT INTO item ("Key", tenant, shelf) SELECT md5(n::text)::uuid, 8, $1::text::uuid FROM generate_series(1, 50) AS n`, shelf)
		w.exec(`VACUUM ANALYZE item`)
		rowsOf, err := w.pool.Query(t.Context(), `SELECT replace("Key"::text, '-', '') FROM item WHERE tenant = 7 ORDER BY "Key"`)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := pgx.CollectRows(rowsOf, pgx.RowTo[string])
		if err != nil || len(keys) != rows {
			t.Fatal(len(keys), err)
		}
		return w, keys
	}
	for _, rows := range []int{0, 1, 9, 10, 11, 19, 20, 21, 1000, 1001} {
		t.Run(fmt.Sprintf("%d rows in parts of 10", rows), func(t *testing.T) {
			w, keys := indexed(t, rows)
			plan, parts, err := w.parts(2000, 10)
			if err != nil || plan.Rows != int64(rows) || len(parts) != max(1, (rows+9)/10) || plan.Ordered {
				t.Fatalf("%d rows in %d parts, ordered %t, %v", plan.Rows, len(parts), plan.Ordered, err)
			}
			for i, part := range parts {
				if want := min(10, rows-10*i); len(part) != want || plan.Parts[i].Rows != int64(want) {
					t.Errorf("part %d has %d rows, planned %d, want %d", i, len(part), plan.Parts[i].Rows, want)
				}
			}
			if got := slices.Concat(parts...); !slices.Equal(got, keys) {
				t.Errorf("the parts are not the rows: %d keys", len(got))
			}
		})
	}
	t.Run("stops one above the limit", func(t *testing.T) {
		w, _ := indexed(t, 100)
		for limit, want := range map[int64]int64{5: 6, 99: 100, 100: 100, 101: 100} {
			plan, _, err := w.parts(limit, 10)
			if err != nil || plan.Rows != want || (len(plan.Parts) == 0) != (want > limit) {
				t.Errorf("limit %d: %d rows in %d parts, %v", limit, plan.Rows, len(plan.Parts), err)
			}
		}
	})
	t.Run("refuses a row without a key, which no part would have", func(t *testing.T) {
		w, _ := indexed(t, 30)
		w.exec(`INSERT INTO item ("Key", tenant, shelf) VALUES (NULL, 7, $1::text::uuid)`, shelf)
		for _, partRows := range []int{10, 100} {
			if _, _, err := w.parts(1000, partRows); fault.ReasonOf(err) != fault.OrderViolation {
				t.Errorf("parts of %d: %v", partRows, err)
			}
		}
	})
	t.Run("does not part what no index has in order", func(t *testing.T) {
		w := setup(t) // text keys under a collation of their own
		w.exec(`INSERT INTO item SELECT md5(n::text), 7, $1::text::uuid FROM generate_series(1, 30) AS n`, shelf)
		w.exec(`CREATE INDEX ON item (tenant, shelf, "Key"); ANALYZE item`)
		plan, _, err := w.parts(100, 10)
		if err != nil || !plan.Ordered || plan.Rows != 30 || len(plan.Parts) != 1 {
			t.Errorf("%+v, %v", plan, err)
		}
	})
}
