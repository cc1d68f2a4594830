package delivery

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/services/center/internal/store"
)

// Bounds of one unit, so that each transaction stays under a second.
const (
	maxSwept  = 100
	maxPurged = 1000
)

// Sweeper takes claims back whose worker died, and keeps the retention.
type Sweeper struct {
	Store     *store.Store
	Policy    store.DeliveryPolicy
	Retention time.Duration // of deliveries that ended well; 0 keeps them
	Wake      func()
	Log       *zap.Logger
}

// SweepOnce does one unit.
func (s *Sweeper) SweepOnce(ctx context.Context) (worked bool, err error) {
	swept, err := s.Store.SweepDeliveries(ctx, s.Policy, maxSwept)
	if err != nil {
		return false, fmt.Errorf("sweep deliveries: %w", err)
	}
	if swept > 0 {
		s.Log.Warn("claims ran out", zap.String("site", store.DeliverySite.Name), zap.Int("deliveries", swept))
		s.Wake()
	}
	if s.Retention == 0 {
		return swept == maxSwept, nil
	}
	purged, err := s.Store.PurgeDeliveries(ctx, s.Retention, maxPurged)
	return swept == maxSwept || purged == maxPurged, err
}
