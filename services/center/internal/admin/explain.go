package admin

import (
	"context"
	"fmt"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/fault"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/source"
)

// ExplainRecord shows the record as it is at the source now, with the canonical
// form that its hash is of. It is the one answer of this service that holds
// content, so viewers may not ask for it, and no log has it.
func (s *Server) ExplainRecord(ctx context.Context, req *centerv1.ExplainRecordRequest) (*centerv1.ExplainRecordResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetTenantId() == 0 {
		return nil, fault.New(fault.InvalidArgument, "the request is malformed").WithField("tenant_id", "is required")
	}
	if err := within(op, req.GetTenantId()); err != nil {
		return nil, err
	}
	key, err := recordKey(req.GetKey(), req.GetCollectionId())
	if err != nil {
		return nil, err
	}
	now, err := s.Source.Current(ctx, source.Range{TenantID: req.GetTenantId(), CollectionID: req.GetCollectionId()}, []string{key}, canon.MaxBytes)
	if err != nil {
		return nil, err
	}
	row := now.Rows[key]
	if row == nil {
		return &centerv1.ExplainRecordResponse{Elsewhere: now.Elsewhere[key] && len(op.Tenants) == 0}, nil
	}
	answer := &centerv1.ExplainRecordResponse{
		Found: true, Revision: row.Revision, Deleted: row.Deleted, SchemaVersion: row.SchemaVersion, Sequence: row.Sequence,
	}
	hash, err := canon.Sum(row.Content)
	if err != nil {
		answer.Refused = err.Error()
		if row.TooLong() {
			answer.Refused = fmt.Sprintf("the content is longer than %d MiB", canon.MaxBytes>>20)
		}
		return answer, nil
	}
	answer.ContentHash = hash.String()
	if row.Content == nil {
		answer.Canonical = "null"
		return answer, nil
	}
	form, err := canon.Append(nil, row.Content)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "content with a hash has a canonical form")
	}
	answer.Canonical = string(form)
	return answer, nil
}
