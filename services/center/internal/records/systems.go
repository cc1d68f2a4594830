package records

import (
	"context"
	"fmt"
	"sync/atomic"

	"go.uber.org/zap"

	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store/frozen"
)

// Systems watches whether the databases are still the ones that the center
// knows. A restored or swapped database may lack records that exist, so no
// absence is signed until an operator has confirmed the change, which empties
// what is remembered.
type Systems struct {
	store  *frozen.Store
	sql    string // reads the identity of the center's own database
	log    *zap.Logger
	warned atomic.Bool
}

// OpenSystems remembers the identities of both databases at the very first
// start, and compares them at every later one.
func OpenSystems(ctx context.Context, store *frozen.Store, src *source.Source, log *zap.Logger) (*Systems, error) {
	sql, err := store.SystemSQL(ctx)
	if err != nil {
		return nil, fmt.Errorf("identity of the center's database: %w", err)
	}
	if sql != source.FullSystemSQL {
		log.Warn("the center's role may not execute pg_control_system(): a replaced store is noticed by its timeline and database only")
	}
	sourceSystem, err := src.System(ctx)
	if err != nil {
		return nil, fmt.Errorf("identity of the source: %w", err)
	}
	s := &Systems{store: store, sql: sql, log: log}
	if _, err := s.Suspected(ctx, sourceSystem); err != nil {
		return nil, err
	}
	return s, nil
}

// Suspected says whether the source that answered, or the center's own
// database, is not the one remembered.
func (s *Systems) Suspected(ctx context.Context, sourceSystem string) (bool, error) {
	known, err := s.store.Known(ctx, s.sql)
	if err != nil {
		return false, err
	}
	if known.Source == "" || known.Store == "" {
		if err := s.store.Remember(ctx, sourceSystem, known.StoreNow); err != nil {
			return false, err
		}
		if known, err = s.store.Known(ctx, s.sql); err != nil {
			return false, err
		}
	}
	sourceChanged, storeChanged := known.Source != sourceSystem, known.Store != known.StoreNow
	suspected := sourceChanged || storeChanged
	if suspected && !s.warned.Swap(true) {
		s.log.Error("ROLLBACK_SUSPECTED: a database is not the one known before; no absence is signed until an operator confirms it",
			zap.Bool("source_changed", sourceChanged), zap.Bool("store_changed", storeChanged))
	}
	if !suspected {
		s.warned.Store(false)
	}
	return suspected, nil
}
