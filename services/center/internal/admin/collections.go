package admin

import (
	"context"

	"github.com/google/uuid"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
	"lockstep.dev/services/internal/cursor"
)

// ListCollections lists the granted scopes in their order, and how each stands.
func (s *Server) ListCollections(ctx context.Context, req *centerv1.ListCollectionsRequest) (*centerv1.ListCollectionsResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultRows)
	if err != nil {
		return nil, err
	}
	page := store.CollectionPage{
		GrantPage:    store.GrantPage{Consumer: req.GetConsumer(), TenantID: req.GetTenantId(), Tenants: only(op), Limit: size + 1},
		CollectionID: req.GetCollectionId(),
	}
	list := cursor.Of("collections", page.Consumer, page.TenantID, page.CollectionID)
	if page.After, err = cursor.Resume[store.Scope](list, req.GetPageToken()); err != nil {
		return nil, err
	}
	collections, err := s.Store.Collections(ctx, page)
	if err != nil {
		return nil, err
	}
	answer := &centerv1.ListCollectionsResponse{}
	if len(collections) > size {
		collections = collections[:size]
		answer.NextPageToken = cursor.After(list, collections[size-1].Scope)
	}
	answer.Collections, err = s.collectionViews(ctx, op, collections)
	return answer, err
}

func (s *Server) collectionViews(ctx context.Context, op identity.Operator, collections []store.Collection) ([]*centerv1.CollectionStatus, error) {
	var tasks []*task.Task
	for _, c := range collections {
		if c.Newest != nil {
			tasks = append(tasks, c.Newest)
		}
	}
	newest, err := s.views(ctx, op, tasks)
	if err != nil {
		return nil, err
	}
	out := make([]*centerv1.CollectionStatus, len(collections))
	for i, c := range collections {
		out[i] = &centerv1.CollectionStatus{
			Consumer: c.Consumer, TenantId: c.TenantID, CollectionId: c.CollectionID, Effective: c.Effective(),
			ProvenEqualAt: stamp(c.ProvenAt), RowCount: c.Rows,
		}
		if c.ProvenBy != uuid.Nil {
			out[i].ProvenBy = protocol.FormatID(c.ProvenBy)
		}
		if c.Newest != nil {
			out[i].Newest, newest = newest[0], newest[1:]
		}
	}
	return out, nil
}
