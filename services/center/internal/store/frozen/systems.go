package frozen

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
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

// What Confirm does to the center epoch, but for a number to raise it to.
const (
	KeepEpoch int64 = 0
	NextEpoch int64 = -1
)

// ErrNotAbove: the center epoch only ever rises.
var ErrNotAbove = errors.New("the center epoch is not below the one asked for")

// Confirm is an operator's word that the databases are the right ones though
// they changed: what is remembered is dropped, and the next look remembers
// what it finds. A raised epoch is for a restore from a backup: consumers then
// accept revisions below those they have seen. It is given as a number where
// the backup does not know the newest epoch that consumers have seen.
func (s *Store) Confirm(ctx context.Context, operator, reason string, epoch int64) error {
	return pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var now int64
		err := tx.QueryRow(ctx, `UPDATE lockstep.center SET source_system = NULL, store_system = NULL,
			center_epoch = CASE $1::bigint WHEN 0 THEN center_epoch WHEN -1 THEN center_epoch + 1 ELSE $1 END
			WHERE $1 <= 0 OR $1 > center_epoch RETURNING center_epoch`, epoch).Scan(&now)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("confirm the databases: %w: %d", ErrNotAbove, epoch)
		}
		if err != nil {
			return fmt.Errorf("confirm the databases: %w", err)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO lockstep.audit (actor, action, object, decision, reason) VALUES ($1, 'databases.confirm', 'center', $2, $3)`,
			operator, fmt.Sprintf("CONFIRMED under center epoch %d", now), reason); err != nil {
			return fmt.Errorf("audit the confirmation of the databases: %w", err)
		}
		return nil
	})
}
