package frozen

import (
	"context"
	"fmt"

	"lockstep.dev/services/center/internal/source"
)

// Systems are the identities of the center's databases: as remembered, and of
// its own one as it is now.
type Systems struct {
	Source, Store string // "" where nothing is remembered
	StoreNow      string
}

// SystemSQL is the statement that reads the identity of the center's database.
func (s *Store) SystemSQL(ctx context.Context) (string, error) {
	return source.SystemSQL(ctx, s.pool)
}

// Remember keeps the identities where none are known: at the first start, and
// after an operator confirmed a change.
func (s *Store) Remember(ctx context.Context, sourceSystem, storeSystem string) error {
	if _, err := s.pool.Exec(ctx, `UPDATE lockstep.center SET source_system = coalesce(source_system, $1), store_system = coalesce(store_system, $2)
		WHERE source_system IS NULL OR store_system IS NULL`, sourceSystem, storeSystem); err != nil {
		return fmt.Errorf("remember the identities of the databases: %w", err)
	}
	return nil
}

// Known reads the identities; systemSQL is SystemSQL's.
func (s *Store) Known(ctx context.Context, systemSQL string) (known Systems, err error) {
	if known.StoreNow, err = source.System(ctx, s.pool, systemSQL); err != nil {
		return Systems{}, fmt.Errorf("the center's own database: %w", err)
	}
	if err := s.pool.QueryRow(ctx, `SELECT coalesce(source_system, ''), coalesce(store_system, '') FROM lockstep.center`).
		Scan(&known.Source, &known.Store); err != nil {
		return Systems{}, fmt.Errorf("read the identities of the databases: %w", err)
	}
	return known, nil
}
