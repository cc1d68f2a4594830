package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/task"
	"lockstep.dev/services/internal/tracing"
)

// openStates are those of task_open, the index that holds "no stacked tasks".
const openStates = `state IN ('QUEUED', 'DISPATCHED', 'RUNNING')`

// NewTask is a task to be written.
type NewTask struct {
	ID uuid.UUID
	Scope
	What            protocol.Scope
	Key             string
	Mode            protocol.Mode
	GrantEpoch      int64
	BreakerOverride bool
	OverrideReason  string
	CreatedBy       string
	BusinessDay     string // YYYY-MM-DD; "" outside a schedule
	// Code of a refusal: the task is written as FAILED and never dispatched.
	Code   string
	Reason string
}

// InsertTask writes a task. ok is false where an open one of the same
// coordinates exists, or the schedule made one on the same day.
func (t *Tx) InsertTask(ctx context.Context, n NewTask) (tk *task.Task, ok bool, err error) {
	state, manifest := protocol.Queued, task.ManifestPending
	if n.Code != "" {
		state, manifest = protocol.Failed, task.ManifestFailed
	}
	tk, err = scanTask(t.tx.QueryRow(ctx, `INSERT INTO lockstep.task
		(task_id, consumer, tenant_id, collection_id, scope, record_key, mode, state, code, reason, grant_epoch, center_epoch,
		 breaker_override, override_reason, created_by, manifest_state, business_day, ended_at, trace_context)
		SELECT $1, $2, $3, $4, $5, $6, $7, $8::text, $9, $10, $11, center_epoch, $12, $13, $14, $15, nullif($16::text, '')::date,
			CASE WHEN $8::text = 'FAILED' THEN now() END, $17
		FROM lockstep.center
		ON CONFLICT DO NOTHING
		RETURNING `+taskColumns,
		n.ID, n.Consumer, n.TenantID, n.CollectionID, n.What, n.Key, n.Mode, state, n.Code, n.Reason, n.GrantEpoch,
		n.BreakerOverride, n.OverrideReason, n.CreatedBy, manifest, n.BusinessDay, tracing.Parent(ctx)))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("create a task for %s: %w", n.Scope, err)
	}
	return tk, true, t.traceNew(ctx, tk, n)
}

func (t *Tx) traceNew(ctx context.Context, tk *task.Task, n NewTask) error {
	reason := n.Code
	if n.BreakerOverride {
		reason = "breaker overridden: " + n.OverrideReason
	}
	return t.Audit(ctx, Audit{
		Actor: n.CreatedBy, Action: "task.create", Object: "task/" + protocol.FormatID(tk.ID), Decision: string(tk.State), Reason: reason,
	})
}

// OpenTask reads the open task of the coordinates, nil where there is none.
func (s *Store) OpenTask(ctx context.Context, sc Scope, what protocol.Scope, key string) (*task.Task, error) {
	tk, err := scanTask(s.pool.QueryRow(ctx, `SELECT `+taskColumns+` FROM lockstep.task
		WHERE consumer = $1 AND tenant_id = $2 AND collection_id = $3 AND scope = $4 AND record_key = $5 AND `+openStates,
		sc.Consumer, sc.TenantID, sc.CollectionID, what, key))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for an open task of %s: %w", sc, err)
	}
	return tk, nil
}

// maxSubscriptions bounds what one request for ALL spans: each is named in the
// answer, as a task or as left out.
const maxSubscriptions = 10_000

// Subscriptions are the scopes whose grants are effective, oldest-proven
// first: by the end of their last COMPLETED task, never proven ones before all.
// tenants nil means all. More than can be named are refused, never cut.
func (s *Store) Subscriptions(ctx context.Context, consumer string, tenants []int64) ([]Scope, error) {
	rows, err := s.pool.Query(ctx, `SELECT g.consumer, g.tenant_id, g.collection_id
		FROM lockstep.consumer_grant g JOIN lockstep.consumer_tenant USING (consumer, tenant_id)
		LEFT JOIN LATERAL (SELECT max(ended_at) AS proven FROM lockstep.task
			WHERE consumer = g.consumer AND tenant_id = g.tenant_id AND collection_id = g.collection_id AND scope = 'COLLECTION' AND state = 'COMPLETED') last ON true
		WHERE g.consumer = $1 AND g.enabled AND g.read_allowed AND g.subscribe_allowed AND ($2::bigint[] IS NULL OR g.tenant_id = ANY ($2))
		ORDER BY last.proven NULLS FIRST, g.tenant_id, g.collection_id LIMIT $3`, consumer, tenants, maxSubscriptions+1)
	if err != nil {
		return nil, fmt.Errorf("list the subscriptions of %s: %w", consumer, err)
	}
	scopes, err := pgx.CollectRows(rows, rowToScope)
	if err != nil {
		return nil, fmt.Errorf("list the subscriptions of %s: %w", consumer, err)
	}
	if len(scopes) > maxSubscriptions {
		return nil, fault.New(fault.ResourceLimit, "%s has more than %d subscriptions; name collections, or let the schedule work through them", consumer, maxSubscriptions)
	}
	return scopes, nil
}

func rowToScope(row pgx.CollectableRow) (sc Scope, err error) {
	err = row.Scan(&sc.Consumer, &sc.TenantID, &sc.CollectionID)
	return sc, err
}
