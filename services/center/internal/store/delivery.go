package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
)

// DeliverySite: a record's current value is to be sent to a consumer.
var DeliverySite = claim.Site{Name: "delivery", Table: "lockstep.delivery", ID: "delivery_id", Held: "state = 'SENDING'"}

// DeliveryState is where a delivery is.
type DeliveryState string

// The states; docs/operating/delivery.md has the way through them.
const (
	DeliveryPending DeliveryState = "PENDING"
	DeliverySending DeliveryState = "SENDING"
	DeliveryDone    DeliveryState = "DONE"
	DeliveryFailed  DeliveryState = "FAILED"
	DeliveryDropped DeliveryState = "DROPPED"
)

// Delivery is one record on its way to one consumer, however often it changed.
type Delivery struct {
	ID uuid.UUID
	Scope
	Key       string // raw
	State     DeliveryState
	Attempts  int
	Code      string
	Outcome   string
	Revision  *int64 // of the value last sent
	EventID   string
	DueAt     time.Time
	CreatedAt time.Time
	UpdatedAt time.Time
	EndedAt   *time.Time
}

const deliveryColumns = `delivery_id, consumer, tenant_id, collection_id, record_key, state, attempts, code, outcome,
	revision, event_id, due_at, created_at, updated_at, ended_at`

func scanDelivery(row pgx.Row) (*Delivery, error) {
	var d Delivery
	var key []byte
	err := row.Scan(&d.ID, &d.Consumer, &d.TenantID, &d.CollectionID, &key, &d.State, &d.Attempts, &d.Code, &d.Outcome,
		&d.Revision, &d.EventID, &d.DueAt, &d.CreatedAt, &d.UpdatedAt, &d.EndedAt)
	d.Key = string(key)
	return &d, err
}

// DeliveryPolicy is how often and how late a delivery is tried.
type DeliveryPolicy struct {
	ClaimLease  time.Duration
	MaxAttempts int
	BackoffBase time.Duration
	BackoffCap  time.Duration
}

// Backoff is the wait after attempts tries: base × 2^(attempts − 1), capped.
func (p DeliveryPolicy) Backoff(attempts int) time.Duration {
	wait := p.BackoffBase
	for ; attempts > 1 && wait < p.BackoffCap; attempts-- {
		wait *= 2
	}
	return min(wait, p.BackoffCap)
}

// ClaimDelivery takes the next delivery that is due and spends an attempt on it.
func (s *Store) ClaimDelivery(ctx context.Context, worker string, p DeliveryPolicy) (c claim.Claim, d *Delivery, ok bool, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		c, ok, err = DeliverySite.Take(ctx, tx.tx, claim.Taking{
			Worker: worker, Lease: p.ClaimLease, Where: "state = 'PENDING' AND due_at <= now()", Order: "due_at, delivery_id",
			Set: "state = 'SENDING', taken_generation = generation, attempts = attempts + 1, updated_at = now()",
		})
		if err != nil || !ok {
			return err
		}
		d, err = readDelivery(ctx, tx.tx, c.ID, "")
		return err
	})
	if err != nil {
		return claim.Claim{}, nil, false, fmt.Errorf("claim a delivery: %w", err)
	}
	return c, d, ok, nil
}

// Conclusion is how an attempt ended. The zero Wait of a PENDING one means now.
type Conclusion struct {
	State   DeliveryState
	Code    string
	Outcome string // "" where the consumer did not answer
	Wait    time.Duration
	// Of what was signed; zero where nothing was.
	Revision int64
	EventID  string
}

// ConcludeDelivery ends the claim. Where the record changed meanwhile, what was
// sent is not its last word: the row is given back and due at once, with a new
// budget, unless it waits for another try anyhow. claim.ErrFenced where somebody
// else owns it.
func (s *Store) ConcludeDelivery(ctx context.Context, c claim.Claim, end Conclusion) error {
	const answer = `, outcome = CASE $3 WHEN '' THEN outcome ELSE $3 END, revision = COALESCE(NULLIF($4::bigint, 0), revision),
		event_id = CASE $5 WHEN '' THEN event_id ELSE $5 END, updated_at = now()`
	if end.State == DeliveryPending {
		return DeliverySite.Leave(ctx, s.pool, c, "state = 'PENDING', code = $6, due_at = now() + $7::interval"+answer,
			end.Outcome, end.Revision, end.EventID, end.Code, end.Wait)
	}
	err := DeliverySite.LeaveIf(ctx, s.pool, c, "state = $6, code = $7, ended_at = now()"+answer, "generation = taken_generation",
		end.Outcome, end.Revision, end.EventID, end.State, end.Code)
	if !errors.Is(err, claim.ErrFenced) {
		return err
	}
	return DeliverySite.Leave(ctx, s.pool, c, "state = 'PENDING', attempts = 0, code = '', due_at = now()"+answer,
		end.Outcome, end.Revision, end.EventID)
}

// SweepDeliveries turns at most limit expired claims into claimable rows, later
// from the second time on. A row that spent its budget that way ends FAILED
// instead of killing workers for ever.
func (s *Store) SweepDeliveries(ctx context.Context, p DeliveryPolicy, limit int) (swept int, err error) {
	// A record that changed since it was taken has a new budget.
	const spent = "attempts >= $2 AND generation = taken_generation"
	ids, err := DeliverySite.Sweep(ctx, s.pool, `updated_at = now(), code = $4,
		state = CASE WHEN `+spent+` THEN 'FAILED' ELSE 'PENDING' END, ended_at = CASE WHEN `+spent+` THEN now() END,
		attempts = CASE WHEN generation = taken_generation THEN attempts ELSE 0 END,
		due_at = now() + CASE WHEN attempts < 2 THEN interval '0' ELSE LEAST($3::interval * 2 ^ LEAST(attempts - 2, 20), $5::interval) END`,
		limit, p.MaxAttempts, p.BackoffBase, string(fault.LeaseExpired), p.BackoffCap)
	return len(ids), err
}

// PurgeDeliveries deletes at most limit deliveries that ended well, or had
// nothing to send, longer than retention ago. Failed ones stay.
func (s *Store) PurgeDeliveries(ctx context.Context, retention time.Duration, limit int) (purged int64, err error) {
	tag, err := s.pool.Exec(ctx, `DELETE FROM lockstep.delivery WHERE delivery_id IN (
		SELECT delivery_id FROM lockstep.delivery WHERE state IN ('DONE', 'DROPPED') AND ended_at < now() - $1::interval
		ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED)`, retention, limit)
	if err != nil {
		return 0, fmt.Errorf("purge deliveries: %w", err)
	}
	return tag.RowsAffected(), nil
}

// Delivery reads one delivery; NOT_FOUND where there is none.
func (s *Store) Delivery(ctx context.Context, id uuid.UUID) (*Delivery, error) {
	return readDelivery(ctx, s.pool, id, "")
}

func readDelivery(ctx context.Context, db querier, id uuid.UUID, lock string) (*Delivery, error) {
	d, err := scanDelivery(db.QueryRow(ctx, `SELECT `+deliveryColumns+` FROM lockstep.delivery WHERE delivery_id = $1 `+lock, id))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fault.New(fault.NotFound, "there is no delivery %s", protocol.FormatID(id))
	}
	if err != nil {
		return nil, fmt.Errorf("read delivery %s: %w", id, err)
	}
	return d, nil
}

// DeliveryPage is which deliveries are wanted and where their list goes on.
type DeliveryPage struct {
	Consumer     string // "" for all
	TenantID     int64  // 0 for all
	CollectionID string // "" for all
	Code         string // "" for all
	States       []DeliveryState
	Tenants      []int64 // nil for all
	// The last one of the page before; a zero time is the start.
	AfterTime time.Time
	AfterID   uuid.UUID
	Limit     int
}

// Deliveries lists deliveries, those that moved last first.
func (s *Store) Deliveries(ctx context.Context, p DeliveryPage) ([]*Delivery, error) {
	states := make([]string, len(p.States))
	for i, state := range p.States {
		states[i] = string(state)
	}
	rows, err := s.pool.Query(ctx, `SELECT `+deliveryColumns+` FROM lockstep.delivery
		WHERE ($1 = '' OR consumer = $1) AND ($2::bigint = 0 OR tenant_id = $2) AND ($3 = '' OR collection_id = $3)
		AND ($4 = '' OR code = $4) AND state = ANY ($5) AND ($6::bigint[] IS NULL OR tenant_id = ANY ($6))
		AND ($7 OR (updated_at, delivery_id) < ($8::timestamptz, $9::uuid))
		ORDER BY updated_at DESC, delivery_id DESC LIMIT $10`,
		p.Consumer, p.TenantID, p.CollectionID, p.Code, states, p.Tenants, p.AfterTime.IsZero(), p.AfterTime, p.AfterID, p.Limit)
	if err != nil {
		return nil, fmt.Errorf("list deliveries: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Delivery, error) { return scanDelivery(row) })
	if err != nil {
		return nil, fmt.Errorf("list deliveries: %w", err)
	}
	return list, nil
}
