package source_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/source"
)

// A role that may read the mapped columns only, and so may not lock the table,
// reads it all the same; a table that is replaced as the read begins is refused,
// because the snapshot would see it empty. So is a partition of one.
func TestARoleOfSomeColumns(t *testing.T) {
	for name, partition := range map[string]bool{"a table": false, "a partitioned table": true} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			truncated := "item"
			if partition {
				truncated = "item_all"
				w.exec(`ALTER TABLE item RENAME TO old; CREATE TABLE item (LIKE old) PARTITION BY LIST (tenant); CREATE TABLE item_all PARTITION OF item DEFAULT`)
			}
			w.exec(`ALTER TABLE item ADD secret text`)
			w.exec(`INSERT INTO item SELECT md5(n::text), 7, $1::text::uuid FROM generate_series(1, 30) AS n`, shelf)
			w.exec(`CREATE ROLE lockstep_columns_test`)
			defer func() { w.exec(`DROP OWNED BY lockstep_columns_test; DROP ROLE lockstep_columns_test`) }()
			w.exec(`GRANT SELECT ("Key", tenant, shelf, rev, gone, schema_no, seq, title, price, tags) ON item TO lockstep_columns_test`)
			config, err := pgxpool.ParseConfig(w.dsn)
			if err != nil {
				t.Fatal(err)
			}
			config.ConnConfig.RuntimeParams["role"] = "lockstep_columns_test"
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			w.src = w.source(pool)
			plan, parts, err := w.parts(100, 50)
			if err != nil || plan.Rows != 30 || len(parts) != 1 || len(parts[0]) != 30 {
				t.Fatalf("%d rows in %d parts, %v", plan.Rows, len(parts), err)
			}
			p, err := w.src.Begin(t.Context(), source.Range{TenantID: 7, CollectionID: shelf})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close(t.Context())
			w.exec(`ANALYZE item`)
			if pages, err := p.HeapPages(t.Context(), 30); err != nil || pages != 0 {
				t.Errorf("%d pages whose rows it may not ask for by their places, %v", pages, err)
			}
			w.exec(`TRUNCATE ` + truncated)
			w.exec(`INSERT INTO item SELECT md5(n::text), 7, $1::text::uuid FROM generate_series(1, 30) AS n`, shelf)
			if plan, err := p.Plan(t.Context(), 100, 50); fault.ReasonOf(err) != fault.Unavailable {
				t.Errorf("%d rows of a table that was replaced, %v", plan.Rows, err)
			}
		})
	}
}
