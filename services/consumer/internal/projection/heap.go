package projection

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pg"
)

// Heap says how the mapped table lies.
func (p *Projection) Heap(ctx context.Context) (pg.Heap, error) {
	return pg.ReadHeap(ctx, p.images, p.table.Ident)
}

// HashPages hashes the contents of the scope's live rows in the pages [from, to)
// of the table, and hands the rows on as they lie, in no order of keys. A row whose
// content does not have the hash that is stored with it comes with the all-zero
// hash. The slice is take's for the call only. It is one statement, which sees the
// rows as they are when it begins: one that is written to meanwhile may come from
// two calls, or from none.
func (p *Projection) HashPages(ctx context.Context, at Scope, from, to int64, take func([]evidence.Row) error) error {
	sql := p.liveSQL(true) + " AND t.ctid >= $3 AND t.ctid < $4"
	args := []any{at.TenantID, at.CollectionID, pg.HeapPlace(from), pg.HeapPlace(to)}
	return pgx.BeginTxFunc(ctx, p.images, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, strings.Join(pg.HeapSettings, "; ")); err != nil {
			return fmt.Errorf("set up the read of the image: %w", err)
		}
		_, err := p.read(ctx, tx, sql, args, &block{rows: make([]evidence.Row, 0, blockRows), confirm: true, take: take})
		return err
	})
}
