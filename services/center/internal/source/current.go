package source

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/dataset"
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

// readOnce is the longest content that is carried from the look at its size to
// the answer; a longer one is read again if it fits, and never sorted or spilled.
const readOnce = 8 << 10

// buildCurrent makes the statement that reads the rows under the keys $1. Of
// those of the range ($2, $3) the contents come, the smallest ones first, while
// they are $4 bytes at most together: a large one keeps no other back. The first
// one comes in any case.
func buildCurrent(t *dataset.Table, numbers string) string {
	in := fmt.Sprintf("t.%s = $2::int8 AND t.%s = $3::text::%s", t.Tenant, t.Collection, t.CollectionType())
	return fmt.Sprintf(`WITH held AS MATERIALIZED (
			SELECT key, revision, deleted, schema_version, sequence, mine,
				CASE WHEN octet_length(content) > %[1]d THEN 1 ELSE coalesce(octet_length(content), 0) END AS size,
				CASE WHEN octet_length(content) > %[1]d THEN '%[2]s' WHEN octet_length(content) <= %[3]d THEN content END AS short
			FROM (SELECT t.%[4]s, %[5]s, mine.is, CASE WHEN mine.is THEN (%[6]s)::text END
				FROM %[7]s AS t CROSS JOIN LATERAL (SELECT coalesce(%[8]s, false) AS is) AS mine
				WHERE t.%[4]s = ANY($1::%[9]s[]) OFFSET 0)
			AS r (key, revision, deleted, schema_version, sequence, mine, content)),
		summed AS (SELECT *, sum(size) OVER (ORDER BY size, key ROWS UNBOUNDED PRECEDING) AS so_far FROM held)
		SELECT key, revision, deleted, schema_version, sequence, mine, so_far <= $4::int8 OR so_far = size,
			CASE WHEN so_far > $4::int8 AND so_far > size THEN NULL WHEN short IS NOT NULL OR size = 0 THEN short
				ELSE (SELECT (%[6]s)::text FROM %[7]s AS t WHERE %[8]s AND t.%[4]s = summed.key LIMIT 1) END
		FROM summed`,
		canon.MaxBytes, tooLong, readOnce, t.Key, numbers, t.Content, t.Ident, in, t.KeyType())
}

// Current reads the rows that hold keys now, of any tenant or collection, in
// one statement, from the primary only. Contents are read, the smallest ones
// first and equal ones in key order, up to maxBytes together; the first one is
// read whatever its size. One longer than canon.MaxBytes comes as a text that is
// no JSON.
func (s *Source) Current(ctx context.Context, r Range, keys []string, maxBytes int) (*Current, error) {
	if _, err := s.rate.Take(ctx, len(keys)); err != nil {
		return nil, err
	}
	out := &Current{Rows: map[string]*Row{}, Elsewhere: map[string]bool{}, Twice: map[string]bool{}, LeftOver: map[string]bool{}}
	// Both statements travel together and are one implicit transaction on one
	// connection: the identity is that of the server that gave the rows.
	batch := &pgx.Batch{}
	batch.Queue(s.sql.system)
	batch.Queue(s.sql.current, s.table.KeyArgs(keys), r.TenantID, r.CollectionID, maxBytes)
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
	for rows.Next() {
		if err := s.keep(out, rows.RawValues()); err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read current rows: %w", err)
	}
	return out, nil
}

// keep sorts one row into the answer.
func (s *Source) keep(out *Current, raw [][]byte) error {
	const mineColumn, fitsColumn, content = contentColumn, contentColumn + 1, contentColumn + 2
	var row Row
	if err := s.scanRow(&row, raw, raw[content]); err != nil {
		return err
	}
	switch {
	case raw[mineColumn][0] == 0:
		out.Elsewhere[row.Key] = true
	case out.Rows[row.Key] != nil || out.LeftOver[row.Key]:
		out.Twice[row.Key] = true
	case raw[fitsColumn][0] == 0:
		out.LeftOver[row.Key] = true
	default:
		row.Content = slices.Clone(row.Content)
		out.Rows[row.Key] = &row
	}
	return nil
}

// Missing says that no row of any tenant or collection holds the key.
func (c *Current) Missing(key string) bool {
	return c.Rows[key] == nil && !c.Elsewhere[key] && !c.LeftOver[key]
}
