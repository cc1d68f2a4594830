// Package admin is the operators' side of the consumer.
//
// Reads write nothing. What belongs to a tenant outside the operator's list
// reads as not found and is absent from lists. Every change is audited in its
// own transaction. No answer holds a claim token or key material, and only those
// of ExplainRecord and ListEvidence hold content.
package admin

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/internal/cursor"
)

const (
	defaultPage = 50
	defaultRows = 100
	maxReason   = 500
	statePrefix = "WORK_STATE_"
)

// Rules say who may call the methods.
func Rules() map[string]identity.Rule {
	return map[string]identity.Rule{
		consumerv1.AdminService_ListWork_FullMethodName:         identity.OperatorWith(identity.RoleViewer),
		consumerv1.AdminService_GetWork_FullMethodName:          identity.OperatorWith(identity.RoleViewer),
		consumerv1.AdminService_ListOutcomes_FullMethodName:     identity.OperatorWith(identity.RoleViewer),
		consumerv1.AdminService_ListEvidence_FullMethodName:     identity.OperatorWith(identity.RoleOperator),
		consumerv1.AdminService_ListCollections_FullMethodName:  identity.OperatorWith(identity.RoleViewer),
		consumerv1.AdminService_ListRetired_FullMethodName:      identity.OperatorWith(identity.RoleViewer),
		consumerv1.AdminService_ListQuarantined_FullMethodName:  identity.OperatorWith(identity.RoleViewer),
		consumerv1.AdminService_RestoreRetired_FullMethodName:   identity.OperatorWith(identity.RoleOperator),
		consumerv1.AdminService_RetryQuarantined_FullMethodName: identity.OperatorWith(identity.RoleOperator),
		consumerv1.AdminService_ExplainRecord_FullMethodName:    identity.OperatorWith(identity.RoleOperator),
		consumerv1.AdminService_PauseWork_FullMethodName:        identity.OperatorWith(identity.RoleOperator),
		consumerv1.AdminService_ResumeWork_FullMethodName:       identity.OperatorWith(identity.RoleOperator),
	}
}

// Server implements AdminService.
type Server struct {
	consumerv1.UnimplementedAdminServiceServer

	Store      *store.Store
	Projection *projection.Projection
	// WaitsFor says why a row does not move, None where it does.
	WaitsFor func(*store.Work) fault.Reason
	// Kick wakes the worker after a row was resumed.
	Kick func()
}

// ListWork lists newest first.
func (s *Server) ListWork(ctx context.Context, req *consumerv1.ListWorkRequest) (*consumerv1.ListWorkResponse, error) {
	operator, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultPage)
	if err != nil {
		return nil, err
	}
	q := store.WorkQuery{TenantID: req.GetTenantId(), CollectionID: req.GetCollectionId(), Tenants: operator.Tenants, Limit: size + 1}
	for _, state := range req.GetStates() {
		name := strings.TrimPrefix(state.String(), statePrefix)
		if consumerv1.WorkState_name[int32(state)] == "" || state == consumerv1.WorkState_WORK_STATE_UNSPECIFIED {
			return nil, fault.New(fault.InvalidArgument, "no such state").WithField("states", "%d is not known", int32(state))
		}
		q.States = append(q.States, name)
	}
	list := cursor.Of("work", q.TenantID, q.CollectionID, q.States)
	last, err := cursor.Resume[cursor.Moment](list, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	if last != nil {
		q.Before, q.BeforeID = &last.At, last.ID
	}
	rows, err := s.Store.ListWork(ctx, q)
	if err != nil {
		return nil, err
	}
	resp := &consumerv1.ListWorkResponse{}
	if len(rows) > size {
		rows = rows[:size]
		resp.NextPageToken = cursor.AfterMoment(list, rows[size-1].CreatedAt, rows[size-1].TaskID)
	}
	for _, w := range rows {
		resp.Work = append(resp.Work, s.toProto(w, nil))
	}
	return resp, nil
}

// GetWork shows a row with the ledger's live counts.
func (s *Server) GetWork(ctx context.Context, req *consumerv1.GetWorkRequest) (*consumerv1.GetWorkResponse, error) {
	w, err := s.visible(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	shown, err := s.show(ctx, w)
	if err != nil {
		return nil, err
	}
	return &consumerv1.GetWorkResponse{Work: shown}, nil
}

func (s *Server) show(ctx context.Context, w *store.Work) (*consumerv1.Work, error) {
	counts, err := s.Store.Counts(ctx, w)
	if err != nil {
		return nil, err
	}
	return s.toProto(w, counts), nil
}

// ListOutcomes lists the ledger in key order.
func (s *Server) ListOutcomes(ctx context.Context, req *consumerv1.ListOutcomesRequest) (*consumerv1.ListOutcomesResponse, error) {
	w, err := s.visible(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultRows)
	if err != nil {
		return nil, err
	}
	q := store.OutcomeQuery{Class: req.GetClass(), Outcome: req.GetOutcome(), Limit: size + 1}
	list := cursor.Of("outcomes", w.TaskID, q.Class, q.Outcome)
	if q.After, err = cursor.ResumeKey(list, req.GetPageToken()); err != nil {
		return nil, err
	}
	rows, err := s.Store.ListOutcomes(ctx, w, q)
	if err != nil {
		return nil, err
	}
	resp := &consumerv1.ListOutcomesResponse{}
	if len(rows) > size {
		rows = rows[:size]
		resp.NextPageToken = cursor.AfterKey(list, rows[size-1].Key)
	}
	for i := range rows {
		resp.Outcomes = append(resp.Outcomes, outcomeToProto(&rows[i]))
	}
	return resp, nil
}

// PauseWork keeps a row from being claimed again; a run in hand goes on to its end.
func (s *Server) PauseWork(ctx context.Context, req *consumerv1.PauseWorkRequest) (*consumerv1.PauseWorkResponse, error) {
	shown, err := s.setPaused(ctx, req.GetTaskId(), true, req.GetReason())
	if err != nil {
		return nil, err
	}
	return &consumerv1.PauseWorkResponse{Work: shown}, nil
}

// ResumeWork lets a paused row be claimed again.
func (s *Server) ResumeWork(ctx context.Context, req *consumerv1.ResumeWorkRequest) (*consumerv1.ResumeWorkResponse, error) {
	shown, err := s.setPaused(ctx, req.GetTaskId(), false, req.GetReason())
	if err != nil {
		return nil, err
	}
	s.Kick()
	return &consumerv1.ResumeWorkResponse{Work: shown}, nil
}

func (s *Server) setPaused(ctx context.Context, id string, paused bool, reason string) (*consumerv1.Work, error) {
	if len(reason) > maxReason {
		return nil, fault.New(fault.InvalidArgument, "the reason is too long").WithField("reason", "at most %d bytes", maxReason)
	}
	w, err := s.visible(ctx, id)
	if err != nil {
		return nil, err
	}
	operator, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if w, err = s.Store.SetPaused(ctx, w.TaskID, paused, "operator/"+operator.ID, reason); err != nil {
		return nil, err
	}
	return s.show(ctx, w)
}

// visible reads a row that the operator may see.
func (s *Server) visible(ctx context.Context, id string) (*store.Work, error) {
	operator, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	parsed, err := protocol.ParseID(id)
	if err != nil {
		return nil, fault.Wrap(err, fault.InvalidArgument, "no task id").WithField("task_id", "%s", err)
	}
	w, err := s.Store.Work(ctx, parsed)
	if err != nil {
		return nil, err
	}
	if !operator.MaySee(w.TenantID) {
		return nil, fault.New(fault.TaskNotFound, "no work of task %s", id)
	}
	return w, nil
}

func caller(ctx context.Context) (identity.Operator, error) {
	operator, ok := identity.OperatorFrom(ctx)
	if !ok {
		return operator, fault.New(fault.PermissionDenied, "an operator's token is needed")
	}
	return operator, nil
}

func (s *Server) toProto(w *store.Work, counts []protocol.ClassCount) *consumerv1.Work {
	return &consumerv1.Work{
		TaskId: w.ID(), TenantId: w.TenantID, CollectionId: w.CollectionID, Scope: document.ScopeToProto(w.Scope),
		Key: w.RecordKey, Mode: document.ModeToProto(w.Mode),
		State: consumerv1.WorkState(consumerv1.WorkState_value[statePrefix+string(w.State)]), Phase: phase(w),
		Attempt: int32(w.Attempt), WantedAttempt: int32(w.WantedAttempt), //nolint:gosec // bounded where they are accepted
		Code: w.Code, RetryCount: int32(w.RetryCount), Paused: w.Paused, //nolint:gosec // bounded by max_retries
		DueAt: timestamppb.New(w.DueAt), LeaseUntil: stamp(w.LeaseUntil), Checkpoint: protocol.FormatKey(string(w.CursorKey)),
		RowCount: w.RowCount, CenterRowsScanned: w.CenterScanned, LocalRowsScanned: w.LocalScanned,
		Counts: document.CountsToProto(counts), Fetched: w.Fetched, WireBytes: w.WireBytes,
		Resumed: int32(w.Resumed), RetireCode: w.RetireCode, //nolint:gosec // a handful
		CreatedAt: timestamppb.New(w.CreatedAt), UpdatedAt: timestamppb.New(w.UpdatedAt), EndedAt: stamp(w.EndedAt),
		WaitingBecause: string(s.WaitsFor(w)), ScannedPercent: protocol.Percent(w.CenterScanned, w.RowCount, w.CenterComplete),
	}
}

func phase(w *store.Work) evidencev1.Phase {
	switch w.State {
	case work.Queued, work.Parked:
		return evidencev1.Phase_PHASE_WAITING
	case work.Running:
		if w.CenterComplete && w.LocalComplete {
			return evidencev1.Phase_PHASE_RETIRING
		}
		return evidencev1.Phase_PHASE_SCANNING
	case work.Reporting:
		return evidencev1.Phase_PHASE_REPORTING
	default:
		return evidencev1.Phase_PHASE_UNSPECIFIED
	}
}

func stamp(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}

func outcomeToProto(o *store.Outcome) *consumerv1.Outcome {
	out := &consumerv1.Outcome{
		Key: protocol.FormatKey(o.Key), Class: string(o.Class), Outcome: string(o.Outcome), Code: o.Code,
		EvidenceId: o.EvidenceID, OpId: protocol.FormatID(o.OpID),
		FoundAt: timestamppb.New(o.FoundAt), UpdatedAt: timestamppb.New(o.UpdatedAt),
	}
	out.CenterRevision, out.CenterHash, out.CenterDeleted = triple(o.Center)
	out.LocalRevision, out.LocalHash, out.LocalDeleted = triple(o.Local)
	return out
}

func triple(r *evidence.Row) (revision *int64, hash string, deleted *bool) {
	if r == nil {
		return nil, "", nil
	}
	return &r.Revision, r.Hash.String(), &r.Deleted
}
