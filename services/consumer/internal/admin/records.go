package admin

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/internal/cursor"
)

// maxCollection bounds a collection's name.
const maxCollection = 200

// record names one record of an operator's request.
type record struct {
	operator identity.Operator
	at       projection.Scope
	key      string // raw
}

func (r record) object() string {
	return "record " + protocol.FormatKey(r.key) + " of " + r.at.CollectionID
}

// asked checks what names a record, or with no key a collection, and that the
// operator may see its tenant.
func asked(ctx context.Context, tenant int64, collection string, key *string, reason string) (r record, err error) {
	if r.operator, err = caller(ctx); err != nil {
		return r, err
	}
	bad := fault.New(fault.InvalidArgument, "the request is malformed")
	if tenant == 0 {
		bad = bad.WithField("tenant_id", "is required")
	}
	if len(collection) > maxCollection {
		bad = bad.WithField("collection_id", "is at most %d bytes", maxCollection)
	}
	if len(reason) > maxReason {
		bad = bad.WithField("reason", "at most %d bytes", maxReason)
	}
	if key != nil {
		if r.key, err = protocol.ParseKey(*key); err != nil {
			bad = bad.WithField("key", "%s", err)
		}
	}
	if len(bad.Fields) > 0 {
		return r, bad
	}
	if !r.operator.MaySee(tenant) {
		return r, fault.New(fault.NotFound, "there is no tenant %d", tenant)
	}
	r.at = projection.Scope{TenantID: tenant, CollectionID: collection}
	return r, nil
}

func needsCollection(collection string) error {
	if collection == "" {
		return fault.New(fault.InvalidArgument, "the request is malformed").WithField("collection_id", "is required")
	}
	return nil
}

// ListRetired lists the retired rows of a collection in key order.
func (s *Server) ListRetired(ctx context.Context, req *consumerv1.ListRetiredRequest) (*consumerv1.ListRetiredResponse, error) {
	r, err := asked(ctx, req.GetTenantId(), req.GetCollectionId(), nil, "")
	if err != nil {
		return nil, err
	}
	if err := needsCollection(req.GetCollectionId()); err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultRows)
	if err != nil {
		return nil, err
	}
	list := cursor.Of("retired", r.at.TenantID, r.at.CollectionID)
	last, err := cursor.ResumeKey(list, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	var after *string
	if last != "" {
		after = &last
	}
	rows, err := s.Projection.RetiredRows(ctx, r.at, after, size+1)
	if err != nil {
		return nil, err
	}
	answer := &consumerv1.ListRetiredResponse{}
	if len(rows) > size {
		rows = rows[:size]
		answer.NextPageToken = cursor.AfterKey(list, rows[size-1].Key)
	}
	keys := make([]string, len(rows))
	for i := range rows {
		keys[i] = rows[i].Key
	}
	floors, err := s.Store.Marks(ctx, r.at.TenantID, r.at.CollectionID, keys)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		row := &rows[i]
		shown := &consumerv1.RetiredRow{
			Key: protocol.FormatKey(row.Key), Revision: row.Revision, ContentHash: row.Hash.String(), Deleted: row.Deleted,
			RetiredAt: timestamppb.New(row.RetiredAt), ProofId: row.ProofID,
		}
		if floor, ok := floors[row.Key]; ok {
			shown.Floor = markView(&floor)
		}
		answer.Rows = append(answer.Rows, shown)
	}
	return answer, nil
}

func markView(m *store.Mark) *consumerv1.HighWater {
	if m == nil {
		return nil
	}
	return &consumerv1.HighWater{CenterEpoch: m.CenterEpoch, Revision: m.Revision, Retired: m.Retired}
}

// RestoreRetired brings a retired row back and holds it.
func (s *Server) RestoreRetired(ctx context.Context, req *consumerv1.RestoreRetiredRequest) (*consumerv1.RestoreRetiredResponse, error) {
	r, err := asked(ctx, req.GetTenantId(), req.GetCollectionId(), &req.Key, req.GetReason())
	if err != nil {
		return nil, err
	}
	if err := needsCollection(req.GetCollectionId()); err != nil {
		return nil, err
	}
	done, err := s.Store.InOperation(ctx, "operator/"+r.operator.ID, "restore", r.object(), req.GetReason(), func(tx store.Tx) (bool, error) {
		return s.Projection.Unretire(ctx, tx, r.at, r.key)
	})
	switch {
	case errors.Is(err, projection.ErrNoHold):
		return nil, fault.Wrap(err, fault.InvalidArgument, "map columns.retire_hold first: without it the next task would retire the row again")
	case err != nil:
		return nil, projection.Coded(err)
	case !done:
		return nil, fault.New(fault.NotFound, "there is no retired row of this key")
	}
	return &consumerv1.RestoreRetiredResponse{}, nil
}

// quarantined is a place in the list: of the records by key, and of one by task.
type quarantined struct {
	Key    string
	TaskID [16]byte
}

// ListQuarantined lists what tasks could not repair, in key order.
func (s *Server) ListQuarantined(ctx context.Context, req *consumerv1.ListQuarantinedRequest) (*consumerv1.ListQuarantinedResponse, error) {
	r, err := asked(ctx, req.GetTenantId(), req.GetCollectionId(), nil, "")
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultRows)
	if err != nil {
		return nil, err
	}
	q := store.QuarantineQuery{TenantID: r.at.TenantID, CollectionID: r.at.CollectionID, Limit: size + 1}
	list := cursor.Of("quarantined", q.TenantID, q.CollectionID)
	after, err := cursor.Resume[quarantined](list, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	if after != nil {
		if q.AfterKey, err = protocol.ParseKey(after.Key); err != nil {
			return nil, cursor.Invalid()
		}
		q.AfterTask = after.TaskID
	}
	rows, err := s.Store.ListQuarantined(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := &consumerv1.ListQuarantinedResponse{}
	if len(rows) > size {
		rows = rows[:size]
		answer.NextPageToken = cursor.After(list, quarantined{Key: protocol.FormatKey(rows[size-1].Key), TaskID: rows[size-1].TaskID})
	}
	for i := range rows {
		answer.Records = append(answer.Records, &consumerv1.QuarantinedRecord{
			TaskId: protocol.FormatID(rows[i].TaskID), CollectionId: rows[i].CollectionID, Outcome: outcomeToProto(&rows[i].Outcome),
		})
	}
	return answer, nil
}

// RetryQuarantined takes a record off the list until a task finds it again.
func (s *Server) RetryQuarantined(ctx context.Context, req *consumerv1.RetryQuarantinedRequest) (*consumerv1.RetryQuarantinedResponse, error) {
	r, err := asked(ctx, req.GetTenantId(), req.GetCollectionId(), &req.Key, req.GetReason())
	if err != nil {
		return nil, err
	}
	if err := needsCollection(req.GetCollectionId()); err != nil {
		return nil, err
	}
	n, err := s.Store.Reopen(ctx, r.at.TenantID, r.at.CollectionID, r.key, r.object(), "operator/"+r.operator.ID, req.GetReason())
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fault.New(fault.NotFound, "no quarantined record of this key")
	}
	return &consumerv1.RetryQuarantinedResponse{Reopened: int32(n)}, nil //nolint:gosec // one a task that is kept
}

// ExplainRecord shows the local row and what is known of it. It is the one
// answer that holds content, so viewers may not ask for it, and no log has it.
func (s *Server) ExplainRecord(ctx context.Context, req *consumerv1.ExplainRecordRequest) (*consumerv1.ExplainRecordResponse, error) {
	r, err := asked(ctx, req.GetTenantId(), req.GetCollectionId(), &req.Key, "")
	if err != nil {
		return nil, err
	}
	if err := needsCollection(req.GetCollectionId()); err != nil {
		return nil, err
	}
	answer := &consumerv1.ExplainRecordResponse{CollectionId: r.at.CollectionID}
	mark, err := s.Store.Mark(ctx, r.at.TenantID, r.at.CollectionID, r.key)
	if err != nil {
		return nil, err
	}
	answer.HighWater = markView(mark)
	receipt, err := s.Store.Receipt(ctx, r.at.TenantID, r.at.CollectionID, r.key)
	if err != nil {
		return nil, err
	}
	answer.LastDelivery = receiptView(receipt)
	row, err := s.Projection.Show(ctx, r.at.TenantID, r.key)
	if err != nil || row == nil {
		return answer, err
	}
	answer.Found, answer.CollectionId, answer.Revision, answer.Deleted = true, row.CollectionID, row.Revision, row.Deleted
	answer.StoredHash, answer.RetireHold, answer.ProjectionVersion = row.Hash.String(), row.Hold, row.Version
	answer.ConflictDetail = row.ConflictDetail
	if !row.RetiredAt.IsZero() {
		answer.RetiredAt = timestamppb.New(row.RetiredAt)
	}
	if !row.Created.IsZero() {
		answer.CreatedAt = timestamppb.New(row.Created)
	}
	return answer, canonical(answer, row.Text)
}

// canonical sets the canonical form of a stored content and its hash.
func canonical(answer *consumerv1.ExplainRecordResponse, text []byte) error {
	hash, err := canon.Sum(text)
	if err != nil {
		answer.Refused = err.Error()
		return nil //nolint:nilerr // that it has none is the answer
	}
	answer.ContentHash = hash.String()
	if text == nil {
		answer.Canonical = "null"
		return nil
	}
	form, err := canon.Append(nil, text)
	if err != nil {
		return fault.Wrap(err, fault.Internal, "content with a hash has a canonical form")
	}
	answer.Canonical = string(form)
	return nil
}

func receiptView(r *store.Receipt) *consumerv1.DeliveryReceipt {
	if r == nil {
		return nil
	}
	return &consumerv1.DeliveryReceipt{
		Outcome: string(r.Outcome), EventId: r.EventID, CenterEpoch: r.CenterEpoch, Revision: r.Revision,
		ContentHash: r.Hash.String(), Deleted: r.Deleted, ReceivedAt: timestamppb.New(r.ReceivedAt),
	}
}
