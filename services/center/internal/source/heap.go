package source

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

// heapSettings are those of reading pages of the table: no other way to the rows
// is open, so that the plan is the one that was meant.
var heapSettings = []string{
	"SET LOCAL enable_indexscan = off", "SET LOCAL enable_bitmapscan = off", "SET LOCAL enable_seqscan = off",
	"SET LOCAL enable_tidscan = on", "SET LOCAL max_parallel_workers_per_gather = 0",
}

// leastShare of the table's rows is what a range needs to have for a reading of
// all of them to be worth it: passing a row costs a small part of what taking it does.
const leastShare = 4 // 1/4

// heapStatements read the table as it lies.
type heapStatements struct{ shape, slice, last string }

func buildHeap(in string, read func(where string) string) heapStatements {
	return heapStatements{
		// What is no table of its own, such as a view, has no pages to read; a table of
		// another kind of storage may not find rows by their places.
		shape: `SELECT CASE WHEN c.relkind IN ('r', 'm') AND a.amname = 'heap' THEN pg_relation_size(c.oid) / current_setting('block_size')::int8 ELSE 0 END, c.reltuples::float8
			FROM pg_class AS c LEFT JOIN pg_am AS a ON a.oid = c.relam WHERE c.oid = $1::text::regclass`,
		slice: read(in + " AND t.ctid >= $3 AND t.ctid < $4"),
		last:  read(in + " AND t.ctid >= $3"),
	}
}

// HeapPages is the number of pages of the table, where the rows of the range,
// of which there are rows, are so many of those in it that reading the whole
// table as it lies is the cheapest way to them; 0 elsewhere, and where no
// ANALYZE has seen the table yet.
func (p *Snapshot) HeapPages(ctx context.Context, rows int64) (pages int64, err error) {
	var all float64 // as the last ANALYZE saw it; below 0 where there was none
	if err := p.tx.QueryRow(ctx, p.source.sql.heap.shape, p.source.table.Ident).Scan(&pages, &all); err != nil {
		return 0, fmt.Errorf("look at the size of the source: %w", err)
	}
	if all < 0 || rows < pages || float64(rows)*leastShare < all {
		return 0, nil
	}
	return pages, nil
}

// ReadPages is Read for the rows of the range that lie in the pages [from, to)
// of the table; to 0 is its end. Rows come in the order in which they lie.
func (r *Reader) ReadPages(ctx context.Context, from, to int64, fn func(*Row) error) error {
	if err := r.use(ctx, heapSettings); err != nil {
		return err
	}
	sql, args := r.source.sql.heap.last, []any{r.rng.TenantID, r.rng.CollectionID, place(from)}
	if to != 0 {
		sql, args = r.source.sql.heap.slice, append(args, place(to))
	}
	return r.stream(ctx, sql, args, fn)
}

// place is before the first row of a page.
func place(page int64) pgtype.TID {
	return pgtype.TID{BlockNumber: uint32(page), Valid: true} //nolint:gosec // a table has fewer pages than 2^32
}
