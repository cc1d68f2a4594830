package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/services/center/internal/task"
)

// CollectionPage is which collections are wanted and where their list goes on.
type CollectionPage struct {
	GrantPage

	CollectionID string // "" for all
}

// Collection is a granted scope and how it stands.
type Collection struct {
	Grant

	ProvenAt time.Time // zero: never
	ProvenBy uuid.UUID
	Rows     int64      // of that task's manifest
	Newest   *task.Task // nil: there was no task
}

// Collections lists granted scopes in their order, each with the task that last
// proved it equal and its newest one.
func (s *Store) Collections(ctx context.Context, p CollectionPage) ([]Collection, error) {
	after := or0(p.After)
	rows, err := s.pool.Query(ctx, `SELECT `+grantColumns+`, p.ended_at, p.task_id, p.row_count, n.task_id
		FROM lockstep.consumer_grant g
		LEFT JOIN LATERAL (SELECT t.task_id, t.ended_at, t.row_count FROM lockstep.task t
			WHERE t.consumer = g.consumer AND t.tenant_id = g.tenant_id AND t.collection_id = g.collection_id
			AND t.scope = 'COLLECTION' AND t.state = 'COMPLETED' ORDER BY t.ended_at DESC LIMIT 1) p ON true
		LEFT JOIN LATERAL (SELECT t.task_id FROM lockstep.task t
			WHERE t.consumer = g.consumer AND t.tenant_id = g.tenant_id AND t.collection_id = g.collection_id
			ORDER BY t.created_at DESC, t.task_id DESC LIMIT 1) n ON true
		WHERE ($1 = '' OR g.consumer = $1) AND ($2::bigint = 0 OR g.tenant_id = $2) AND ($3 = '' OR g.collection_id = $3)
		AND ($4::bigint[] IS NULL OR g.tenant_id = ANY ($4))
		AND ($5 OR (g.consumer, g.tenant_id, g.collection_id) > ($6, $7::bigint, $8))
		ORDER BY g.consumer, g.tenant_id, g.collection_id LIMIT $9`,
		p.Consumer, p.TenantID, p.CollectionID, p.Tenants, p.After == nil, after.Consumer, after.TenantID, after.CollectionID, p.Limit)
	if err != nil {
		return nil, fmt.Errorf("list collections: %w", err)
	}
	var newest []uuid.UUID
	collections, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Collection, error) {
		var (
			c        Collection
			provenAt *time.Time
			provenBy *uuid.UUID
			count    *int64
			last     *uuid.UUID
		)
		grant, err := scanGrant(row, &provenAt, &provenBy, &count, &last)
		c.Grant, c.ProvenAt, c.ProvenBy, c.Rows = grant, or0(provenAt), or0(provenBy), or0(count)
		newest = append(newest, or0(last))
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("list collections: %w", err)
	}
	tasks, err := s.tasksByID(ctx, newest)
	if err != nil {
		return nil, err
	}
	for i, id := range newest {
		collections[i].Newest = tasks[id]
	}
	return collections, nil
}

func (s *Store) tasksByID(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]*task.Task, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+taskColumns+` FROM lockstep.task WHERE task_id = ANY ($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(ids), err)
	}
	tasks, err := pgx.CollectRows(rows, rowToTask)
	if err != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(ids), err)
	}
	found := make(map[uuid.UUID]*task.Task, len(tasks))
	for _, t := range tasks {
		found[t.ID] = t
	}
	return found, nil
}
