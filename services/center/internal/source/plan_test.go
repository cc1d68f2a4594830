package source

import (
	"crypto/md5"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap/zaptest"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
)

// A collection whose keys are in no order of the heap is parted along the
// index, and each part found by it, without a sort that would keep all rows first.
func TestReadDoesNotSort(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), pgtest.Center(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, sql := range []string{
		`INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values")
			SELECT 7, md5(n::text)::uuid, 'f', 1, n, 1, jsonb_build_object('text', repeat(md5(n::text), 10)) FROM generate_series(1, 20000) n`,
		`VACUUM (ANALYZE) answers.answer`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	table, err := dataset.Resolve(t.Context(), pool, dataset.Config{
		Name: "answers", Table: "answers.answer", KeyKind: "uuid",
		Columns: dataset.Columns{
			Key: "answer_id", Tenant: "tenant_id", Collection: "form_id", Revision: "revision", Deleted: "deleted",
			SchemaVersion: "version", Sequence: "seq_no", Content: "values",
		},
	}, dataset.Center)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), pool, table, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Begin(t.Context(), Range{TenantID: 7, CollectionID: "f"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	explain := func(sql string, args ...any) string {
		rows, err := p.tx.Query(t.Context(), "EXPLAIN "+sql, args...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	if text := explain(s.sql.ranges.firstStep, int64(7), "f", 999); strings.Contains(text, "Sort") {
		t.Errorf("a step sorts:\n%s", text)
	}
	// The order for hosts without an index that can be walked.
	if text := explain(s.sql.ranges.ordered, int64(7), "f"); strings.Contains(text, "Sort") {
		t.Errorf("the ordered read sorts:\n%s", text)
	}
	keys := make([]string, 500)
	for i := range keys {
		sum := md5.Sum([]byte(strconv.Itoa(i + 1)))
		keys[i] = string(sum[:])
	}
	text := explain(s.sql.current, table.KeyArgs(keys), int64(7), "f", 1<<20)
	if strings.Contains(text, "Seq Scan") || !strings.Contains(text, "Index Scan") {
		t.Errorf("current rows are not found by an index:\n%s", text)
	}
	plan, err := p.Plan(t.Context(), 30_000, 1000)
	if err != nil || plan.Ordered || len(plan.Parts) != 20 {
		t.Fatalf("%+v, %v", plan, err)
	}
	if err := set(t.Context(), p.tx, partSettings); err != nil {
		t.Fatal(err)
	}
	for _, part := range plan.Parts {
		sql, args := p.part(part, false)
		if text := explain(sql, args...); !strings.Contains(text, "Bitmap Index Scan") || strings.Contains(text, "Sort") {
			t.Errorf("a part is not found by its index:\n%s", text)
		}
	}
	if err := set(t.Context(), p.tx, pg.HeapSettings); err != nil {
		t.Fatal(err)
	}
	if text := explain(s.sql.pages, int64(7), "f", pg.HeapPlace(0), pg.HeapPlace(100)); !strings.Contains(text, "Tid Range Scan") {
		t.Errorf("pages are not read by their numbers:\n%s", text)
	}
}
