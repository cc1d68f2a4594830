package admin

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/store"
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
	size, err := pageSize(req.GetPageSize(), defaultRows)
	if err != nil {
		return nil, err
	}
	q := store.CollectionQuery{TenantID: req.GetTenantId(), CollectionID: req.GetCollectionId(), Tenants: operator.Tenants, Limit: size + 1}
	if q.After, err = parseScope(req.GetPageToken()); err != nil {
		return nil, err
	}
	rows, err := s.Store.ListCollections(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := &consumerv1.ListCollectionsResponse{}
	if len(rows) > size {
		rows = rows[:size]
		answer.NextPageToken = formatScope(rows[size-1].TenantID, rows[size-1].CollectionID)
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

// A page token is the last tenant and collection.
func formatScope(tenant int64, collection string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(tenant, 10) + tokenDivider + collection))
}

func parseScope(token string) (store.Scope, error) {
	if token == "" {
		return store.FirstScope, nil
	}
	if text, err := base64.RawURLEncoding.DecodeString(token); err == nil {
		tenant, collection, found := strings.Cut(string(text), tokenDivider)
		if id, err := strconv.ParseInt(tenant, 10, 64); err == nil && found && isText(collection) {
			return store.Scope{TenantID: id, CollectionID: collection}, nil
		}
	}
	return store.Scope{}, fault.New(fault.CursorInvalid, "the page token is not one of this list")
}

// isText tells what a column of type text can hold.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
