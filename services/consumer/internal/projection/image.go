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

// blockRows are decoded before they are handed on: few enough that hashing them
// overlaps with the server's reading of the next ones, and that their keys, which
// share one piece of memory, keep little alive where one of them is kept.
const blockRows = 256

// Image appends the next live rows of the chunk to dst, in key order. Fewer
// than Limit new rows: the range has been read to its end. A key in a foreign
// spelling is protocol.ErrKey. A row whose hash is missing, or whose content has
// none, comes with the all-zero hash.
func (p *Projection) Image(ctx context.Context, c Chunk, dst []evidence.Row) ([]evidence.Row, error) {
	first := len(dst)
	_, err := p.statement(ctx, c, func(rows []evidence.Row) error {
		dst = append(dst, rows...)
		return nil
	})
	if err != nil {
		return dst[:first], err
	}
	return dst, nil
}

// Scan hands on every live row of the chunk's range, in key order, Limit rows a
// statement, while the server reads the next ones. The slice is take's for the
// call only; the rows' keys may be kept. An error of take ends it.
func (p *Projection) Scan(ctx context.Context, c Chunk, take func([]evidence.Row) error) error {
	for {
		var last string
		n, err := p.statement(ctx, c, func(rows []evidence.Row) error {
			last = rows[len(rows)-1].Key
			return take(rows)
		})
		if err != nil || n < c.Limit {
			return err
		}
		c.After = &last
	}
}

// statement runs one bounded read of the image, and says how many rows it gave.
func (p *Projection) statement(ctx context.Context, c Chunk, take func([]evidence.Row) error) (n int, err error) {
	sql, args := p.imageSQL(c)
	return p.read(ctx, p.images, sql, args, &block{rows: make([]evidence.Row, 0, min(blockRows, c.Limit)), take: take})
}

// read hands the rows of a query on by way of a block, and says how many came.
func (p *Projection) read(ctx context.Context, db querier, sql string, args []any, b *block) (n int, err error) {
	rows, err := db.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.BinaryFormatCode}}, args...)...)
	if err != nil {
		return 0, fmt.Errorf("read the image: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := b.add(p, rows.RawValues()); err != nil {
			return 0, fmt.Errorf("read row %d of the image: %w", n, err)
		}
		n++
		if len(b.rows) == cap(b.rows) {
			if err := b.hand(); err != nil {
				return 0, err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return 0, fmt.Errorf("read the image: %w", err)
	}
	return n, b.hand()
}

// block collects decoded rows. Their keys are cut from one string in the end.
type block struct {
	rows   []evidence.Row
	keys   []byte
	ends   []int // of each row's key in keys
	hasher canon.Hasher
	// confirm makes the hash of a row all zeros where its content does not have the
	// one that is stored with it.
	confirm bool
	take    func([]evidence.Row) error
}

// add decodes a row from its wire form: no value is boxed.
func (b *block) add(p *Projection, raw [][]byte) (err error) {
	var row evidence.Row
	if err := imageRow(&row, raw, &b.hasher); err != nil {
		return err
	}
	if b.confirm && row.Hash != storedHash(raw[2]) {
		row.Hash = canon.Hash{}
	}
	if b.keys, err = p.table.AppendKey(b.keys, raw[0]); err != nil {
		return err
	}
	b.ends = append(b.ends, len(b.keys))
	b.rows = append(b.rows, row)
	return nil
}

// hand hands the rows on, if there are any.
func (b *block) hand() error {
	if len(b.rows) == 0 {
		return nil
	}
	keys, from := string(b.keys), 0
	for i, end := range b.ends {
		b.rows[i].Key = keys[from:end]
		from = end
	}
	err := b.take(b.rows)
	b.rows, b.keys, b.ends = b.rows[:0], b.keys[:0], b.ends[:0]
	return err
}

// streamRows are held by a stream at once; their contents are not, if they are read at all.
const streamRows = 4096

// Stream gives every live row of the chunk's range. It ends after the first
// error. No statement is open while its taker has a row: that one may wait for
// the center, or for effects.
func (p *Projection) Stream(ctx context.Context, c Chunk) iter.Seq2[evidence.Row, error] {
	c.Limit = min(c.Limit, streamRows)
	return func(yield func(evidence.Row, error) bool) {
		var rows []evidence.Row
		for next := c; ; {
			var err error
			if rows, err = p.Image(ctx, next, rows[:0]); err != nil {
				yield(evidence.Row{}, err)
				return
			}
			for i := range rows {
				if !yield(rows[i], nil) {
					return
				}
			}
			if len(rows) < next.Limit {
				return
			}
			last := rows[len(rows)-1].Key
			next.After = &last
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
	sql.WriteString(p.liveSQL(c.Content))
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

// liveSQL selects the live rows of a tenant ($1) and collection ($2).
func (p *Projection) liveSQL(content bool) string {
	t := p.table
	text := ""
	if content {
		text = ", (" + p.content() + ")::text"
	}
	return fmt.Sprintf("SELECT t.%s, t.%s::int8, t.%s, t.%s%s FROM %s AS t WHERE t.%s = $1 AND t.%s = $2::%s AND t.%s IS NULL",
		t.Key, t.Revision, t.ContentHash, t.Deleted, text, t.Ident, t.Tenant, t.Collection, t.CollectionType(), t.Retired)
}

// imageRow decodes what a row has beside its key.
func imageRow(row *evidence.Row, raw [][]byte, hasher *canon.Hasher) error {
	if revision := raw[1]; revision != nil {
		if len(revision) != 8 {
			return errWire
		}
		row.Revision = int64(binary.BigEndian.Uint64(revision)) //nolint:gosec // two's complement is the wire format
	}
	row.Hash = storedHash(raw[2])
	if deleted := raw[3]; deleted != nil {
		if len(deleted) != 1 || deleted[0] > 1 {
			return errWire
		}
		row.Deleted = deleted[0] == 1
	}
	if len(raw) > 4 {
		row.Hash = contentHash(hasher, raw[4])
	}
	return nil
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
