package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/fault"
)

// OutboxPosition is how far a host's outbox was read, and in which database.
type OutboxPosition struct {
	XID    string
	ID     int64
	System string
}

// OutboxStart is before every row.
var OutboxStart = OutboxPosition{XID: "0"}

// OutboxPosition reads how far an outbox was read; OutboxStart where it never was.
func (s *Store) OutboxPosition(ctx context.Context, outbox string) (p OutboxPosition, err error) {
	err = s.pool.QueryRow(ctx, `SELECT xid::text, id, source_system FROM lockstep.delivery_position WHERE outbox = $1`, outbox).Scan(&p.XID, &p.ID, &p.System)
	if errors.Is(err, pgx.ErrNoRows) {
		return OutboxStart, nil
	}
	if err != nil {
		return p, fmt.Errorf("read the position in %s: %w", outbox, err)
	}
	return p, nil
}

// Changed names a record that changed.
type Changed struct {
	TenantID     int64
	CollectionID string
	Key          string // raw
}

// errOvertaken: another replica read the same rows meanwhile.
var errOvertaken = errors.New("the outbox was read by another process")

// Advance queues a delivery of each changed record for each consumer that has an
// effective grant on it, and moves the position, in one transaction. moved is
// false where another process moved it first; then nothing was queued.
func (s *Store) Advance(ctx context.Context, outbox string, from, to OutboxPosition, changed []Changed) (queued int64, moved bool, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		if queued, err = tx.queue(ctx, changed); err != nil {
			return err
		}
		if err := tx.movePosition(ctx, outbox, from, to); err != nil {
			return err
		}
		failpoint.Hit(failpoint.CenterOutboxBeforeCommit)
		return nil
	})
	if errors.Is(err, errOvertaken) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read on in %s: %w", outbox, err)
	}
	failpoint.Hit(failpoint.CenterOutboxAfterCommit)
	return queued, true, nil
}

func (t *Tx) movePosition(ctx context.Context, outbox string, from, to OutboxPosition) error {
	tag, err := t.tx.Exec(ctx, `INSERT INTO lockstep.delivery_position AS p (outbox, xid, id, source_system) VALUES ($1, $2::text::xid8, $3, $4)
		ON CONFLICT (outbox) DO UPDATE SET xid = excluded.xid, id = excluded.id, source_system = excluded.source_system, updated_at = now()
		WHERE p.xid = $5::text::xid8 AND p.id = $6 AND p.source_system = $7`, outbox, to.XID, to.ID, to.System, from.XID, from.ID, from.System)
	if err != nil {
		return fmt.Errorf("move the position: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return errOvertaken
	}
	return nil
}

// requeue of a delivery that exists: one that is being sent is sent again after
// it, one that waits keeps its time, one that had ended starts anew.
const requeueDelivery = `generation = d.generation + 1, updated_at = now(),
	attempts = CASE WHEN d.ended_at IS NULL THEN d.attempts ELSE 0 END,
	due_at = CASE WHEN d.ended_at IS NULL THEN d.due_at ELSE now() END,
	code = CASE WHEN d.ended_at IS NULL THEN d.code ELSE '' END,
	state = CASE WHEN d.ended_at IS NULL THEN d.state ELSE 'PENDING' END, ended_at = NULL`

func (t *Tx) queue(ctx context.Context, changed []Changed) (int64, error) {
	if len(changed) == 0 {
		return 0, nil
	}
	tenants, collections, keys := make([]int64, len(changed)), make([]string, len(changed)), make([][]byte, len(changed))
	for i, c := range changed {
		tenants[i], collections[i], keys[i] = c.TenantID, c.CollectionID, []byte(c.Key)
	}
	tag, err := t.tx.Exec(ctx, `INSERT INTO lockstep.delivery AS d (consumer, tenant_id, collection_id, record_key)
		SELECT DISTINCT g.consumer, c.tenant_id, c.collection_id, c.record_key
		FROM unnest($1::bigint[], $2::text[], $3::bytea[]) AS c(tenant_id, collection_id, record_key)
		JOIN lockstep.consumer_grant g ON g.tenant_id = c.tenant_id AND g.collection_id = c.collection_id
			AND g.enabled AND g.read_allowed AND g.subscribe_allowed
		JOIN lockstep.consumer_tenant s ON s.consumer = g.consumer AND s.tenant_id = g.tenant_id
		ORDER BY 1, 2, 3, 4
		ON CONFLICT (consumer, tenant_id, collection_id, record_key) DO UPDATE SET `+requeueDelivery, tenants, collections, keys)
	if err != nil {
		return 0, fmt.Errorf("queue %d changes: %w", len(changed), err)
	}
	return tag.RowsAffected(), nil
}

// Replay queues a record for a consumer at an operator's wish, due at once and
// with a new budget. The grant is checked first: GRANT_REVOKED where it is not
// effective.
func (s *Store) Replay(ctx context.Context, sc Scope, key, reason, actor, object string) (d *Delivery, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		g, err := tx.ShareGrant(ctx, sc)
		if err != nil {
			return err
		}
		if !g.Effective() {
			return fault.New(fault.GrantRevoked, "%s has no effective grant on %s of tenant %d", sc.Consumer, sc.CollectionID, sc.TenantID)
		}
		var id uuid.UUID
		err = tx.tx.QueryRow(ctx, `INSERT INTO lockstep.delivery AS d (consumer, tenant_id, collection_id, record_key) VALUES ($1, $2, $3, $4)
			ON CONFLICT (consumer, tenant_id, collection_id, record_key) DO UPDATE SET generation = d.generation + 1, updated_at = now(),
				attempts = CASE d.state WHEN 'SENDING' THEN d.attempts ELSE 0 END, code = CASE d.state WHEN 'SENDING' THEN d.code ELSE '' END,
				state = CASE d.state WHEN 'SENDING' THEN d.state ELSE 'PENDING' END, due_at = now(), ended_at = NULL
			RETURNING delivery_id`, sc.Consumer, sc.TenantID, sc.CollectionID, []byte(key)).Scan(&id)
		if err != nil {
			return fmt.Errorf("queue a replay: %w", err)
		}
		if d, err = readDelivery(ctx, tx.tx, id, ""); err != nil {
			return err
		}
		return tx.Audit(ctx, Audit{Actor: actor, Action: "delivery.replay", Object: object, Decision: "QUEUED", Reason: reason})
	})
	return d, err
}
