package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/protocol"
)

// Figures are what the metrics show of the center's database.
type Figures struct {
	Tasks map[protocol.State]int64
	// OldestWaiting is the age in seconds of the oldest task that nobody works yet.
	OldestWaiting float64
	// Scopes are those with an effective grant, NeverProven those of them that
	// no task ever found equal.
	Scopes, NeverProven int64
	// Worst are the scopes whose equality was proven longest ago.
	Worst []ScopeAge
}

// ScopeAge is how many seconds ago a scope was proven equal; since its grant was
// last set, where it never was.
type ScopeAge struct {
	Scope
	Seconds float64
}

// Figures reads them, from indexes alone; scopes bounds how many are named.
func (s *Store) Figures(ctx context.Context, scopes int) (f Figures, err error) {
	f.Tasks = map[protocol.State]int64{}
	rows, err := s.pool.Query(ctx, `SELECT state, count(*) FROM lockstep.task GROUP BY state`)
	if err != nil {
		return f, fmt.Errorf("count tasks: %w", err)
	}
	var state protocol.State
	var n int64
	if _, err = pgx.ForEachRow(rows, []any{&state, &n}, func() error { f.Tasks[state] = n; return nil }); err != nil {
		return f, fmt.Errorf("count tasks: %w", err)
	}
	err = s.pool.QueryRow(ctx, `SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 FROM lockstep.task
		WHERE state IN ('QUEUED', 'DISPATCHED')`).Scan(&f.OldestWaiting)
	if err != nil {
		return f, fmt.Errorf("look for the oldest waiting task: %w", err)
	}
	return f, s.scopeAges(ctx, scopes, &f)
}

func (s *Store) scopeAges(ctx context.Context, limit int, f *Figures) error {
	rows, err := s.pool.Query(ctx, `SELECT g.consumer, g.tenant_id, g.collection_id,
			extract(epoch FROM now() - coalesce(last.ended_at, g.updated_at))::float8 AS age,
			count(*) OVER (), count(*) FILTER (WHERE last.ended_at IS NULL) OVER ()
		FROM lockstep.consumer_grant g JOIN lockstep.consumer_tenant USING (consumer, tenant_id)
		LEFT JOIN LATERAL (SELECT ended_at FROM lockstep.task
			WHERE consumer = g.consumer AND tenant_id = g.tenant_id AND collection_id = g.collection_id AND scope = 'COLLECTION' AND state = 'COMPLETED'
			ORDER BY ended_at DESC LIMIT 1) last ON true
		WHERE g.enabled AND g.read_allowed AND g.subscribe_allowed ORDER BY age DESC LIMIT $1`, limit)
	if err != nil {
		return fmt.Errorf("look when scopes were proven: %w", err)
	}
	f.Worst, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a ScopeAge, err error) {
		err = row.Scan(&a.Consumer, &a.TenantID, &a.CollectionID, &a.Seconds, &f.Scopes, &f.NeverProven)
		return a, err
	})
	if err != nil {
		return fmt.Errorf("look when scopes were proven: %w", err)
	}
	return nil
}
