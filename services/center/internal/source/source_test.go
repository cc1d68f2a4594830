package source_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap/zaptest"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/fault"
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

func TestRead(t *testing.T) {
	t.Run("yields keys in byte order, whatever the column's collation says", func(t *testing.T) {
		w := setup(t)
		for _, k := range []string{"b", "0", "a9", "9", "aa", "f"} {
			w.item(key(k), 1)
		}
		keys, _, err := w.read()
		if want := []string{key("0"), key("9"), key("a9"), key("aa"), key("b"), key("f")}; err != nil || !slices.Equal(keys, want) {
			t.Errorf("%v, %v", keys, err)
		}
	})
	t.Run("reads NULL numbers as 0 and NULL deleted as false", func(t *testing.T) {
		w := setup(t)
		w.item(key("1"), nil)
		w.item(key("2"), -3)
		_, rows, err := w.read()
		if err != nil || len(rows) != 2 {
			t.Fatal(len(rows), err)
		}
		for _, r := range rows {
			if r.Revision != 0 || r.Deleted || r.SchemaVersion != 0 || r.Sequence != 0 || string(r.Content) != `{"tags": null, "price": 1.50, "title": "it"}` {
				t.Errorf("row %+v %s", r, r.Content)
			}
		}
	})
	t.Run("is one snapshot, and says when it began", func(t *testing.T) {
		w := setup(t)
		w.item(key("1"), 1)
		w.item(key("2"), 1)
		before := time.Now().Add(-time.Second)
		p, err := w.src.Begin(t.Context(), w.rng)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		if window := p.WindowStart(); window.Before(before) || window.After(time.Now().Add(time.Second)) {
			t.Errorf("window %s", window)
		}
		name, err := p.Export(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.item(key("3"), 1)
		w.exec(`DELETE FROM item WHERE "Key" = $1`, key("2"))
		joined, err := p.Join(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer joined.Leave(t.Context())
		plan, err := p.Plan(t.Context(), 10, 10)
		if err != nil || plan.Rows != 2 {
			t.Errorf("planned %+v, %v", plan, err)
		}
		for name, reader := range map[string]*source.Reader{"its own": p.Reader(), "one that joined": joined} {
			var seen []string
			err := reader.Read(t.Context(), source.Part{}, func(r *source.Row) error {
				seen = append(seen, protocol.FormatKey(r.Key))
				return nil
			})
			slices.Sort(seen)
			if err != nil || !slices.Equal(seen, []string{key("1"), key("2")}) {
				t.Errorf("%s reader saw %v, %v", name, seen, err)
			}
		}
	})
	t.Run("does not read what is left after the reader's error", func(t *testing.T) {
		w := setup(t)
		w.exec(`INSERT INTO item ("Key", tenant, shelf, title) SELECT md5(n::text), 7, $1::text::uuid, repeat('x', 1000000) FROM generate_series(1, 50) AS n`, shelf)
		enough := errors.New("enough")
		p, err := w.src.Begin(t.Context(), w.rng)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		if err := p.Reader().Read(t.Context(), source.Part{}, func(*source.Row) error { seen++; return enough }); !errors.Is(err, enough) || seen != 1 {
			t.Fatal(seen, err)
		}
		// A connection that was read to the end would still answer.
		if _, err := p.Export(t.Context()); err == nil {
			t.Error("50 MB were read for the first row of them")
		}
		p.Close(t.Context())
	})
	t.Run("stops at the reader's error and gives a whole connection back", func(t *testing.T) {
		w := setup(t)
		w.item(key("1"), 1)
		enough := errors.New("enough")
		for range 20 {
			p, err := w.src.Begin(t.Context(), w.rng)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Reader().Read(t.Context(), source.Part{}, func(*source.Row) error { return enough }); !errors.Is(err, enough) {
				t.Fatal(err)
			}
			p.Close(t.Context())
		}
		if keys, _, err := w.read(); err != nil || len(keys) != 1 {
			t.Error(keys, err)
		}
	})
	t.Run("refuses a key twice and a key in another spelling", func(t *testing.T) {
		for _, second := range []string{key("1"), key("1")[:31], key("a")[:31] + "G", "ABCDEF00000000000000000000000000", ""} {
			w := setup(t)
			w.item(key("1"), 1)
			w.item(second, 1)
			if _, _, err := w.read(); fault.ReasonOf(err) != fault.OrderViolation {
				t.Errorf("%q: %v", second, err)
			}
		}
		w := setup(t)
		w.exec(`INSERT INTO item ("Key", tenant, shelf) VALUES (NULL, 7, $1::text::uuid)`, shelf)
		if _, _, err := w.read(); fault.ReasonOf(err) != fault.OrderViolation {
			t.Errorf("NULL: %v", err)
		}
	})
	t.Run("of one record reads that one", func(t *testing.T) {
		w := setup(t)
		w.item(key("1"), 1)
		w.item(key("2"), 1)
		raw, err := protocol.ParseKey(key("2"))
		if err != nil {
			t.Fatal(err)
		}
		w.rng.Key = raw
		if keys, _, err := w.read(); err != nil || !slices.Equal(keys, []string{key("2")}) {
			t.Error(keys, err)
		}
		if n, err := w.src.Count(t.Context(), w.rng, 10); n != 1 || err != nil {
			t.Error(n, err)
		}
	})
}

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

func TestWhatIsTooLongStaysWhereItIs(t *testing.T) {
	w := setup(t)
	w.exec(`INSERT INTO item ("Key", tenant, shelf, title) VALUES ($1, 7, $2::text::uuid, repeat('x', 8388608))`, key("1"), shelf)
	w.item(key("2"), 1)
	_, rows, err := w.read()
	if err != nil || len(rows) != 2 || string(rows[0].Content) != "!" || len(rows[1].Content) < 20 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

func TestCountStopsAtItsLimit(t *testing.T) {
	w := setup(t)
	w.exec(`INSERT INTO item SELECT md5(n::text), 7, $1::text::uuid FROM generate_series(1, 30) AS n`, shelf)
	for limit, want := range map[int64]int64{29: 29, 30: 30, 31: 30} {
		if n, err := w.src.Count(t.Context(), w.rng, limit); n != want || err != nil {
			t.Errorf("limit %d: %d, %v", limit, n, err)
		}
	}
}

func TestCountTakesNoLongerThanACallerWaits(t *testing.T) {
	w := setup(t)
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE item`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.src.Count(t.Context(), w.rng, 10); !errors.Is(err, source.ErrNotCounted) {
		t.Error(err)
	}
}

func TestCurrent(t *testing.T) {
	w := setup(t)
	w.item(key("1"), 4)
	w.item(key("2"), 1)
	w.item(key("2"), 2)
	w.exec(`INSERT INTO item ("Key", tenant, shelf) VALUES ($1, 8, $2::text::uuid), ($3, 7, gen_random_uuid())`, key("3"), shelf, key("4"))
	var keys []string
	for i := 1; i <= 5; i++ {
		raw, err := protocol.ParseKey(key(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, raw)
	}
	got, err := w.src.Current(t.Context(), w.rng, keys, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if r := got.Rows[keys[0]]; r == nil || r.Revision != 4 || string(r.Content) != `{"tags": null, "price": 1.50, "title": "it"}` {
		t.Errorf("row %+v", r)
	}
	if !got.Twice[keys[1]] || !got.Elsewhere[keys[2]] || !got.Elsewhere[keys[3]] || !got.Missing(keys[4]) || got.System == "" {
		t.Errorf("%+v", got)
	}
	for i := range 4 {
		if got.Missing(keys[i]) {
			t.Errorf("key %d is said to be missing", i+1)
		}
	}
}

func TestCurrentIsCutByBytes(t *testing.T) {
	w := setup(t)
	var keys []string
	for i, size := range []int{8 << 20, 100_000, 100_000, 10} {
		w.exec(`INSERT INTO item ("Key", tenant, shelf, rev, title) VALUES ($1, 7, $2::text::uuid, 1, repeat('x', $3::int))`, key(fmt.Sprint(i+1)), shelf, size)
		raw, err := protocol.ParseKey(key(fmt.Sprint(i + 1)))
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, raw)
	}
	const around = len(`{"tags": null, "price": null, "title": ""}`)
	const leftOver = -1
	for _, c := range []struct {
		name     string
		from     int // the first key asked for
		maxBytes int
		want     []int // bytes of the contents; leftOver
	}{
		{"all fit, and what is too long stays where it is", 0, 1 << 20, []int{1, 100_000 + around, 100_000 + around, 10 + around}},
		{"what does not fit is left over and keeps nothing back", 0, 150_000, []int{1, 100_000 + around, leftOver, 10 + around}},
		{"a large one does not come before smaller ones", 1, 50_000, []int{leftOver, leftOver, 10 + around}},
		{"the first one comes whatever its size", 1, 0, []int{leftOver, leftOver, 10 + around}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := w.src.Current(t.Context(), w.rng, keys[c.from:], c.maxBytes)
			if err != nil {
				t.Fatal(err)
			}
			for i, k := range keys[c.from:] {
				row := got.Rows[k]
				switch {
				case c.want[i] == leftOver:
					if row != nil || !got.LeftOver[k] || got.Missing(k) {
						t.Errorf("record %d is not left over", i)
					}
				case row == nil || len(row.Content) != c.want[i] || row.Revision != 1:
					t.Errorf("record %d is not read as it is", i)
				}
			}
		})
	}
}

// TestAStandbyIsNotRead: a function of the same name, found first, makes the
// primary look like a standby.
func TestAStandbyIsNotRead(t *testing.T) {
	w := setup(t)
	w.item(key("1"), 1)
	w.exec(`CREATE SCHEMA fake; CREATE FUNCTION fake.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'`)
	config, err := pgxpool.ParseConfig(w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = "fake, pg_catalog"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	src := w.source(pool)
	if _, err := src.Begin(t.Context(), w.rng); fault.ReasonOf(err) != fault.Unavailable {
		t.Error(err)
	}
	if _, err := src.Current(t.Context(), w.rng, []string{"0123456789abcdef"}, 1); fault.ReasonOf(err) != fault.Unavailable {
		t.Error(err)
	}
	if _, err := src.System(t.Context()); fault.ReasonOf(err) != fault.Unavailable {
		t.Error(err)
	}
}

func TestSystem(t *testing.T) {
	w := setup(t)
	full, err := w.src.System(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("is the same every time and another in another database", func(t *testing.T) {
		if again, err := w.src.System(t.Context()); err != nil || again != full {
			t.Error(again, err)
		}
		other := setup(t)
		if elsewhere, err := other.src.System(t.Context()); err != nil || elsewhere == full {
			t.Error(elsewhere, err)
		}
	})
	// As an ordinary role that may only read.
	as := func(t *testing.T, prepare string) (string, string) {
		t.Helper()
		conn, err := w.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_, err := conn.Exec(context.WithoutCancel(t.Context()), `RESET ROLE; DROP ROLE lockstep_source_test`)
			if err != nil {
				t.Error(err)
			}
			conn.Release()
		}()
		if _, err := conn.Exec(t.Context(), `CREATE ROLE lockstep_source_test; `+prepare+`; SET ROLE lockstep_source_test`); err != nil {
			t.Fatal(err)
		}
		return identify(t, conn.Conn())
	}
	t.Run("is readable by an ordinary role", func(t *testing.T) {
		if sql, identity := as(t, `SELECT 1`); sql != source.FullSystemSQL || identity != full {
			t.Errorf("%s by %s", identity, sql)
		}
	})
	t.Run("is less where the control file may not be read", func(t *testing.T) {
		if sql, identity := as(t, `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`); sql == source.FullSystemSQL || identity == full || identity == "" {
			t.Errorf("%s by %s", identity, sql)
		}
	})
}

func identify(t *testing.T, conn *pgx.Conn) (sql, identity string) {
	t.Helper()
	sql, err := source.SystemSQL(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	if identity, err = source.System(t.Context(), conn, sql); err != nil {
		t.Fatal(err)
	}
	return sql, identity
}
