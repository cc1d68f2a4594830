package source

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/protocol"
)

// Position is a place in the outbox: behind the row (XID, ID).
type Position struct {
	XID string // a transaction's number, decimal
	ID  int64
}

// Change names a record that changed.
type Change struct {
	TenantID     int64
	CollectionID string
	Key          string // raw
}

// Changes is what the outbox holds behind a position.
type Changes struct {
	List []Change
	// Unusable rows name no record: a value is missing, or a key is spelled in a
	// way that is not accepted. They are passed over.
	Unusable int
	// Next is the position behind the last row read.
	Next Position
	// More: there may be further rows.
	More bool
	// System is the identity of the database that answered.
	System string
}

// Outbox says how the mapped outbox is called, "" where there is none.
func (s *Source) Outbox() string {
	if s.table.Changes == nil {
		return ""
	}
	return s.table.Changes.Name
}

// Changes reads at most limit rows of the outbox behind a position, in the order
// in which they will never be overtaken: a row counts only once every
// transaction older than its own has ended, so a late commit is still ahead.
func (s *Source) Changes(ctx context.Context, after Position, limit int) (*Changes, error) {
	c := s.table.Changes
	batch := &pgx.Batch{}
	batch.Queue(s.sql.system)
	// One statement: the snapshot that decides what is in reach is the one that
	// the rows are read by.
	batch.Queue(fmt.Sprintf("SELECT %[1]s::text, %[2]s::int8, %[3]s, %[4]s, %[5]s FROM %[6]s AS o WHERE %[7]s ORDER BY %[1]s, %[2]s LIMIT $3",
		c.XID, c.ID, c.Tenant, c.Collection, c.Key, c.Ident, c.Order("$1", "$2")), after.XID, after.ID, limit)
	results := s.pool.SendBatch(ctx, batch)
	defer func() { _ = results.Close() }() // its errors came with the results
	out := &Changes{Next: after}
	var standby bool
	if err := results.QueryRow().Scan(&standby, &out.System); err != nil {
		return nil, fmt.Errorf("read the identity of the source: %w", err)
	}
	if standby {
		return nil, errStandby()
	}
	rows, err := results.Query()
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	var tenant *int64
	var collection, key *string
	read := 0
	_, err = pgx.ForEachRow(rows, []any{&out.Next.XID, &out.Next.ID, &tenant, &collection, &key}, func() error {
		read++
		if change, ok := changeOf(tenant, collection, key); ok {
			out.List = append(out.List, change)
		} else {
			out.Unusable++
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	out.More = read == limit
	return out, nil
}

func changeOf(tenant *int64, collection, key *string) (Change, bool) {
	if tenant == nil || collection == nil || key == nil || *collection == "" {
		return Change{}, false
	}
	raw, err := protocol.ParseKey(*key)
	return Change{TenantID: *tenant, CollectionID: *collection, Key: raw}, err == nil
}
