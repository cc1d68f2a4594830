// Package dispatch accepts the center's instructions.
//
// Accepting stores and nothing else, whatever the execution switch says:
// receiving is a fact, executing touches data. An instruction is refused as a
// whole unless the one configured source signed it for this very consumer.
package dispatch

import (
	"context"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/center"
	"lockstep.dev/services/consumer/internal/delivery"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
)

const (
	// maxCollection bounds a name that ends up in rows and reports.
	maxCollection = 200
	// maxAttempt is far above what any center dispatches.
	maxAttempt = 1 << 20
)

// Server implements DispatchService.
type Server struct {
	consumerv1.UnimplementedDispatchServiceServer

	// Self is the consumer's app key, Source the only center it obeys; an empty
	// Source refuses everything.
	Self, Source string
	SourceKeys   func() []evidence.Key
	Store        *store.Store
	// Kick wakes the worker after the commit.
	Kick func()
	Log  *zap.Logger
	// Deliveries takes snapshots that the center pushes; nil for none.
	Deliveries *delivery.Receiver
}

// Dispatch stores an instruction.
func (s *Server) Dispatch(ctx context.Context, req *consumerv1.DispatchRequest) (*consumerv1.DispatchResponse, error) {
	if peer := identity.PeerFrom(ctx); s.Source == "" || peer != s.Source {
		return nil, fault.New(fault.PermissionDenied, "only the configured source may dispatch")
	}
	env := document.EnvelopeFromProto(req.GetInstruction())
	in, err := document.OpenInstruction(env, s.SourceKeys())
	if err != nil {
		return nil, fault.Wrap(err, center.Refusal(err), "the instruction does not open")
	}
	if err := s.check(in); err != nil {
		return nil, err
	}
	stored, err := document.MarshalEnvelope(env)
	if err != nil {
		return nil, fault.Wrap(err, fault.InvalidArgument, "the instruction can't be stored")
	}
	accepted, err := s.Store.Accept(ctx, in, stored)
	if err != nil {
		return nil, err
	}
	s.Log.Info("accepted", zap.String("task", in.At.TaskID), zap.Int("attempt", in.Attempt), zap.Stringer("as", acceptance(accepted)))
	s.Kick()
	return &consumerv1.DispatchResponse{
		TaskId: in.At.TaskID, Acceptance: acceptance(accepted), WantedAttempt: int32(accepted.Wanted), //nolint:gosec // bounded by maxAttempt
	}, nil
}

func acceptance(a store.Accepted) consumerv1.Acceptance {
	switch {
	case a.New:
		return consumerv1.Acceptance_ACCEPTANCE_NEW
	case a.Event == work.AcceptedSame:
		return consumerv1.Acceptance_ACCEPTANCE_DUPLICATE
	default:
		return consumerv1.Acceptance_ACCEPTANCE_NEWER
	}
}

// check refuses an instruction that is for somebody else or makes no sense.
func (s *Server) check(in *protocol.Instruction) error {
	if in.At.Source != s.Source || in.At.Consumer != s.Self {
		return fault.New(fault.AudienceMismatch, "the instruction is from %q for %q", in.At.Source, in.At.Consumer)
	}
	bad := fault.New(fault.InvalidArgument, "the instruction makes no sense")
	field := func(ok bool, name, what string) {
		if !ok {
			bad = bad.WithField("instruction."+name, "%s", what)
		}
	}
	_, taskErr := protocol.ParseID(in.At.TaskID)
	_, manifestErr := protocol.ParseID(in.ManifestID)
	_, keyErr := protocol.ParseKey(in.Key)
	field(taskErr == nil, "at.task_id", "no id")
	field(manifestErr == nil, "manifest_id", "no id")
	field(in.At.CollectionID != "" && len(in.At.CollectionID) <= maxCollection, "at.collection_id", "missing or too long")
	field(in.At.GrantEpoch >= 1, "at.grant_epoch", "grants count from 1")
	field(in.At.CenterEpoch >= 0, "at.center_epoch", "negative")
	field(in.Attempt >= 1 && in.Attempt <= maxAttempt, "attempt", "attempts count from 1")
	field(in.Scope == protocol.Collection || in.Scope == protocol.Record, "scope", "a task is about a collection or a record")
	field(in.Scope != protocol.Record || keyErr == nil, "key", "no key")
	field(in.Scope == protocol.Record || in.Key == "", "key", "a collection's task names no record")
	field(!in.WindowStart.IsZero() && in.WindowStart.Before(maxTime), "window_start", "missing or impossible")
	field(in.ManifestRoot != evidence.Node{}, "manifest_root", "missing")
	field(in.RowCount >= 0, "row_count", "negative")
	if len(bad.Fields) > 0 {
		return bad
	}
	return nil
}

// maxTime is far ahead of any clock, and still within PostgreSQL's range.
var maxTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
