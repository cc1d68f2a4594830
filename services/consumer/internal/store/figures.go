package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/services/consumer/internal/work"
)

// Figures are what the metrics show of the consumer's own tables.
type Figures struct {
	Work map[work.State]int64
	// Paused rows wait for an operator.
	Paused int64
	// OldestDue is the age in seconds of the oldest row that could be worked.
	OldestDue float64
}

// Figures reads them, from indexes alone where rows have ended.
func (s *Store) Figures(ctx context.Context) (f Figures, err error) {
	f.Work = map[work.State]int64{}
	rows, err := s.pool.Query(ctx, `SELECT state, count(*) FROM lockstep.work GROUP BY state`)
	if err != nil {
		return f, fmt.Errorf("count work: %w", err)
	}
	var state work.State
	var n int64
	if _, err = pgx.ForEachRow(rows, []any{&state, &n}, func() error { f.Work[state] = n; return nil }); err != nil {
		return f, fmt.Errorf("count work: %w", err)
	}
	err = s.pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE paused),
			coalesce(extract(epoch FROM now() - min(due_at) FILTER (WHERE NOT paused AND due_at <= now())), 0)::float8
		FROM lockstep.work WHERE state = 'QUEUED'`).Scan(&f.Paused, &f.OldestDue)
	if err != nil {
		return f, fmt.Errorf("look for the oldest due work: %w", err)
	}
	return f, nil
}
