package source

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap/zaptest"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/pgtest"
)

// A collection whose keys are in no order of the heap is read in the index's
// order, without a sort that would keep all of it first.
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
	plan := func(settings ...string) (text string) {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			for _, set := range settings {
				if _, err := tx.Exec(t.Context(), set); err != nil {
					return err
				}
			}
			rows, err := tx.Query(t.Context(), "EXPLAIN "+s.sql.read, int64(7), "f")
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			text = strings.Join(lines, "\n")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	// Whether the planner sorts by itself depends on its version.
	t.Logf("by itself:\n%s", plan())
	if text := plan(readSettings...); strings.Contains(text, "Sort") {
		t.Errorf("the read sorts:\n%s", text)
	}
}
