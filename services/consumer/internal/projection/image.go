package projection

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
)

// errWire says that the server answered in another format than was asked for,
// as it does where a pooler forces the simple protocol.
var errWire = errors.New("the image did not come in binary format")

// Image appends the next live rows of the chunk to dst, in key order. Fewer
// than Limit new rows: the range has been read to its end. A key in a foreign
// spelling is protocol.ErrKey. A row whose hash is missing, or whose content has
// none, comes with the all-zero hash.
func (p *Projection) Image(ctx context.Context, c Chunk, dst []evidence.Row) ([]evidence.Row, error) {
	sql, args := p.imageSQL(c)
	rows, err := p.pool.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.BinaryFormatCode}}, args...)...)
	if err != nil {
		return dst, fmt.Errorf("read the image: %w", err)
	}
	defer rows.Close()
	first := len(dst)
	var hasher canon.Hasher
	for rows.Next() {
		row, err := p.imageRow(rows.RawValues(), &hasher)
		if err != nil {
			return dst[:first], fmt.Errorf("read row %d of the image: %w", len(dst)-first, err)
		}
		dst = append(dst, row)
	}
	if err := rows.Err(); err != nil {
		return dst[:first], fmt.Errorf("read the image: %w", err)
	}
	return dst, nil
}

// Stream gives every live row of the chunk's range, Limit rows a statement. It
// ends after the first error.
func (p *Projection) Stream(ctx context.Context, c Chunk) iter.Seq2[evidence.Row, error] {
	return func(yield func(evidence.Row, error) bool) {
		var rows []evidence.Row
		for {
			var err error
			rows, err = p.Image(ctx, c, rows[:0])
			if err != nil {
				yield(evidence.Row{}, err)
				return
			}
			for i := range rows {
				if !yield(rows[i], nil) {
					return
				}
			}
			if len(rows) < c.Limit {
				return
			}
			last := rows[len(rows)-1].Key
			c.After = &last
		}
	}
}

// imageSQL selects nothing beside the covering index's columns, unless content
// is asked for. Bounds that are open are left out, so that no plan has to allow
// for them.
func (p *Projection) imageSQL(c Chunk) (string, []any) {
	t := p.table
	args := []any{c.TenantID, c.CollectionID, c.Limit}
	var sql strings.Builder
	fmt.Fprintf(&sql, "SELECT t.%s, t.%s::int8, t.%s, t.%s", t.Key, t.Revision, t.ContentHash, t.Deleted)
	if c.Content {
		fmt.Fprintf(&sql, ", (%s)::text", p.content())
	}
	fmt.Fprintf(&sql, " FROM %s AS t WHERE t.%s = $1 AND t.%s = $2::%s AND t.%s IS NULL",
		t.Ident, t.Tenant, t.Collection, t.CollectionType(), t.Retired)
	bound := func(op string, key *string) {
		if key != nil {
			args = append(args, t.KeyArg(*key))
			fmt.Fprintf(&sql, " AND %s %s $%d::%s", t.KeyOrder, op, len(args), t.KeyType())
		}
	}
	bound(">", c.After)
	bound("<=", c.UpTo)
	fmt.Fprintf(&sql, " ORDER BY %s LIMIT $3", t.KeyOrder)
	return sql.String(), args
}

// imageRow decodes a row from its wire form: no value is boxed, and only the key is copied.
func (p *Projection) imageRow(raw [][]byte, hasher *canon.Hasher) (evidence.Row, error) {
	key, err := p.table.DecodeKey(raw[0])
	if err != nil {
		return evidence.Row{}, err
	}
	row := evidence.Row{Key: key}
	if revision := raw[1]; revision != nil {
		if len(revision) != 8 {
			return evidence.Row{}, errWire
		}
		row.Revision = int64(binary.BigEndian.Uint64(revision)) //nolint:gosec // two's complement is the wire format
	}
	row.Hash = storedHash(raw[2])
	if deleted := raw[3]; deleted != nil {
		if len(deleted) != 1 || deleted[0] > 1 {
			return evidence.Row{}, errWire
		}
		row.Deleted = deleted[0] == 1
	}
	if len(raw) > 4 {
		row.Hash = contentHash(hasher, raw[4])
	}
	return row, nil
}

// storedHash reads a hash column; what is no hash equals none.
func storedHash(b []byte) canon.Hash {
	if len(b) != len(canon.Hash{}) {
		return canon.Hash{}
	}
	return canon.Hash(b)
}

// contentHash hashes content as text; nil is SQL NULL.
func contentHash(hasher *canon.Hasher, content []byte) canon.Hash {
	hash, err := hasher.Sum(content)
	if err != nil {
		// It differs from whatever the center has, and the repair replaces it.
		return canon.Hash{}
	}
	return hash
}

// content is the stored content as jsonb. Where it lies in several columns, an
// object of NULLs is also how SQL NULL is stored; the row's own hash tells which
// of the two it is.
func (p *Projection) content() string {
	t := p.table
	if len(t.Columns.ContentColumns) == 0 {
		return t.Content
	}
	null, err := canon.Sum(nil)
	if err != nil {
		return t.Content
	}
	columns := "t." + strings.Join(t.ContentTargets, ", t.")
	return fmt.Sprintf(`CASE WHEN num_nonnulls(%s) > 0 OR t.%s IS DISTINCT FROM '\x%s'::bytea THEN %s END`,
		columns, t.ContentHash, null, t.Content)
}
