package source

import (
	"context"

	"lockstep.dev/pkg/pg"
)

// HeapPages is the number of pages of the table, where the rows of the range,
// of which there are rows, are so many of those in it that reading the whole
// table as it lies is the cheapest way to them; 0 elsewhere, and where no
// ANALYZE has seen the table yet. Whatever the snapshot sees lies in those pages.
func (p *Snapshot) HeapPages(ctx context.Context, rows int64) (pages int64, err error) {
	h, err := pg.ReadHeap(ctx, p.tx, p.source.table.Ident)
	if err != nil || !h.Cheapest(rows) {
		return 0, err
	}
	return h.Pages, nil
}

// ReadPages is Read for the rows of the range that lie in the pages [from, to)
// of the table. Rows come in the order in which they lie.
func (r *Reader) ReadPages(ctx context.Context, from, to int64, fn func(*Row) error) error {
	if err := r.use(ctx, pg.HeapSettings); err != nil {
		return err
	}
	return r.stream(ctx, r.source.sql.pages, []any{r.rng.TenantID, r.rng.CollectionID, pg.HeapPlace(from), pg.HeapPlace(to)}, fn)
}
