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

// Remember keeps the identities where none are known: at the first start, and
// after an operator confirmed a change by forgetting the old ones.
func (s *Store) Remember(ctx context.Context, sourceSystem string) error {
	now, err := s.system(ctx)
	if err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, `UPDATE lockstep.center SET source_system = coalesce(source_system, $1), store_system = coalesce(store_system, $2)
		WHERE source_system IS NULL OR store_system IS NULL`, sourceSystem, now); err != nil {
		return fmt.Errorf("remember the identities of the databases: %w", err)
	}
	return nil
}

// Known reads the identities.
func (s *Store) Known(ctx context.Context) (Systems, error) {
	now, err := s.system(ctx)
	if err != nil {
		return Systems{}, err
	}
	known := Systems{StoreNow: now}
	if err := s.pool.QueryRow(ctx, `SELECT coalesce(source_system, ''), coalesce(store_system, '') FROM lockstep.center`).
		Scan(&known.Source, &known.Store); err != nil {
		return Systems{}, fmt.Errorf("read the identities of the databases: %w", err)
	}
	return known, nil
}

func (s *Store) system(ctx context.Context) (string, error) {
	sql, err := source.SystemSQL(ctx, s.pool)
	if err != nil {
		return "", fmt.Errorf("read the identity of the store: %w", err)
	}
	return source.System(ctx, s.pool, sql)
}
