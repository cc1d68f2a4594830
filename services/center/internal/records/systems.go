package records

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store/frozen"
)

// Systems watches whether the databases are still the ones that the center
// knows. A restored or swapped database may lack records that exist, so
// absences are not signed until an operator has confirmed it.
type Systems struct {
	store *frozen.Store
	log   *zap.Logger
}

// OpenSystems remembers the identities of both databases at the very first
// start, and compares them at every later one.
func OpenSystems(ctx context.Context, store *frozen.Store, src *source.Source, log *zap.Logger) (*Systems, error) {
	s := &Systems{store: store, log: log}
	sourceSystem, err := src.System(ctx)
	if err != nil {
		return nil, fmt.Errorf("identity of the source: %w", err)
	}
	if err := store.Remember(ctx, sourceSystem); err != nil {
		return nil, err
	}
	if _, err := s.Suspected(ctx, sourceSystem); err != nil {
		return nil, err
	}
	return s, nil
}

// Suspected says whether the source that answered, or the center's own
// database, is not the one remembered.
func (s *Systems) Suspected(ctx context.Context, sourceSystem string) (bool, error) {
	known, err := s.store.Known(ctx)
	if err != nil {
		return false, err
	}
	if known.Source == sourceSystem && known.Store == known.StoreNow {
		return false, nil
	}
	s.log.Error("ROLLBACK_SUSPECTED: a database is not the one known before; no absence is signed until an operator confirms it",
		zap.Bool("source_changed", known.Source != sourceSystem), zap.Bool("store_changed", known.Store != known.StoreNow))
	return true, nil
}
