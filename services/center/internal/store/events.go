package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/protocol"
)

// Event is a step of a task, as it was written with the step.
type Event struct {
	ID      int64          `db:"event_id"`
	At      time.Time      `db:"at"`
	Attempt int            `db:"attempt"`
	Event   string         `db:"event"`
	State   protocol.State `db:"state"` // after it
	Code    string         `db:"code"`
}

// Events lists what happened to a task after an event, 0 for all, oldest first.
func (s *Store) Events(ctx context.Context, taskID uuid.UUID, after int64, limit int) ([]Event, error) {
	rows, err := s.pool.Query(ctx, `SELECT event_id, at, attempt, event, state, code FROM lockstep.task_event
		WHERE task_id = $1 AND event_id > $2 ORDER BY event_id LIMIT $3`, taskID, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list the events of task %s: %w", taskID, err)
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByName[Event])
	if err != nil {
		return nil, fmt.Errorf("list the events of task %s: %w", taskID, err)
	}
	return events, nil
}
