package store

import (
	"context"
	"fmt"

	"lockstep.dev/pkg/dataset"
)

// Outbox is what there is to know of a mapped outbox.
type Outbox struct {
	Readable, Writable bool
	// Indexed: an index gives the rows in the order in which they are taken.
	Indexed bool
	// Foreign: it has rows of transactions that this cluster has not come to yet.
	Foreign bool
}

// Outbox looks at a mapped outbox.
func (p Pool) Outbox(ctx context.Context, t *dataset.Table) (o Outbox, err error) {
	c, mapped := t.Changes, t.Config.Outbox
	err = p.QueryRow(ctx, `SELECT has_table_privilege($1, 'SELECT'), has_table_privilege($1, 'INSERT, UPDATE, DELETE'),
		EXISTS (SELECT FROM pg_index i WHERE i.indrelid = to_regclass($1) AND i.indisvalid AND i.indpred IS NULL
			AND pg_get_indexdef(i.indexrelid, 1, true) = quote_ident($2) AND pg_get_indexdef(i.indexrelid, 2, true) = quote_ident($3))`,
		c.Ident, mapped.XID, mapped.ID).Scan(&o.Readable, &o.Writable, &o.Indexed)
	if err != nil || !o.Readable {
		return o, wrapOutbox(err, c)
	}
	err = p.QueryRow(ctx, fmt.Sprintf(`SELECT EXISTS (SELECT FROM %s AS o WHERE %s >= pg_snapshot_xmax(pg_current_snapshot()))`, c.Ident, c.XID)).Scan(&o.Foreign)
	return o, wrapOutbox(err, c)
}

func wrapOutbox(err error, c *dataset.Changes) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("look at %s: %w", c.Name, err)
}
