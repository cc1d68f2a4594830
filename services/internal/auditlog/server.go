package auditlog

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
	"lockstep.dev/services/internal/cursor"
)

const (
	defaultPage = 50
	maxText     = 300 // of a filter; nothing longer is ever written
)

// Rules say who may call the methods.
func Rules() map[string]identity.Rule {
	return map[string]identity.Rule{
		auditv1.AuditService_ListAudit_FullMethodName: identity.OperatorWith(identity.RoleViewer),
		auditv1.AuditService_ListSeals_FullMethodName: identity.OperatorWith(identity.RoleViewer),
	}
}

// Server shows the log to operators.
type Server struct {
	auditv1.UnimplementedAuditServiceServer

	Pool *pgxpool.Pool
}

// ListAudit lists rows, newest first unless asked otherwise.
func (s *Server) ListAudit(ctx context.Context, req *auditv1.ListAuditRequest) (*auditv1.ListAuditResponse, error) {
	if err := seesAll(ctx); err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultPage)
	if err != nil {
		return nil, err
	}
	q := Query{Actor: req.GetActor(), Action: req.GetAction(), Object: req.GetObject(), OldestFirst: req.GetOldestFirst(), Limit: size + 1}
	bad := fault.New(fault.InvalidArgument, "malformed filter")
	for name, text := range map[string]string{"actor": q.Actor, "action": q.Action, "object": q.Object} {
		if len(text) > maxText {
			bad = bad.WithField(name, "at most %d bytes", maxText)
		}
	}
	for name, at := range map[string]*timestamppb.Timestamp{"from": req.GetFrom(), "before": req.GetBefore()} {
		if at != nil && at.CheckValid() != nil {
			bad = bad.WithField(name, "no moment")
		}
	}
	if len(bad.Fields) > 0 {
		return nil, bad
	}
	if req.GetFrom() != nil {
		q.From = req.GetFrom().AsTime()
	}
	if req.GetBefore() != nil {
		q.Before = req.GetBefore().AsTime()
	}
	list := cursor.Of("audit", q.Actor, q.Action, q.Object, q.From, q.Before, q.OldestFirst)
	if q.After, err = after(list, req.GetPageToken()); err != nil {
		return nil, err
	}
	rows, err := List(ctx, s.Pool, q)
	if err != nil {
		return nil, err
	}
	answer := &auditv1.ListAuditResponse{}
	if len(rows) > size {
		rows = rows[:size]
		answer.NextPageToken = cursor.After(list, rows[size-1].ID)
	}
	for _, r := range rows {
		answer.Rows = append(answer.Rows, &auditv1.AuditRow{
			AuditId: r.ID, At: timestamppb.New(r.At), Actor: r.Actor, Action: r.Action, Object: r.Object, Decision: r.Decision, Reason: r.Reason,
		})
	}
	return answer, nil
}

// ListSeals lists seals, newest first unless asked otherwise.
func (s *Server) ListSeals(ctx context.Context, req *auditv1.ListSealsRequest) (*auditv1.ListSealsResponse, error) {
	if err := seesAll(ctx); err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultPage)
	if err != nil {
		return nil, err
	}
	list := cursor.Of("seals", req.GetOldestFirst())
	last, err := after(list, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	seals, err := Seals(ctx, s.Pool, req.GetOldestFirst(), last, size+1)
	if err != nil {
		return nil, err
	}
	answer := &auditv1.ListSealsResponse{}
	if len(seals) > size {
		seals = seals[:size]
		answer.NextPageToken = cursor.After(list, seals[size-1].Seal)
	}
	for _, seal := range seals {
		env, err := document.UnmarshalEnvelope(seal.Head)
		if err != nil {
			return nil, fmt.Errorf("audit seal %d: %w", seal.Seal, err)
		}
		answer.Seals = append(answer.Seals, &auditv1.AuditSeal{
			SealId: seal.Seal, FirstId: seal.FirstID, LastId: seal.LastID, RowCount: int32(seal.Rows), //nolint:gosec // a seal's batch is bounded
			Previous: hex.EncodeToString(seal.Previous), Hash: hex.EncodeToString(seal.Hash),
			SealedAt: timestamppb.New(seal.SealedAt), Head: document.EnvelopeToProto(env),
		})
	}
	return answer, nil
}

// seesAll: a row may be about any tenant, and does not say which.
func seesAll(ctx context.Context) error {
	operator, ok := identity.OperatorFrom(ctx)
	switch {
	case !ok:
		return fault.New(fault.PermissionDenied, "an operator's token is needed")
	case len(operator.Tenants) > 0:
		return fault.New(fault.PermissionDenied, "the audit log is for operators who may see every tenant")
	}
	return nil
}

// after is the last id of the page before, 0 for the first page.
func after(list cursor.List, token string) (int64, error) {
	last, err := cursor.Resume[int64](list, token)
	if last == nil {
		return 0, err
	}
	return *last, nil
}
