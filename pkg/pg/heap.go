package pg

import (
	"context"
	"fmt"
	"math"

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
	// Pages that it has; 0 where its rows can't be read by their places: it is a view
	// or partitioned, tables inherit from it, it is stored in another way than in a
	// heap, or the role may read some of its columns only.
	Pages int64
	// Rows that the last ANALYZE saw in it; below 0 where there was none.
	Rows float64
	// File changes where all rows are replaced at once: by a TRUNCATE, or by what
	// writes the table anew.
	File uint32
}

// Queryer is a pool, a connection or a transaction.
type Queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ReadHeap looks at the table of a quoted name.
func ReadHeap(ctx context.Context, db Queryer, ident string) (h Heap, err error) {
	err = db.QueryRow(ctx, `SELECT CASE WHEN c.relkind IN ('r', 'm') AND a.amname = 'heap' AND NOT c.relhassubclass AND has_table_privilege(c.oid, 'SELECT')
			THEN pg_relation_size(c.oid) / current_setting('block_size')::int8 ELSE 0 END, c.reltuples::float8, coalesce(pg_relation_filenode(c.oid), 0)
		FROM pg_class AS c LEFT JOIN pg_am AS a ON a.oid = c.relam WHERE c.oid = $1::text::regclass`, ident).Scan(&h.Pages, &h.Rows, &h.File)
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

// HeapPlace is before the first row of a page, or of the largest number that one
// may have.
func HeapPlace(page int64) pgtype.TID {
	const largest = math.MaxUint32 - 1
	return pgtype.TID{BlockNumber: uint32(min(page, largest)), Valid: true} //nolint:gosec // it fits
}
