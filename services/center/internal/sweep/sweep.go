// Package sweep finishes what others left: leases that ran out, claims whose
// worker died, revocations whose cancellations a crash cut off, and manifests
// past their retention.
//
// It decides nothing: what becomes of a task is the state table's verdict.
package sweep

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// Bounds of one unit, so that each transaction stays under a second.
const (
	maxClaims = 20
	maxLost   = 50
	maxPages  = 500 // of a manifest; about 5 MB of page bodies
)

// Sweeper holds what the units need.
type Sweeper struct {
	Store     *store.Store
	Policy    task.Policy
	Retention time.Duration
	// Abandoned deletes sets of rows that no task adopted.
	Abandoned func(ctx context.Context) error
	Wake      func()
	Log       *zap.Logger
}

// WorkOnce ends leases and claims that ran out, and tasks whose budget was lowered below what they spent.
func (s *Sweeper) WorkOnce(ctx context.Context) (worked bool, err error) {
	swept := 0
	for _, site := range []struct {
		claim.Site
		on task.Event
	}{{store.MaterialiseSite, task.MaterialiseTrouble}, {store.DispatchSite, task.ClaimLapsed}} {
		n, err := s.Store.SweepClaims(ctx, site.Site, site.on, s.Policy, maxClaims)
		if err != nil {
			return false, fmt.Errorf("sweep %s claims: %w", site.Name, err)
		}
		if n > 0 {
			s.Log.Warn("claims ran out", zap.String("site", site.Name), zap.Int("tasks", n))
		}
		swept += n
	}
	leased, err := s.Store.SweepLease(ctx, s.Policy)
	if err != nil {
		return false, fmt.Errorf("sweep leases: %w", err)
	}
	if leased {
		s.Log.Warn("a consumer's lease ran out")
		swept++
	}
	spent, err := s.Store.SweepSpent(ctx, s.Policy)
	if err != nil {
		return false, fmt.Errorf("sweep spent budgets: %w", err)
	}
	if spent {
		s.Log.Warn("a queued task has no attempt left")
		swept++
	}
	if swept > 0 {
		s.Wake()
	}
	return swept > 0, nil
}

// RevokeOnce cancels open tasks that no grant carries any more, one by one.
func (s *Sweeper) RevokeOnce(ctx context.Context) (worked bool, err error) {
	ids, err := s.Store.LostTasks(ctx, maxLost)
	if err != nil {
		return false, err
	}
	for _, id := range ids {
		_, code, err := s.Store.CancelLost(ctx, id)
		if err != nil {
			return worked, fmt.Errorf("finish a revocation: %w", err)
		}
		if code != fault.None { // a slot may be free
			worked = true
			s.Wake()
		}
	}
	return worked, nil
}

// PurgeOnce deletes a batch of pages past their retention; 0 keeps them for ever.
func (s *Sweeper) PurgeOnce(ctx context.Context) (worked bool, err error) {
	if err := s.Abandoned(ctx); err != nil {
		return false, fmt.Errorf("sweep abandoned manifests: %w", err)
	}
	if s.Retention == 0 {
		return false, nil
	}
	return s.Store.Purge(ctx, s.Retention, maxPages)
}
