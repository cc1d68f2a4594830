package source

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Current is what the primary holds under some keys right now.
type Current struct {
	// Rows of the range asked for, by key.
	Rows map[string]*Row
	// Elsewhere has the keys that live under another tenant or collection.
	Elsewhere map[string]bool
	// Twice has the keys that the range holds more than once: the host's table
	// does not keep them apart, so nothing can be said of them.
	Twice map[string]bool
	// LeftOver has the keys whose content did not fit into the bytes allowed.
	LeftOver map[string]bool
	// System is the identity of the database that answered.
	System string
}

// Current reads the rows that hold keys now, of any tenant or collection, in
// one statement, from the primary only. Contents are kept up to maxBytes; the
// first one is kept whatever its size.
func (s *Source) Current(ctx context.Context, r Range, keys []string, maxBytes int) (*Current, error) {
	if _, err := s.rate.Take(ctx, len(keys)); err != nil {
		return nil, err
	}
	out := &Current{Rows: map[string]*Row{}, Elsewhere: map[string]bool{}, Twice: map[string]bool{}, LeftOver: map[string]bool{}}
	// Both statements travel together and are one implicit transaction on one
	// connection: the identity is that of the server that gave the rows.
	batch := &pgx.Batch{}
	batch.Queue(s.sql.system)
	batch.Queue(s.sql.current, s.table.KeyArgs(keys), r.TenantID, r.CollectionID)
	results := s.pool.SendBatch(ctx, batch)
	defer func() { _ = results.Close() }() // its errors came with the results
	var standby bool
	if err := results.QueryRow().Scan(&standby, &out.System); err != nil {
		return nil, fmt.Errorf("read the identity of the source: %w", err)
	}
	if standby {
		return nil, errStandby()
	}
	rows, err := results.Query()
	if err != nil {
		return nil, fmt.Errorf("read current rows: %w", err)
	}
	defer rows.Close()
	kept := 0
	for rows.Next() {
		if kept, err = s.keep(out, rows.RawValues(), kept, maxBytes); err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read current rows: %w", err)
	}
	return out, nil
}

// keep sorts one row into the answer and returns the bytes of content kept so far.
func (s *Source) keep(out *Current, raw [][]byte, kept, maxBytes int) (int, error) {
	const mineColumn, content = contentColumn, contentColumn + 1
	var row Row
	if err := s.scanRow(&row, raw, raw[content]); err != nil {
		return kept, err
	}
	if raw[mineColumn][0] == 0 {
		out.Elsewhere[row.Key] = true
		return kept, nil
	}
	if out.Rows[row.Key] != nil || out.LeftOver[row.Key] {
		out.Twice[row.Key] = true
		return kept, nil
	}
	if size := kept + len(row.Content); kept > 0 && size > maxBytes {
		out.LeftOver[row.Key] = true
		return kept, nil
	}
	row.Content = slices.Clone(row.Content)
	out.Rows[row.Key] = &row
	return kept + len(row.Content), nil
}

// Missing says that no row of any tenant or collection holds the key.
func (c *Current) Missing(key string) bool {
	return c.Rows[key] == nil && !c.Elsewhere[key] && !c.LeftOver[key]
}
