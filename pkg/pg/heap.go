package pg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// leastShare of a table's rows is what is wanted of it for reading all its pages
// to be worth it: passing a row costs a small part of what taking it does.
const leastShare = 4 // 1/4

// HeapSettings are those of reading a table by the places of its rows: no other
// way to them is open, so that the plan is the one that was meant.
var HeapSettings = []string{
	"SET LOCAL enable_indexscan = off", "SET LOCAL enable_bitmapscan = off", "SET LOCAL enable_seqscan = off",
	"SET LOCAL enable_tidscan = on", "SET LOCAL max_parallel_workers_per_gather = 0",
}

// Heap says how a table lies.
type Heap struct {
	// Pages that it has; 0 where it has none of its own, as a view, or is stored in
	// a way that may not find rows by their places.
	Pages int64
	// Rows that the last ANALYZE saw in it; below 0 where there was none.
	Rows float64
}

// Queryer is a pool, a connection or a transaction.
type Queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ReadHeap looks at the table of a quoted name.
func ReadHeap(ctx context.Context, db Queryer, ident string) (h Heap, err error) {
	err = db.QueryRow(ctx, `SELECT CASE WHEN c.relkind IN ('r', 'm') AND a.amname = 'heap' THEN pg_relation_size(c.oid) / current_setting('block_size')::int8 ELSE 0 END, c.reltuples::float8
		FROM pg_class AS c LEFT JOIN pg_am AS a ON a.oid = c.relam WHERE c.oid = $1::text::regclass`, ident).Scan(&h.Pages, &h.Rows)
	if err != nil {
		return Heap{}, fmt.Errorf("look at the size of %s: %w", ident, err)
	}
	return h, nil
}

// Cheapest says whether reading all pages is the cheapest way to so many of the
// table's rows. It never is where no ANALYZE has seen the table yet.
func (h Heap) Cheapest(rows int64) bool {
	return h.Pages > 0 && h.Rows >= 0 && rows >= h.Pages && float64(rows)*leastShare >= h.Rows
}

// HeapPlace is before the first row of a page.
func HeapPlace(page int64) pgtype.TID {
	return pgtype.TID{BlockNumber: uint32(page), Valid: true} //nolint:gosec // a table has fewer pages than 2^32
}
