package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Scope is a collection of a tenant.
type Scope struct {
	TenantID     int64
	CollectionID string
}

// FirstScope is before every other.
var FirstScope = Scope{TenantID: math.MinInt64}

// CollectionQuery filters a list of collections; zero values do not.
type CollectionQuery struct {
	TenantID     int64
	CollectionID string
	// Tenants are those that may be seen; none means all.
	Tenants []int64
	// After is the last one of the page before, or FirstScope.
	After Scope
	Limit int
}

// bounds are the lowest and the highest tenant that can be on the list: what
// lies outside need not be walked through.
func (q CollectionQuery) bounds() (low, high int64) {
	low, high = math.MinInt64, math.MaxInt64
	if len(q.Tenants) > 0 {
		low, high = slices.Min(q.Tenants), slices.Max(q.Tenants)
	}
	if q.TenantID != 0 {
		low, high = max(low, q.TenantID), min(high, q.TenantID)
	}
	return low, high
}

// Collection is how a collection that ever had work stands.
type Collection struct {
	// The newest work.
	Work
	// The work on the whole collection that last ended COMPLETED, and when.
	ProvenAt *time.Time
	ProvenBy *uuid.UUID
	// Records that wait for an operator, as ListQuarantined has them.
	Quarantined int64
}

// ListCollections lists by tenant and collection. Each collection is looked up
// by itself from the one before, so that a page costs what is on it, however
// much work there was.
func (s *Store) ListCollections(ctx context.Context, q CollectionQuery) ([]Collection, error) {
	const wanted = `tenant_id BETWEEN $3 AND $4 AND (cardinality($5::bigint[]) = 0 OR tenant_id = ANY($5)) AND ($6 = '' OR collection_id = $6)`
	low, high := q.bounds()
	rows, err := s.pool.Query(ctx, `WITH RECURSIVE listed AS (
			(SELECT tenant_id, collection_id, 1 AS n FROM lockstep.work
				WHERE (tenant_id, collection_id) > ($1::bigint, $2::text) AND `+wanted+`
				ORDER BY tenant_id, collection_id LIMIT 1)
			UNION ALL
			SELECT f.tenant_id, f.collection_id, l.n + 1 FROM listed l CROSS JOIN LATERAL (
				SELECT tenant_id, collection_id FROM lockstep.work
				WHERE (tenant_id, collection_id) > (l.tenant_id, l.collection_id) AND `+wanted+`
				ORDER BY tenant_id, collection_id LIMIT 1) f
			WHERE l.n < $7),
		held AS (
			SELECT w.tenant_id, w.collection_id, count(*) AS quarantined FROM lockstep.outcome o
			CROSS JOIN LATERAL (SELECT tenant_id, collection_id, created_at FROM lockstep.work WHERE task_id = o.task_id LIMIT 1) w
			WHERE `+stillQuarantined+` AND o.tenant_id IN (SELECT tenant_id FROM listed)
			AND (w.tenant_id, w.collection_id) IN (SELECT tenant_id, collection_id FROM listed)
			GROUP BY w.tenant_id, w.collection_id)
		SELECT newest.*, proven.ended_at AS proven_at, proven.task_id AS proven_by, coalesce(held.quarantined, 0) AS quarantined
		FROM listed
		CROSS JOIN LATERAL (SELECT `+columns+` FROM lockstep.work
			WHERE tenant_id = listed.tenant_id AND collection_id = listed.collection_id ORDER BY created_at DESC, task_id DESC LIMIT 1) newest
		LEFT JOIN LATERAL (SELECT ended_at, task_id FROM lockstep.work
			WHERE tenant_id = listed.tenant_id AND collection_id = listed.collection_id AND scope = 'COLLECTION' AND state = 'COMPLETED'
			ORDER BY ended_at DESC LIMIT 1) proven ON true
		LEFT JOIN held ON held.tenant_id = listed.tenant_id AND held.collection_id = listed.collection_id
		ORDER BY listed.n`,
		q.After.TenantID, q.After.CollectionID, low, high, orEmpty(q.Tenants), q.CollectionID, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list collections: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByName[Collection])
	if err != nil {
		return nil, fmt.Errorf("list collections: %w", err)
	}
	return out, nil
}
