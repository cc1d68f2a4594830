package frozen

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lockstep.dev/pkg/evidence"
)

// Entry is one line of a page index.
type Entry struct {
	LastKey string // raw
	Root    evidence.Node
	Rows    int
}

// Index reads at most limit entries from page from on.
func (s *Store) Index(ctx context.Context, set Set, from, limit int) ([]Entry, error) {
	rows, err := s.pool.Query(ctx, `SELECT last_key, root, row_count FROM lockstep.manifest_page
		WHERE tenant_id = $1 AND manifest_id = $2 AND page >= $3 ORDER BY page LIMIT $4`, set.TenantID, set.ID, from, limit)
	if err != nil {
		return nil, fmt.Errorf("read the page index of manifest %s: %w", set.ID, err)
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Entry, error) {
		var e Entry
		var key, root pgtype.DriverBytes // valid until the next row, and copied here
		if err := row.Scan(&key, &root, &e.Rows); err != nil {
			return e, err
		}
		if len(root) != len(e.Root) {
			return e, fmt.Errorf("a page root has %d bytes", len(root))
		}
		e.LastKey, e.Root = string(key), evidence.Node(root)
		return e, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the page index of manifest %s: %w", set.ID, err)
	}
	return entries, nil
}

// Pages calls fn for each of the numbered pages that exists, in ascending
// order, until fn says enough. fn must not keep the body.
func (s *Store) Pages(ctx context.Context, set Set, numbers []int, fn func(page int, body []byte) (more bool, err error)) error {
	rows, err := s.pool.Query(ctx, `SELECT page, body FROM lockstep.manifest_page
		WHERE tenant_id = $1 AND manifest_id = $2 AND page = ANY($3::int[]) ORDER BY page`, set.TenantID, set.ID, numbers)
	return each(rows, err, set, fn)
}

// PagesFrom calls fn for the pages, at most limit, that begin with the one
// that holds or follows the raw key, as Pages does.
func (s *Store) PagesFrom(ctx context.Context, set Set, key string, limit int, fn func(page int, body []byte) (more bool, err error)) error {
	rows, err := s.pool.Query(ctx, `SELECT page, body FROM lockstep.manifest_page
		WHERE tenant_id = $1 AND manifest_id = $2 AND last_key >= $3 ORDER BY last_key LIMIT $4`, set.TenantID, set.ID, []byte(key), limit)
	return each(rows, err, set, fn)
}

func each(rows pgx.Rows, err error, set Set, fn func(page int, body []byte) (more bool, err error)) error {
	if err != nil {
		return fmt.Errorf("read pages of manifest %s: %w", set.ID, err)
	}
	defer rows.Close()
	for rows.Next() {
		var page int
		var body pgtype.DriverBytes
		if err := rows.Scan(&page, &body); err != nil {
			return fmt.Errorf("read pages of manifest %s: %w", set.ID, err)
		}
		if more, err := fn(page, body); err != nil || !more {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read pages of manifest %s: %w", set.ID, err)
	}
	return nil
}
