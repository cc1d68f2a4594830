package admin

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/internal/cursor"
)

// ListGrants lists grants in the order of their scopes.
func (s *Server) ListGrants(ctx context.Context, req *centerv1.ListGrantsRequest) (*centerv1.ListGrantsResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultPage)
	if err != nil {
		return nil, err
	}
	page := store.GrantPage{Consumer: req.GetConsumer(), TenantID: req.GetTenantId(), Tenants: only(op), Limit: size + 1}
	list := cursor.Of("grants", page.Consumer, page.TenantID)
	if page.After, err = cursor.Resume[store.Scope](list, req.GetPageToken()); err != nil {
		return nil, err
	}
	grants, err := s.Store.Grants(ctx, page)
	if err != nil {
		return nil, err
	}
	answer := &centerv1.ListGrantsResponse{}
	if len(grants) > size {
		grants = grants[:size]
		answer.NextPageToken = cursor.After(list, grants[size-1].Scope)
	}
	for _, g := range grants {
		answer.Grants = append(answer.Grants, grantView(g))
	}
	return answer, nil
}

func grantView(g store.Grant) *centerv1.Grant {
	return &centerv1.Grant{
		Consumer: g.Consumer, TenantId: g.TenantID, CollectionId: g.CollectionID,
		Enabled: g.Enabled, ReadAllowed: g.ReadAllowed, SubscribeAllowed: g.SubscribeAllowed,
		GrantEpoch: g.Epoch, Effective: g.Effective(), UpdatedAt: timestamppb.New(g.UpdatedAt),
	}
}

// SetGrant makes or changes a grant; narrowing cancels its open tasks.
func (s *Server) SetGrant(ctx context.Context, req *centerv1.SetGrantRequest) (*centerv1.SetGrantResponse, error) {
	op, err := s.tenantCaller(ctx, req.GetConsumer(), req.GetTenantId())
	if err != nil {
		return nil, err
	}
	if req.GetCollectionId() == "" || len(req.GetCollectionId()) > maxName {
		return nil, fault.New(fault.InvalidArgument, "malformed grant").WithField("collection_id", "is text of 1 to %d bytes", maxName)
	}
	g, cancelled, err := s.Grants.Set(ctx, store.Grant{
		Scope:   store.Scope{Consumer: req.GetConsumer(), TenantID: req.GetTenantId(), CollectionID: req.GetCollectionId()},
		Enabled: req.GetEnabled(), ReadAllowed: req.GetReadAllowed(), SubscribeAllowed: req.GetSubscribeAllowed(),
	}, actor(op))
	if err != nil {
		return nil, err
	}
	return &centerv1.SetGrantResponse{Grant: grantView(g), CancelledTasks: int32(cancelled)}, nil //nolint:gosec // one open task a scope and record
}

// ListTenants lists what a consumer serves.
func (s *Server) ListTenants(ctx context.Context, req *centerv1.ListTenantsRequest) (*centerv1.ListTenantsResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	tenants, err := s.Store.Tenants(ctx, req.GetConsumer(), only(op))
	if err != nil {
		return nil, err
	}
	return &centerv1.ListTenantsResponse{TenantIds: tenants}, nil
}

// AddTenant registers that a consumer serves a tenant.
func (s *Server) AddTenant(ctx context.Context, req *centerv1.AddTenantRequest) (*centerv1.AddTenantResponse, error) {
	op, err := s.tenantCaller(ctx, req.GetConsumer(), req.GetTenantId())
	if err != nil {
		return nil, err
	}
	return &centerv1.AddTenantResponse{}, s.Grants.AddTenant(ctx, req.GetConsumer(), req.GetTenantId(), actor(op))
}

// RemoveTenant takes a tenant from a consumer, and with it what was granted there.
func (s *Server) RemoveTenant(ctx context.Context, req *centerv1.RemoveTenantRequest) (*centerv1.RemoveTenantResponse, error) {
	op, err := s.tenantCaller(ctx, req.GetConsumer(), req.GetTenantId())
	if err != nil {
		return nil, err
	}
	cancelled, err := s.Grants.RemoveTenant(ctx, req.GetConsumer(), req.GetTenantId(), actor(op))
	if err != nil {
		return nil, err
	}
	return &centerv1.RemoveTenantResponse{CancelledTasks: int32(cancelled)}, nil //nolint:gosec // one open task a scope and record
}

// maxName bounds a consumer's or a collection's name.
const maxName = 200

func (s *Server) tenantCaller(ctx context.Context, consumer string, tenant int64) (op identity.Operator, err error) {
	if op, err = caller(ctx); err != nil {
		return op, err
	}
	bad := fault.New(fault.InvalidArgument, "the request is malformed")
	if consumer == "" || len(consumer) > maxName {
		bad = bad.WithField("consumer", "is text of 1 to %d bytes", maxName)
	}
	if tenant == 0 {
		bad = bad.WithField("tenant_id", "is required")
	}
	if len(bad.Fields) > 0 {
		return op, bad
	}
	return op, within(op, tenant)
}

// ListTargets lists the registered addresses.
func (s *Server) ListTargets(ctx context.Context, _ *centerv1.ListTargetsRequest) (*centerv1.ListTargetsResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	answer := &centerv1.ListTargetsResponse{}
	for _, consumer := range slices.Sorted(maps.Keys(s.Targets)) {
		answer.Targets = append(answer.Targets, &centerv1.ListTargetsResponse_Target{Consumer: consumer, Address: s.Targets[consumer]})
	}
	return answer, nil
}
