package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/pg"
)

// Received is what became of a delivered word.
type Received string

// The five answers; each is the consumer's for good, none asks for a repeat.
const (
	Applied   Received = "APPLIED"
	Duplicate Received = "DUPLICATE"
	Older     Received = "OLDER"
	Conflict  Received = "CONFLICT"
	Retired   Received = "RETIRED"
)

// Receipt is the newest delivered word about a record.
type Receipt struct {
	Key         string // raw
	Outcome     Received
	EventID     string
	CenterEpoch int64
	Revision    int64
	Hash        canon.Hash
	Deleted     bool
	ReceivedAt  time.Time // set where it is read
}

// ErrOvertaken: a newer word about the record was committed meanwhile. Nothing
// of this one was kept; look at the record again.
var ErrOvertaken = errors.New("a newer word about the record came in meanwhile")

// Delivery is the transaction of one delivered word. It has no task, so it can't
// write a ledger row, and its receipt is no repair's.
type Delivery struct {
	// Effect is its transaction.
	Effect *Effect
}

// InDelivery runs fn in one short transaction. fn may run several times and must
// have no other effects. An unknown commit is an error: the word comes again and
// then finds what it left.
func (s *Store) InDelivery(ctx context.Context, tenant int64, collection string, fn func(*Delivery) error) error {
	var committed []func()
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		e := &Effect{Tx: tx, Op: s.newID(), tenant: tenant, collection: collection, queued: &pgx.Batch{}}
		if err := fn(&Delivery{Effect: e}); err != nil {
			return err
		}
		if err := e.Flush(ctx); err != nil {
			return err
		}
		committed = e.committed
		failpoint.Hit(failpoint.ConsumerApplyBeforeCommit)
		return nil
	})
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.ConsumerApplyAfterCommit)
	for _, f := range committed {
		f()
	}
	return nil
}

// Keep writes the receipt in place of the record's last one.
func (d *Delivery) Keep(ctx context.Context, r Receipt) error {
	_, err := d.Effect.Tx.Exec(ctx, `INSERT INTO lockstep.delivery_receipt
			(tenant_id, collection_id, record_key, outcome, event_id, center_epoch, revision, content_hash, deleted)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
		ON CONFLICT (tenant_id, collection_id, record_key) DO UPDATE SET outcome = excluded.outcome, event_id = excluded.event_id,
			center_epoch = excluded.center_epoch, revision = excluded.revision, content_hash = excluded.content_hash,
			deleted = excluded.deleted, received_at = now()`,
		d.Effect.tenant, d.Effect.collection, []byte(r.Key), r.Outcome, r.EventID, r.CenterEpoch, r.Revision, r.Hash[:], r.Deleted)
	if err != nil {
		return fmt.Errorf("keep a delivery's receipt: %w", err)
	}
	return nil
}

// Raise moves the record's high-water mark to a delivered word. A word without a
// nonce never lowers it, and has to be above a retirement's floor: ErrOvertaken.
func (d *Delivery) Raise(ctx context.Context, m Mark) error {
	tag, err := d.Effect.Tx.Exec(ctx, `INSERT INTO lockstep.high_water AS h (tenant_id, collection_id, record_key, center_epoch, revision, retired)
		VALUES ($1, $2, $3, $4, $5, false)
		ON CONFLICT (tenant_id, collection_id, record_key) DO UPDATE SET center_epoch = excluded.center_epoch, revision = excluded.revision, retired = false
		WHERE (excluded.center_epoch, excluded.revision) > (h.center_epoch, h.revision)
			OR NOT h.retired AND (excluded.center_epoch, excluded.revision) = (h.center_epoch, h.revision)`,
		d.Effect.tenant, d.Effect.collection, []byte(m.Key), m.CenterEpoch, m.Revision)
	if err != nil {
		return fmt.Errorf("raise a high-water mark: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return ErrOvertaken
	}
	return nil
}

// Mark reads the high-water mark of a record, nil where it has none.
func (s *Store) Mark(ctx context.Context, tenant int64, collection, key string) (*Mark, error) {
	m := Mark{Key: key}
	err := s.pool.QueryRow(ctx, `SELECT center_epoch, revision, retired FROM lockstep.high_water
		WHERE tenant_id = $1 AND collection_id = $2 AND record_key = $3`, tenant, collection, []byte(key)).Scan(&m.CenterEpoch, &m.Revision, &m.Retired)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // having none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("read a high-water mark: %w", err)
	}
	return &m, nil
}

// Marks reads the high-water marks of keys of one collection.
func (s *Store) Marks(ctx context.Context, tenant int64, collection string, keys []string) (map[string]Mark, error) {
	return s.HighWater(ctx, &Work{TenantID: tenant, CollectionID: collection}, keys)
}

// Receipt reads what was last delivered of a record, nil where nothing was.
func (s *Store) Receipt(ctx context.Context, tenant int64, collection, key string) (*Receipt, error) {
	r := Receipt{Key: key}
	var hash []byte
	err := s.pool.QueryRow(ctx, `SELECT outcome, event_id, center_epoch, revision, content_hash, deleted, received_at FROM lockstep.delivery_receipt
		WHERE tenant_id = $1 AND collection_id = $2 AND record_key = $3`, tenant, collection, []byte(key)).
		Scan(&r.Outcome, &r.EventID, &r.CenterEpoch, &r.Revision, &hash, &r.Deleted, &r.ReceivedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // having none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("read a delivery's receipt: %w", err)
	}
	r.Hash = canon.Hash(hash)
	return &r, nil
}
