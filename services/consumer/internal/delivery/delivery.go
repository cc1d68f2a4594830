// Package delivery applies records that the center pushes when they change.
//
// It promises: nothing is written but from a snapshot that the one configured
// source signed for this consumer, outside any task, whose content gives the
// hash it states; a delivered word never lowers a revision, never overwrites an
// equal one, and never brings back what a newer word retired; the host's own
// columns stay as they are; the same word twice is the same as once.
//
// It is the only entry for words nobody asked for. A repair's words are bound to
// a task and a nonce and are refused here, as delivered ones are there; neither
// writes the other's receipts.
package delivery

import (
	"context"

	"go.uber.org/zap"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/center"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/store"
)

// maxID bounds names that end up in the host's rows.
const maxID = 128

// Receiver takes deliveries. All fields but Changed and Metrics are required.
type Receiver struct {
	// Self is the consumer's app key, Source the only center it believes; an
	// empty Source refuses everything.
	Self, Source string
	SourceKeys   func() []evidence.Key
	Store        *store.Store
	Projection   *projection.Projection
	// Enabled is the switch; deliveries are refused while it is off.
	Enabled bool
	// Changed, if set, is told of every row applied, in its transaction.
	Changed repair.Changed
	Metrics *Metrics
	Log     *zap.Logger
}

// DeliverSnapshot verifies a snapshot and applies it by delivery's rule.
func (r *Receiver) DeliverSnapshot(ctx context.Context, req *consumerv1.DeliverSnapshotRequest) (*consumerv1.DeliverSnapshotResponse, error) {
	if peer := identity.PeerFrom(ctx); r.Source == "" || peer != r.Source {
		return nil, fault.New(fault.PermissionDenied, "only the configured source may deliver")
	}
	if !r.Enabled {
		return nil, fault.New(fault.ExecutionDisabled, "delivery is switched off at this consumer")
	}
	s, err := r.open(req)
	if err != nil {
		return nil, r.refuse(err)
	}
	got, err := r.ApplySnapshot(ctx, s)
	if err != nil {
		return nil, r.refuse(err)
	}
	r.Metrics.received(string(got))
	return &consumerv1.DeliverSnapshotResponse{
		Outcome: consumerv1.DeliveryOutcome(consumerv1.DeliveryOutcome_value["DELIVERY_OUTCOME_"+string(got)]), EventId: s.EventID,
	}, nil
}

func (r *Receiver) refuse(err error) error {
	code := fault.ReasonOf(err)
	if code == fault.RollbackDetected {
		r.Log.Error("ROLLBACK_DETECTED: a delivered word is below what the center stated before", zap.Error(err))
	}
	r.Metrics.received("REFUSED")
	return err
}

// open verifies the envelope and what it states. A valid signature alone says
// nothing: the snapshot has to be for this consumer, outside a task, and about
// the record that the call is about.
func (r *Receiver) open(req *consumerv1.DeliverSnapshotRequest) (*protocol.Snapshot, error) {
	s, err := document.OpenSnapshot(document.EnvelopeFromProto(req.GetSnapshot()), r.SourceKeys())
	if err != nil {
		return nil, fault.Wrap(err, center.Refusal(err), "the snapshot does not open")
	}
	want := protocol.Coordinates{
		Source: r.Source, Consumer: r.Self, TenantID: req.GetTenantId(), CollectionID: req.GetCollectionId(), GrantEpoch: s.At.GrantEpoch,
	}
	if code := document.Mismatch(s.At, want); code != "" {
		return nil, fault.New(fault.Reason(code), "the snapshot states other coordinates than the call")
	}
	if _, err := protocol.ParseKey(s.Key); err != nil {
		return nil, fault.Wrap(err, fault.KeyMismatch, "the snapshot names no key")
	}
	_, idErr := protocol.ParseID(s.EventID)
	switch {
	case s.Key != req.GetKey():
		return nil, fault.New(fault.KeyMismatch, "the snapshot is about another record than the call")
	case len(s.Nonce) > 0:
		return nil, fault.New(fault.NonceMismatch, "the snapshot answers somebody's question; it is no delivery")
	case s.At.GrantEpoch < 1 || s.At.CenterEpoch < 0:
		return nil, fault.New(fault.InvalidArgument, "the snapshot's epochs make no sense")
	case s.At.CollectionID == "" || len(s.At.CollectionID) > maxID || idErr != nil:
		return nil, fault.New(fault.InvalidArgument, "the snapshot's collection or event id makes no sense")
	case s.Revision < 1:
		return nil, fault.New(fault.RevisionMismatch, "a snapshot's revision is at least 1")
	}
	sum, err := canon.Sum(s.Content)
	switch {
	case err != nil:
		return nil, fault.Wrap(err, fault.CanonRefused, "the content has no canonical form")
	case sum != s.Hash:
		return nil, fault.New(fault.HashMismatch, "the content does not give the stated hash")
	}
	return s, nil
}
