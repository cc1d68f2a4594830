package admin

import (
	"context"
	"strings"
	"unicode/utf8"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/internal/cursor"
)

// ListCollections lists what ever had work, by tenant and collection.
func (s *Server) ListCollections(ctx context.Context, req *consumerv1.ListCollectionsRequest) (*consumerv1.ListCollectionsResponse, error) {
	operator, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if len(req.GetCollectionId()) > maxCollection || !isText(req.GetCollectionId()) {
		return nil, fault.New(fault.InvalidArgument, "the request is malformed").WithField("collection_id", "is text of at most %d bytes", maxCollection)
	}
	size, err := cursor.Size(req.GetPageSize(), defaultRows)
	if err != nil {
		return nil, err
	}
	q := store.CollectionQuery{TenantID: req.GetTenantId(), CollectionID: req.GetCollectionId(), Tenants: operator.Tenants, After: store.FirstScope, Limit: size + 1}
	list := cursor.Of("collections", q.TenantID, q.CollectionID)
	last, err := cursor.Resume[store.Scope](list, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	if last != nil && isText(last.CollectionID) {
		q.After = *last
	}
	rows, err := s.Store.ListCollections(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := &consumerv1.ListCollectionsResponse{}
	if len(rows) > size {
		rows = rows[:size]
		answer.NextPageToken = cursor.After(list, store.Scope{TenantID: rows[size-1].TenantID, CollectionID: rows[size-1].CollectionID})
	}
	for i := range rows {
		row := &rows[i]
		shown := &consumerv1.CollectionStatus{
			TenantId: row.TenantID, CollectionId: row.CollectionID, ProvenEqualAt: stamp(row.ProvenAt),
			Newest: s.toProto(&row.Work, nil), Quarantined: row.Quarantined,
		}
		if row.ProvenBy != nil {
			shown.ProvenBy = protocol.FormatID(*row.ProvenBy)
		}
		answer.Collections = append(answer.Collections, shown)
	}
	return answer, nil
}

// isText tells what a column of type text can hold.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
