package projection

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Contents reads, within a transaction, the stored contents of the scope's rows
// of the raw keys, retired ones included, as JSON text in no particular order.
func (p *Projection) Contents(ctx context.Context, tx pgx.Tx, at Scope, keys []string) ([][]byte, error) {
	t := p.table
	rows, err := tx.Query(ctx, fmt.Sprintf(`SELECT (%[2]s)::text FROM %[1]s AS t
		WHERE t.%[3]s = $1 AND t.%[4]s = ANY($2::%[5]s[]) AND (%[2]s) IS NOT NULL`,
		t.Ident, t.Content, t.Tenant, t.Key, t.KeyType()), at.TenantID, t.KeyArgs(keys))
	if err != nil {
		return nil, fmt.Errorf("read %d contents: %w", len(keys), err)
	}
	contents, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (text []byte, err error) {
		err = row.Scan(&text)
		return text, err
	})
	if err != nil {
		return nil, fmt.Errorf("read %d contents: %w", len(keys), err)
	}
	return contents, nil
}
