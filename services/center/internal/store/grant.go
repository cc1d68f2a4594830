package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/task"
)

// Scope names what a grant is about.
type Scope struct {
	Consumer     string
	TenantID     int64
	CollectionID string
}

// Grant says what a consumer may have of a collection.
type Grant struct {
	Scope
	Enabled, ReadAllowed, SubscribeAllowed bool
	Epoch                                  int64
	// Served: the consumer serves the tenant.
	Served    bool
	UpdatedAt time.Time
	// CenterEpoch is the center's own one at that moment.
	CenterEpoch int64
}

// Effective says whether tasks may exist under the grant.
func (g Grant) Effective() bool {
	return g.Enabled && g.ReadAllowed && g.SubscribeAllowed && g.Served
}

// Lost says why a task made under the epochs of a grant and of the center may
// not go on, None if it may. A manifest of an older center epoch is of a timeline
// that an operator gave up.
func (g Grant) Lost(epoch, centerEpoch int64) fault.Reason {
	switch {
	case !g.Effective():
		return fault.GrantRevoked
	case g.Epoch != epoch, g.CenterEpoch != centerEpoch:
		return fault.EpochMoved
	}
	return fault.None
}

const grantColumns = `g.consumer, g.tenant_id, g.collection_id, g.enabled, g.read_allowed, g.subscribe_allowed, g.grant_epoch, g.updated_at,
	(SELECT center_epoch FROM lockstep.center),
	EXISTS (SELECT 1 FROM lockstep.consumer_tenant s WHERE s.consumer = g.consumer AND s.tenant_id = g.tenant_id)`

func rowToGrant(row pgx.CollectableRow) (Grant, error) { return scanGrant(row) }

// scanGrant reads grantColumns, and whatever columns follow them into more.
func scanGrant(row pgx.Row, more ...any) (g Grant, err error) {
	err = row.Scan(append([]any{
		&g.Consumer, &g.TenantID, &g.CollectionID, &g.Enabled, &g.ReadAllowed, &g.SubscribeAllowed, &g.Epoch, &g.UpdatedAt, &g.CenterEpoch, &g.Served,
	}, more...)...)
	return g, err
}

// Grant reads a grant as it is now; one that does not exist has epoch 0 and
// allows nothing.
func (s *Store) Grant(ctx context.Context, sc Scope) (Grant, error) {
	return readGrant(ctx, s.pool, sc, "")
}

// GrantEffective is the fresh read just before signing.
func (s *Store) GrantEffective(ctx context.Context, consumer string, tenant int64, collection string) (epoch int64, effective bool, err error) {
	g, err := s.Grant(ctx, Scope{consumer, tenant, collection})
	return g.Epoch, g.Effective(), err
}

// ShareGrant reads the grant and keeps a revocation waiting until the commit.
// Ask for it after the task's row. A task that outlives the wait sees the
// revocation: a plain join would let it pass.
func (t *Tx) ShareGrant(ctx context.Context, sc Scope) (Grant, error) {
	// Removing a tenant raises its grants' epochs, so this one row is enough to
	// hold. But it takes a statement of its own: one that had to wait for a row
	// sees everything else, as whether the tenant is served, as it was before.
	tag, err := t.tx.Exec(ctx, `SELECT FROM lockstep.consumer_grant WHERE consumer = $1 AND tenant_id = $2 AND collection_id = $3 FOR SHARE`,
		sc.Consumer, sc.TenantID, sc.CollectionID)
	if err != nil {
		return Grant{}, fmt.Errorf("hold the grant of %s: %w", sc, err)
	}
	if tag.RowsAffected() == 0 {
		return Grant{Scope: sc}, nil // one that is made now is not held
	}
	return readGrant(ctx, t.tx, sc, "")
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func readGrant(ctx context.Context, db querier, sc Scope, lock string) (Grant, error) {
	g, err := scanGrant(db.QueryRow(ctx, `SELECT `+grantColumns+` FROM lockstep.consumer_grant g
		WHERE g.consumer = $1 AND g.tenant_id = $2 AND g.collection_id = $3 `+lock, sc.Consumer, sc.TenantID, sc.CollectionID))
	if errors.Is(err, pgx.ErrNoRows) {
		return Grant{Scope: sc}, nil
	}
	if err != nil {
		return Grant{}, fmt.Errorf("read the grant of %s: %w", sc, err)
	}
	return g, nil
}

func (sc Scope) String() string {
	return fmt.Sprintf("%s/%d/%s", sc.Consumer, sc.TenantID, sc.CollectionID)
}

// ScopeOf is the grant's scope that a task stands under.
func ScopeOf(t *task.Task) Scope { return Scope{t.Consumer, t.TenantID, t.CollectionID} }
