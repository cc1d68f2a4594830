package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/task"
)

// TaskPage is which tasks are wanted and where their list goes on.
type TaskPage struct {
	Consumer     string // "" for all
	TenantID     int64  // 0 for all
	CollectionID string // "" for all
	States       []protocol.State
	Tenants      []int64 // nil for all
	// The last task of the page before; a zero time is the start.
	AfterTime time.Time
	AfterID   uuid.UUID
	Limit     int
}

// Tasks lists tasks, newest first.
func (s *Store) Tasks(ctx context.Context, p TaskPage) ([]*task.Task, error) {
	var states []string
	for _, st := range p.States {
		states = append(states, string(st))
	}
	rows, err := s.pool.Query(ctx, `SELECT `+taskColumns+` FROM lockstep.task
		WHERE ($1 = '' OR consumer = $1) AND ($2::bigint = 0 OR tenant_id = $2) AND ($3 = '' OR collection_id = $3)
		AND ($4::text[] IS NULL OR state = ANY ($4)) AND ($5::bigint[] IS NULL OR tenant_id = ANY ($5))
		AND ($6 OR (created_at, task_id) < ($7::timestamptz, $8::uuid))
		ORDER BY created_at DESC, task_id DESC LIMIT $9`,
		p.Consumer, p.TenantID, p.CollectionID, states, p.Tenants, p.AfterTime.IsZero(), p.AfterTime, p.AfterID, p.Limit)
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	tasks, err := pgx.CollectRows(rows, rowToTask)
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return tasks, nil
}

// Traffic is what holds others up at a consumer.
type Traffic struct {
	Slots map[int]Holder // in flight
	Ahead Holder         // the collection task materialised ahead; zero for none
}

// Holder is a task that holds a place, and its tenant: not everybody may know of it.
type Holder struct {
	ID       uuid.UUID
	TenantID int64
}

// Traffic reads the consumers' slots, for saying why a task waits, and the
// database's time.
func (s *Store) Traffic(ctx context.Context, consumers []string) (traffic map[string]Traffic, now time.Time, err error) {
	rows, err := s.pool.Query(ctx, `SELECT consumer, slot, task_id, tenant_id FROM lockstep.task
		WHERE consumer = ANY ($1) AND (slot IS NOT NULL
			OR scope = 'COLLECTION' AND state = 'QUEUED' AND attempt = 0 AND (manifest_state = 'COMPLETE' OR claim_token IS NOT NULL))`, consumers)
	if err != nil {
		return nil, now, fmt.Errorf("read the slots in use: %w", err)
	}
	traffic = map[string]Traffic{}
	var consumer string
	var slot *int
	var h Holder
	if _, err = pgx.ForEachRow(rows, []any{&consumer, &slot, &h.ID, &h.TenantID}, func() error {
		t := traffic[consumer]
		switch {
		case slot == nil:
			t.Ahead = h
		case t.Slots == nil:
			t.Slots = map[int]Holder{*slot: h}
		default:
			t.Slots[*slot] = h
		}
		traffic[consumer] = t
		return nil
	}); err != nil {
		return nil, now, fmt.Errorf("read the slots in use: %w", err)
	}
	now, err = s.Now(ctx)
	return traffic, now, err
}

// Now is the database's time.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	if err := s.pool.QueryRow(ctx, `SELECT now()`).Scan(&now); err != nil {
		return now, fmt.Errorf("read the clock: %w", err)
	}
	return now, nil
}
