// Package grant changes what consumers may have.
//
// It promises that taking something away is committed alone before anything
// else happens: from then on every check refuses. The open tasks are cancelled
// one by one after it, and the sweep finishes what a crash left. It never
// creates or widens a grant by itself.
package grant

import (
	"context"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/store"
)

// Keeper changes grants and the tenants that consumers serve.
type Keeper struct {
	Store *store.Store
	// Wake is called where tasks were cancelled, for their slots are free.
	Wake func()
}

// Set makes or changes a grant; cancelled counts the open tasks that a
// narrowing ended.
func (k *Keeper) Set(ctx context.Context, want store.Grant, actor string) (got store.Grant, cancelled int, err error) {
	got, narrowed, err := k.Store.SetGrant(ctx, want, actor)
	if err != nil || !narrowed {
		return got, 0, err
	}
	cancelled, err = k.cancel(ctx, want.Scope)
	return got, cancelled, err
}

// AddTenant registers that a consumer serves a tenant.
func (k *Keeper) AddTenant(ctx context.Context, consumer string, tenant int64, actor string) error {
	return k.Store.AddTenant(ctx, consumer, tenant, actor)
}

// RemoveTenant takes a tenant from a consumer; what was granted under it does
// not count any more.
func (k *Keeper) RemoveTenant(ctx context.Context, consumer string, tenant int64, actor string) (cancelled int, err error) {
	if _, err := k.Store.RemoveTenant(ctx, consumer, tenant, actor); err != nil {
		return 0, err
	}
	// Also where it was removed before: a repeated call finishes a cut one.
	return k.cancel(ctx, store.Scope{Consumer: consumer, TenantID: tenant})
}

func (k *Keeper) cancel(ctx context.Context, sc store.Scope) (cancelled int, err error) {
	ids, err := k.Store.OpenTasks(ctx, sc)
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		_, code, err := k.Store.CancelLost(ctx, id)
		if err != nil {
			return cancelled, err
		}
		if code != fault.None {
			cancelled++
		}
	}
	if cancelled > 0 {
		k.Wake()
	}
	return cancelled, nil
}
