package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/center/internal/dispatch"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store"
)

// Sender sends what is due. All fields but Metrics are required.
type Sender struct {
	Store   *store.Store
	Source  *source.Source
	AppKey  string // the center's own
	Signer  *evidence.Signer
	Targets *dispatch.Targets
	Policy  store.DeliveryPolicy
	Timeout time.Duration // of one attempt, and of its conclusion
	Worker  string
	Metrics *Metrics
	Log     *zap.Logger
	Now     func() time.Time
	NewID   func() uuid.UUID
}

// SendOnce makes one attempt; worked is false where none is due.
//
//  1. Claim a delivery; the attempt is spent.
//  2. Read the record from the primary, now.
//  3. Look at the grant, after that read.
//  4. Sign the value for this consumer, and send it.
//  5. Conclude under the claim.
func (s *Sender) SendOnce(ctx context.Context) (worked bool, err error) {
	c, d, ok, err := s.Store.ClaimDelivery(ctx, s.Worker, s.Policy)
	if err != nil || !ok {
		return false, err
	}
	// A process that is to stop still finishes the attempt and says how it ended.
	ctx = context.WithoutCancel(ctx)
	end := s.attempt(ctx, d)
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	err = s.Store.ConcludeDelivery(ctx, c, end)
	if errors.Is(err, claim.ErrFenced) {
		s.Log.Info("fenced: the delivery has another owner", zap.Stringer("delivery", d.ID))
		return true, nil
	}
	if err != nil {
		return true, fmt.Errorf("conclude delivery %s: %w", d.ID, err)
	}
	failpoint.Hit(failpoint.CenterDeliveryAfterCommit)
	s.Metrics.ended(d.Consumer, string(end.State), end.Code)
	return true, nil
}

func (s *Sender) attempt(ctx context.Context, d *store.Delivery) store.Conclusion {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	snapshot, err := s.current(ctx, d)
	if err != nil {
		return s.failed(d, nil, err)
	}
	outcome, err := s.send(ctx, d, snapshot)
	if err != nil {
		return s.failed(d, snapshot, err)
	}
	return concluded(snapshot, outcome)
}

// current states the record as it is now for the delivery's consumer. An error
// that says what there is to say of the record is a *fault.Error.
func (s *Sender) current(ctx context.Context, d *store.Delivery) (*protocol.Snapshot, error) {
	rng := source.Range{TenantID: d.TenantID, CollectionID: d.CollectionID}
	now, err := s.Source.Current(ctx, rng, []string{d.Key}, canon.MaxBytes)
	if err != nil {
		return nil, err
	}
	g, err := s.Store.Grant(ctx, d.Scope)
	if err != nil {
		return nil, err
	}
	row := now.Rows[d.Key]
	switch {
	case !g.Effective():
		return nil, fault.New(fault.GrantRevoked, "the grant is not effective")
	case now.Twice[d.Key]:
		return nil, fault.New(fault.OrderViolation, "the source holds the key twice")
	case row == nil && now.Elsewhere[d.Key]:
		return nil, fault.New(fault.ScopeMismatch, "the record lives under another tenant or collection")
	case row == nil:
		return nil, fault.New(fault.RowGone, "the source has no such record")
	case row.Revision < 1:
		return nil, fault.New(fault.RevisionZero, "the record has no revision")
	}
	hash, err := canon.Sum(row.Content)
	if err != nil {
		return nil, fault.New(fault.CanonRefused, "the content has no canonical form")
	}
	epoch, err := s.Store.CenterEpoch(ctx)
	if err != nil {
		return nil, err
	}
	return &protocol.Snapshot{
		At: protocol.Coordinates{
			Source: s.AppKey, Consumer: d.Consumer, TenantID: d.TenantID, CollectionID: d.CollectionID, GrantEpoch: g.Epoch, CenterEpoch: epoch,
		},
		Key: protocol.FormatKey(d.Key), Revision: row.Revision, Hash: hash, Deleted: row.Deleted, SchemaVersion: row.SchemaVersion,
		Sequence: row.Sequence, Content: row.Content, EventID: protocol.FormatID(s.NewID()), IssuedAt: s.Now(),
	}, nil
}

// send signs the snapshot and has the consumer apply it.
func (s *Sender) send(ctx context.Context, d *store.Delivery, snapshot *protocol.Snapshot) (consumerv1.DeliveryOutcome, error) {
	conn, err := s.Targets.Conn(d.Consumer)
	if err != nil {
		return 0, err
	}
	env, err := document.SealSnapshot(s.Signer, snapshot)
	if err != nil {
		return 0, err
	}
	failpoint.Hit(failpoint.CenterDeliveryBeforeCall)
	answer, err := consumerv1.NewDispatchServiceClient(conn).DeliverSnapshot(ctx, &consumerv1.DeliverSnapshotRequest{
		TenantId: d.TenantID, CollectionId: d.CollectionID, Key: snapshot.Key, Snapshot: document.EnvelopeToProto(env),
	})
	failpoint.Hit(failpoint.CenterDeliveryAfterCall)
	switch {
	case err != nil:
		return 0, fmt.Errorf("deliver to %s: %w", d.Consumer, err)
	case answer.GetEventId() != snapshot.EventID:
		return 0, fault.New(fault.Unavailable, "%s answered about another event", d.Consumer)
	}
	return answer.GetOutcome(), nil
}
