package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/protocol"
)

// Result is the stored end of an attempt.
type Result struct {
	Attempt    int
	State      protocol.State
	Code       string
	Report     []byte // the signed envelope as it came
	ReceivedAt time.Time
}

func rowToResult(row pgx.CollectableRow) (r Result, err error) {
	err = row.Scan(&r.Attempt, &r.State, &r.Code, &r.Report, &r.ReceivedAt)
	return r, err
}

// Result reads an attempt's own result; ok is false where it gave none.
func (t *Tx) Result(ctx context.Context, id uuid.UUID, attempt int) (state protocol.State, ok bool, err error) {
	err = t.tx.QueryRow(ctx, `SELECT state FROM lockstep.task_result WHERE task_id = $1 AND attempt = $2`, id, attempt).Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read the result of task %s: %w", id, err)
	}
	return state, true, nil
}

// InsertResult stores an attempt's result, once.
func (t *Tx) InsertResult(ctx context.Context, id uuid.UUID, r Result) error {
	_, err := t.tx.Exec(ctx, `INSERT INTO lockstep.task_result (task_id, attempt, state, code, report) VALUES ($1, $2, $3, $4, $5)`,
		id, r.Attempt, r.State, r.Code, r.Report)
	if err != nil {
		return fmt.Errorf("store the result of task %s: %w", id, err)
	}
	return nil
}

// Results lists a task's results by attempt.
func (s *Store) Results(ctx context.Context, id uuid.UUID) ([]Result, error) {
	rows, err := s.pool.Query(ctx, `SELECT attempt, state, code, report, received_at FROM lockstep.task_result WHERE task_id = $1 ORDER BY attempt`, id)
	if err != nil {
		return nil, fmt.Errorf("list the results of task %s: %w", id, err)
	}
	results, err := pgx.CollectRows(rows, rowToResult)
	if err != nil {
		return nil, fmt.Errorf("list the results of task %s: %w", id, err)
	}
	return results, nil
}

// EachResult calls fn for the results of a task, the newest attempt first,
// until fn says enough. attempt 0 is any, upTo 0 begins with the newest.
func (s *Store) EachResult(ctx context.Context, id uuid.UUID, attempt, upTo int, fn func(Result) (more bool, err error)) error {
	rows, err := s.pool.Query(ctx, `SELECT attempt, state, code, report, received_at FROM lockstep.task_result
		WHERE task_id = $1 AND ($2::integer = 0 OR attempt = $2) AND ($3::integer = 0 OR attempt <= $3) ORDER BY attempt DESC`, id, attempt, upTo)
	if err != nil {
		return fmt.Errorf("read the results of task %s: %w", id, err)
	}
	defer rows.Close()
	for rows.Next() {
		r, err := rowToResult(rows)
		if err != nil {
			return fmt.Errorf("read the results of task %s: %w", id, err)
		}
		if more, err := fn(r); err != nil || !more {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the results of task %s: %w", id, err)
	}
	return nil
}

// Waited says, by the database's clock, whether a time lies longer ago than
// limit. A zero time has not begun.
func (t *Tx) Waited(ctx context.Context, since time.Time, limit time.Duration) (over bool, err error) {
	if since.IsZero() {
		return false, nil
	}
	if err := t.tx.QueryRow(ctx, `SELECT $1::timestamptz + $2::interval < now()`, since, limit).Scan(&over); err != nil {
		return false, fmt.Errorf("read the clock: %w", err)
	}
	return over, nil
}
