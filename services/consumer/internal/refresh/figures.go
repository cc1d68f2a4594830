package refresh

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Figures are what the metrics show of refreshes.
type Figures struct {
	Tasks map[State]int64
	// Lag is how many seconds the longest waiting task is overdue.
	Lag float64
	// Exhausted tasks failed as often as they may.
	Exhausted int64
}

// Figures reads them.
func (e *Engine) Figures(ctx context.Context) (f Figures, err error) {
	f.Tasks = map[State]int64{}
	rows, err := e.pool.Query(ctx, `SELECT state, count(*), count(*) FILTER (WHERE state = 'FAILED' AND retry_count >= max_retry),
			coalesce(extract(epoch FROM now() - min(due_at) FILTER (WHERE state IN ('PENDING', 'FAILED') AND retry_count < max_retry AND due_at <= now())), 0)::float8
		FROM lockstep.refresh_task GROUP BY state`)
	if err != nil {
		return f, fmt.Errorf("count refresh tasks: %w", err)
	}
	var state State
	var n, exhausted int64
	var lag float64
	_, err = pgx.ForEachRow(rows, []any{&state, &n, &exhausted, &lag}, func() error {
		f.Tasks[state] = n
		f.Exhausted += exhausted
		f.Lag = max(f.Lag, lag)
		return nil
	})
	if err != nil {
		return f, fmt.Errorf("count refresh tasks: %w", err)
	}
	return f, nil
}
