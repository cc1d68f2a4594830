package projection

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lockstep.dev/pkg/canon"
)

// Rows reads the tenant's rows of the raw keys as they are now, of any
// collection, retired ones included. content asks for LocalRow.Content.
func (p *Projection) Rows(ctx context.Context, tenant int64, keys []string, content bool) (map[string]LocalRow, error) {
	return p.rows(ctx, p.pool, tenant, keys, content)
}

// RowsIn is Rows in a transaction, which needs no second connection.
func (p *Projection) RowsIn(ctx context.Context, tx pgx.Tx, tenant int64, keys []string) (map[string]LocalRow, error) {
	return p.rows(ctx, tx, tenant, keys, false)
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func (p *Projection) rows(ctx context.Context, db querier, tenant int64, keys []string, content bool) (map[string]LocalRow, error) {
	t := p.table
	hold, text := "false", "NULL"
	if t.RetireHold != "" {
		hold = "COALESCE(t." + t.RetireHold + ", false)"
	}
	if content {
		text = "(" + p.content() + ")"
	}
	rows, err := db.Query(ctx, fmt.Sprintf(`SELECT t.%[2]s, COALESCE(t.%[3]s, 0)::int8, t.%[4]s, COALESCE(t.%[5]s, false),
			%[6]s, COALESCE(t.%[7]s, 0)::int8, t.%[8]s::timestamptz, t.%[9]s IS NOT NULL, %[10]s, %[11]s::text
		FROM %[1]s AS t WHERE t.%[12]s = $1 AND t.%[2]s = ANY($2::%[13]s[])`,
		t.Ident, t.Key, t.Revision, t.ContentHash, t.Deleted, t.CollectionText(), t.ProjectionVersion,
		t.CreateTime, t.Retired, hold, text, t.Tenant, t.KeyType()), tenant, t.KeyArgs(keys))
	if err != nil {
		return nil, fmt.Errorf("read %d local rows: %w", len(keys), err)
	}
	out := make(map[string]LocalRow, len(keys))
	var (
		hasher  canon.Hasher
		row     LocalRow
		hash    []byte
		created pgtype.Timestamptz
		json    []byte
	)
	scans := []any{nil, &row.Revision, &hash, &row.Deleted, &row.CollectionID, &row.Version, &created, &row.Retired, &row.Hold, &json}
	_, err = pgx.ForEachRow(rows, scans, func() (err error) {
		if row.Key, err = t.DecodeKey(rows.RawValues()[0]); err != nil {
			return err
		}
		row.Hash, row.Created, row.Content = storedHash(hash), created.Time.UTC(), canon.Hash{}
		if content {
			row.Content = contentHash(&hasher, json)
		}
		out[row.Key] = row
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %d local rows: %w", len(keys), err)
	}
	return out, nil
}

// Holders finds, for each raw key, a row outside the scope that keeps it from
// being inserted: a live one of another tenant, or any of the tenant's other collections.
func (p *Projection) Holders(ctx context.Context, at Scope, keys []string) (map[string]Holder, error) {
	t := p.table
	rows, err := p.pool.Query(ctx, fmt.Sprintf(`SELECT DISTINCT ON (t.%[2]s) t.%[2]s, t.%[3]s::int8, %[4]s, t.%[5]s IS NOT NULL
		FROM %[1]s AS t WHERE t.%[2]s = ANY($3::%[6]s[]) AND
			((t.%[3]s <> $1 AND t.%[5]s IS NULL) OR (t.%[3]s = $1 AND t.%[7]s IS DISTINCT FROM $2::%[8]s))
		ORDER BY t.%[2]s, t.%[3]s = $1 DESC`,
		t.Ident, t.Key, t.Tenant, t.CollectionText(), t.Retired, t.KeyType(), t.Collection, t.CollectionType()),
		at.TenantID, at.CollectionID, t.KeyArgs(keys))
	if err != nil {
		return nil, fmt.Errorf("look for other holders of %d keys: %w", len(keys), err)
	}
	out := map[string]Holder{}
	var h Holder
	_, err = pgx.ForEachRow(rows, []any{nil, &h.TenantID, &h.CollectionID, &h.Retired}, func() (err error) {
		if h.Key, err = t.DecodeKey(rows.RawValues()[0]); err != nil {
			return err
		}
		out[h.Key] = h
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for other holders of %d keys: %w", len(keys), err)
	}
	return out, nil
}
