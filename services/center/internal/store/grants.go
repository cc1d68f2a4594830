package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
)

// SetGrant makes or changes a grant in a transaction of its own. Taking
// something away raises the epoch; narrowed says so.
func (s *Store) SetGrant(ctx context.Context, want Grant, actor string) (got Grant, narrowed bool, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		if err := tx.holdTenant(ctx, want.Scope); err != nil {
			return err
		}
		had, err := readGrant(ctx, tx.tx, want.Scope, "FOR UPDATE OF g")
		if err != nil {
			return err
		}
		if got, err = tx.writeGrant(ctx, want); err != nil {
			return err
		}
		narrowed = got.Epoch > max(had.Epoch, 1)
		return tx.Audit(ctx, Audit{
			Actor: actor, Action: "grant.set", Object: "grant/" + want.String(), Decision: map[bool]string{true: "NARROWED", false: "SET"}[narrowed],
			Reason: fmt.Sprintf("enabled=%t read=%t subscribe=%t epoch=%d", got.Enabled, got.ReadAllowed, got.SubscribeAllowed, got.Epoch),
		})
	})
	return got, narrowed, err
}

// holdTenant keeps the tenant from being taken from the consumer until the
// commit; a grant outside what the consumer serves can't be made.
func (t *Tx) holdTenant(ctx context.Context, sc Scope) error {
	var one int
	err := t.tx.QueryRow(ctx, `SELECT 1 FROM lockstep.consumer_tenant WHERE consumer = $1 AND tenant_id = $2 FOR KEY SHARE`, sc.Consumer, sc.TenantID).Scan(&one)
	if errors.Is(err, pgx.ErrNoRows) {
		return fault.New(fault.ScopeMismatch, "%s does not serve tenant %d", sc.Consumer, sc.TenantID)
	}
	if err != nil {
		return fmt.Errorf("look for tenant %d of %s: %w", sc.TenantID, sc.Consumer, err)
	}
	return nil
}

// writeGrant compares with the row that it changes, not with one seen before.
func (t *Tx) writeGrant(ctx context.Context, want Grant) (Grant, error) {
	got, err := scanGrant(t.tx.QueryRow(ctx, `INSERT INTO lockstep.consumer_grant AS g
			(consumer, tenant_id, collection_id, enabled, read_allowed, subscribe_allowed) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (consumer, tenant_id, collection_id) DO UPDATE SET enabled = excluded.enabled, read_allowed = excluded.read_allowed,
			subscribe_allowed = excluded.subscribe_allowed, updated_at = now(),
			grant_epoch = g.grant_epoch + (g.enabled AND NOT excluded.enabled OR g.read_allowed AND NOT excluded.read_allowed
				OR g.subscribe_allowed AND NOT excluded.subscribe_allowed)::integer
		RETURNING `+grantColumns,
		want.Consumer, want.TenantID, want.CollectionID, want.Enabled, want.ReadAllowed, want.SubscribeAllowed))
	if err != nil {
		return Grant{}, fmt.Errorf("set the grant of %s: %w", want.Scope, err)
	}
	return got, nil
}

// GrantPage is where a list of grants goes on.
type GrantPage struct {
	Consumer string // "" for all
	TenantID int64  // 0 for all
	Tenants  []int64
	After    *Scope
	Limit    int
}

// Grants lists grants in the order of their scopes.
func (s *Store) Grants(ctx context.Context, p GrantPage) ([]Grant, error) {
	after := or0(p.After)
	rows, err := s.pool.Query(ctx, `SELECT `+grantColumns+` FROM lockstep.consumer_grant g
		WHERE ($1 = '' OR g.consumer = $1) AND ($2::bigint = 0 OR g.tenant_id = $2) AND ($3::bigint[] IS NULL OR g.tenant_id = ANY ($3))
		AND ($4 OR (g.consumer, g.tenant_id, g.collection_id) > ($5, $6::bigint, $7))
		ORDER BY g.consumer, g.tenant_id, g.collection_id LIMIT $8`,
		p.Consumer, p.TenantID, p.Tenants, p.After == nil, after.Consumer, after.TenantID, after.CollectionID, p.Limit)
	if err != nil {
		return nil, fmt.Errorf("list grants: %w", err)
	}
	grants, err := pgx.CollectRows(rows, rowToGrant)
	if err != nil {
		return nil, fmt.Errorf("list grants: %w", err)
	}
	return grants, nil
}

// Tenants lists what a consumer serves; only nil means all.
func (s *Store) Tenants(ctx context.Context, consumer string, only []int64) ([]int64, error) {
	rows, err := s.pool.Query(ctx, `SELECT tenant_id FROM lockstep.consumer_tenant
		WHERE consumer = $1 AND ($2::bigint[] IS NULL OR tenant_id = ANY ($2)) ORDER BY tenant_id`, consumer, only)
	if err != nil {
		return nil, fmt.Errorf("list the tenants of %s: %w", consumer, err)
	}
	tenants, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("list the tenants of %s: %w", consumer, err)
	}
	return tenants, nil
}

// AddTenant registers that a consumer serves a tenant.
func (s *Store) AddTenant(ctx context.Context, consumer string, tenant int64, actor string) error {
	return s.InTx(ctx, func(tx *Tx) error {
		tag, err := tx.tx.Exec(ctx, `INSERT INTO lockstep.consumer_tenant (consumer, tenant_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`, consumer, tenant)
		if err != nil {
			return fmt.Errorf("add tenant %d to %s: %w", tenant, consumer, err)
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
		return tx.Audit(ctx, Audit{Actor: actor, Action: "tenant.add", Object: tenantObject(consumer, tenant), Decision: "ADDED"})
	})
}

// RemoveTenant takes a tenant from a consumer and raises the epochs of its
// grants, in one transaction of its own.
func (s *Store) RemoveTenant(ctx context.Context, consumer string, tenant int64, actor string) (removed bool, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		tag, err := tx.tx.Exec(ctx, `DELETE FROM lockstep.consumer_tenant WHERE consumer = $1 AND tenant_id = $2`, consumer, tenant)
		if err != nil {
			return fmt.Errorf("remove tenant %d from %s: %w", tenant, consumer, err)
		}
		if removed = tag.RowsAffected() == 1; !removed {
			return nil
		}
		_, err = tx.tx.Exec(ctx, `UPDATE lockstep.consumer_grant SET grant_epoch = grant_epoch + 1, updated_at = now()
			WHERE consumer = $1 AND tenant_id = $2`, consumer, tenant)
		if err != nil {
			return fmt.Errorf("raise the grant epochs of tenant %d of %s: %w", tenant, consumer, err)
		}
		return tx.Audit(ctx, Audit{Actor: actor, Action: "tenant.remove", Object: tenantObject(consumer, tenant), Decision: "REMOVED"})
	})
	return removed, err
}

func tenantObject(consumer string, tenant int64) string {
	return fmt.Sprintf("tenant/%s/%d", consumer, tenant)
}

// OpenTasks lists the open tasks under a grant; collection "" means all of the tenant.
func (s *Store) OpenTasks(ctx context.Context, sc Scope) ([]uuid.UUID, error) {
	return s.ids(ctx, `SELECT task_id FROM lockstep.task
		WHERE consumer = $1 AND tenant_id = $2 AND ($3 = '' OR collection_id = $3) AND `+openStates+` ORDER BY task_id`,
		sc.Consumer, sc.TenantID, sc.CollectionID)
}

func (s *Store) ids(ctx context.Context, sql string, args ...any) ([]uuid.UUID, error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return ids, nil
}
