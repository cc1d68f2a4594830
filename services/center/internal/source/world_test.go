package source_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap/zaptest"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/source"
)

// host is a table as a host may have it: text keys under a collation that
// sorts letters before digits, small numbers that may be NULL, three content columns.
const host = `
	CREATE COLLATION letters (provider = icu, locale = 'und-u-kr-latn-digit');
	CREATE TABLE public.item (
		"Key" text COLLATE letters, tenant int NOT NULL, shelf uuid NOT NULL, rev smallint, gone boolean,
		schema_no int, seq int, title text, price numeric, tags jsonb);
	CREATE TABLE public.other AS TABLE public.item;`

func mapping() dataset.Config {
	return dataset.Config{
		Name: "items", Table: "public.item", KeyKind: "uuid",
		Columns: dataset.Columns{
			Key: "Key", Tenant: "tenant", Collection: "shelf", Revision: "rev", Deleted: "gone",
			SchemaVersion: "schema_no", Sequence: "seq", ContentColumns: []string{"title", "price", "tags"},
		},
	}
}

const shelf = "0123456789abcdef0123456789abcdef"

type world struct {
	*testing.T
	dsn  string
	pool *pgxpool.Pool
	src  *source.Source
	rng  source.Range
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dsn: pgtest.Empty(t), rng: source.Range{TenantID: 7, CollectionID: shelf}}
	w.pool = w.open(w.dsn)
	w.exec(host)
	w.src = w.source(w.pool)
	return w
}

func (w *world) open(dsn string) *pgxpool.Pool {
	w.Helper()
	pool, err := pg.Open(w.Context(), pg.PoolConfig{DSN: dsn})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(pool.Close)
	return pool
}

func (w *world) source(pool *pgxpool.Pool) *source.Source {
	w.Helper()
	table, err := dataset.Resolve(w.Context(), pool, mapping(), dataset.Center)
	if err != nil {
		w.Fatal(err)
	}
	src, err := source.Open(w.Context(), pool, table, zaptest.NewLogger(w))
	if err != nil {
		w.Fatal(err)
	}
	return src
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.pool.Exec(w.Context(), sql, args...); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) item(key string, rev any) {
	w.Helper()
	w.exec(`INSERT INTO item ("Key", tenant, shelf, rev, title, price) VALUES ($1, 7, $2::text::uuid, $3, 'it', 1.50)`, key, shelf, rev)
}

// read gives all rows as the ordered read does.
func (w *world) read() (keys []string, rows []source.Row, err error) {
	p, err := w.src.Begin(w.Context(), w.rng)
	if err != nil {
		return nil, nil, err
	}
	defer p.Close(w.Context())
	keep := func(r *source.Row) error {
		keys = append(keys, protocol.FormatKey(r.Key))
		row := *r
		row.Content = slices.Clone(row.Content)
		rows = append(rows, row)
		return nil
	}
	if w.rng.Key != "" {
		return keys, rows, p.Reader().Read(w.Context(), source.Part{Rows: 1}, keep)
	}
	err = p.Reader().ReadOrdered(w.Context(), keep)
	return keys, rows, err
}

func key(first string) string { return first + "0000000000000000000000000000000"[len(first)-1:] }
