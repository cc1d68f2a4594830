package projection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/fault"
)

// Apply is ordinary delivery's write of one row: what a repair writes, under the
// same condition, without a proof. It says whether the row was still as expected.
func (p *Projection) Apply(ctx context.Context, tx pgx.Tx, at Scope, item Item) (bool, error) {
	item.ProofID = ""
	written, err := p.Repair(ctx, tx, at, []Item{item})
	if err != nil {
		return false, fmt.Errorf("apply a delivery: %w", err)
	}
	return len(written) == 1, nil
}

// RetiredRow is a row that was retired.
type RetiredRow struct {
	Key       string // raw
	Revision  int64
	Hash      canon.Hash
	Deleted   bool
	RetiredAt time.Time
	ProofID   string
}

// RetiredRows lists the retired rows of a collection in key order behind a raw
// key; nil is the start.
func (p *Projection) RetiredRows(ctx context.Context, at Scope, after *string, limit int) ([]RetiredRow, error) {
	t := p.table
	proof, behind, args := "''", "", []any{at.TenantID, at.CollectionID, limit}
	if t.ProofID != "" {
		proof = "COALESCE(t." + t.ProofID + ", '')"
	}
	if after != nil {
		behind = fmt.Sprintf(" AND %s > $4::%s", t.KeyOrder, t.KeyType())
		args = append(args, t.KeyArg(*after))
	}
	rows, err := p.pool.Query(ctx, fmt.Sprintf(`SELECT t.%[2]s, COALESCE(t.%[3]s, 0)::int8, t.%[4]s, COALESCE(t.%[5]s, false), t.%[6]s, %[7]s
		FROM %[1]s AS t WHERE t.%[8]s = $1 AND t.%[9]s = $2::text::%[10]s AND t.%[6]s IS NOT NULL%[11]s ORDER BY %[12]s LIMIT $3`,
		t.Ident, t.Key, t.Revision, t.ContentHash, t.Deleted, t.Retired, proof, t.Tenant, t.Collection, t.CollectionType(), behind, t.KeyOrder), args...)
	if err != nil {
		return nil, fmt.Errorf("list retired rows: %w", err)
	}
	var out []RetiredRow
	var row RetiredRow
	var hash []byte
	_, err = pgx.ForEachRow(rows, []any{nil, &row.Revision, &hash, &row.Deleted, &row.RetiredAt, &row.ProofID}, func() (err error) {
		if row.Key, err = t.DecodeKey(rows.RawValues()[0]); err != nil {
			return err
		}
		row.Hash = storedHash(hash)
		out = append(out, row)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list retired rows: %w", err)
	}
	return out, nil
}

// Shown is a row with what only an operator sees of it.
type Shown struct {
	LocalRow
	// Text is the stored content as JSON text, nil for none.
	Text           []byte
	RetiredAt      time.Time // zero for a live row
	ConflictDetail string
}

// Show reads the tenant's row of a raw key, in whatever collection it is; nil
// where there is none.
func (p *Projection) Show(ctx context.Context, tenant int64, key string) (*Shown, error) {
	rows, err := p.Rows(ctx, tenant, []string{key}, false)
	if err != nil {
		return nil, err
	}
	row, ok := rows[key]
	if !ok {
		return nil, nil //nolint:nilnil // having none is an answer
	}
	t, detail := p.table, "''"
	if t.ConflictDetail != "" {
		detail = "COALESCE(t." + t.ConflictDetail + ", '')"
	}
	out := &Shown{LocalRow: row}
	var retired pgtype.Timestamptz
	// Version pins the row that was read first.
	err = p.pool.QueryRow(ctx, fmt.Sprintf(`SELECT (%s)::text, t.%s::timestamptz, %s FROM %s AS t
		WHERE t.%s = $1 AND t.%s = $2::%s AND COALESCE(t.%s, 0) = $3`,
		p.content(), t.Retired, detail, t.Ident, t.Tenant, t.Key, t.KeyType(), t.ProjectionVersion),
		tenant, t.KeyArg(key), row.Version).Scan(&out.Text, &retired, &out.ConflictDetail)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fault.New(fault.Unavailable, "the row changed while it was read; ask again")
	}
	if err != nil {
		return nil, fmt.Errorf("show a row: %w", err)
	}
	out.RetiredAt = retired.Time
	return out, nil
}
