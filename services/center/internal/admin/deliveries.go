package admin

import (
	"context"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/internal/cursor"
)

const deliveryStatePrefix = "DELIVERY_STATE_"

// ListFailedDeliveries lists what was given up, or is in the states asked for.
func (s *Server) ListFailedDeliveries(ctx context.Context, req *centerv1.ListFailedDeliveriesRequest) (*centerv1.ListFailedDeliveriesResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultPage)
	if err != nil {
		return nil, err
	}
	page := store.DeliveryPage{
		Consumer: req.GetConsumer(), TenantID: req.GetTenantId(), CollectionID: req.GetCollectionId(), Code: req.GetCode(),
		Tenants: only(op), Limit: size + 1,
	}
	for _, state := range req.GetStates() {
		name, known := centerv1.DeliveryState_name[int32(state)]
		if !known || state == centerv1.DeliveryState_DELIVERY_STATE_UNSPECIFIED {
			return nil, fault.New(fault.InvalidArgument, "malformed list request").WithField("states", "are delivery states")
		}
		page.States = append(page.States, store.DeliveryState(name[len(deliveryStatePrefix):]))
	}
	if len(page.States) == 0 {
		page.States = []store.DeliveryState{store.DeliveryFailed}
	}
	list := cursor.Of("deliveries", page.Consumer, page.TenantID, page.CollectionID, page.Code, page.States)
	if page.AfterTime, page.AfterID, err = cursor.ResumeMoment(list, req.GetPageToken()); err != nil {
		return nil, err
	}
	rows, err := s.Store.Deliveries(ctx, page)
	if err != nil {
		return nil, err
	}
	answer := &centerv1.ListFailedDeliveriesResponse{}
	if len(rows) > size {
		rows = rows[:size]
		answer.NextPageToken = cursor.AfterMoment(list, rows[size-1].UpdatedAt, rows[size-1].ID)
	}
	for _, d := range rows {
		answer.Deliveries = append(answer.Deliveries, deliveryView(d))
	}
	return answer, nil
}

func deliveryView(d *store.Delivery) *centerv1.Delivery {
	v := &centerv1.Delivery{
		DeliveryId: protocol.FormatID(d.ID), Consumer: d.Consumer, TenantId: d.TenantID, CollectionId: d.CollectionID,
		Key: protocol.FormatKey(d.Key), State: centerv1.DeliveryState(centerv1.DeliveryState_value[deliveryStatePrefix+string(d.State)]),
		Code: d.Code, Attempts: int32(d.Attempts), Outcome: d.Outcome, EventId: d.EventID, //nolint:gosec // bounded by max_attempts
		CreatedAt: stamp(d.CreatedAt), UpdatedAt: stamp(d.UpdatedAt),
	}
	if d.Revision != nil {
		v.Revision = *d.Revision
	}
	if d.EndedAt != nil {
		v.EndedAt = stamp(*d.EndedAt)
	}
	if d.State == store.DeliveryPending {
		v.DueAt = stamp(d.DueAt)
	}
	return v
}

// GetDelivery shows one delivery.
func (s *Server) GetDelivery(ctx context.Context, req *centerv1.GetDeliveryRequest) (*centerv1.GetDeliveryResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	d, err := s.visibleDelivery(ctx, op, req.GetDeliveryId())
	if err != nil {
		return nil, err
	}
	return &centerv1.GetDeliveryResponse{Delivery: deliveryView(d)}, nil
}

// visibleDelivery reads a delivery that the operator may see.
func (s *Server) visibleDelivery(ctx context.Context, op identity.Operator, name string) (*store.Delivery, error) {
	id, err := protocol.ParseID(name)
	if err != nil {
		return nil, fault.New(fault.InvalidArgument, "malformed delivery id").WithField("delivery_id", "%s", err)
	}
	d, err := s.Store.Delivery(ctx, id)
	if err == nil && !op.MaySee(d.TenantID) {
		err = fault.New(fault.NotFound, "there is no delivery %s", name)
	}
	return d, err
}

// ReplayDelivery sends the record of a delivery again.
func (s *Server) ReplayDelivery(ctx context.Context, req *centerv1.ReplayDeliveryRequest) (*centerv1.ReplayDeliveryResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	d, err := s.visibleDelivery(ctx, op, req.GetDeliveryId())
	if err != nil {
		return nil, err
	}
	d, err = s.replay(ctx, op, d.Scope, d.Key, req.GetReason())
	if err != nil {
		return nil, err
	}
	return &centerv1.ReplayDeliveryResponse{Delivery: deliveryView(d)}, nil
}

// ReplayRecord sends a record's current value to a consumer.
func (s *Server) ReplayRecord(ctx context.Context, req *centerv1.ReplayRecordRequest) (*centerv1.ReplayRecordResponse, error) {
	op, err := s.tenantCaller(ctx, req.GetConsumer(), req.GetTenantId())
	if err != nil {
		return nil, err
	}
	key, err := recordKey(req.GetKey(), req.GetCollectionId())
	if err != nil {
		return nil, err
	}
	sc := store.Scope{Consumer: req.GetConsumer(), TenantID: req.GetTenantId(), CollectionID: req.GetCollectionId()}
	d, err := s.replay(ctx, op, sc, key, req.GetReason())
	if err != nil {
		return nil, err
	}
	return &centerv1.ReplayRecordResponse{Delivery: deliveryView(d)}, nil
}

// recordKey checks what names a record within a tenant.
func recordKey(key, collection string) (raw string, err error) {
	bad := fault.New(fault.InvalidArgument, "the request is malformed")
	if raw, err = protocol.ParseKey(key); err != nil {
		bad = bad.WithField("key", "%s", err)
	}
	if collection == "" || len(collection) > maxName {
		bad = bad.WithField("collection_id", "is text of 1 to %d bytes", maxName)
	}
	if len(bad.Fields) > 0 {
		return "", bad
	}
	return raw, nil
}

// replay queues a record. The grant is checked before anything else happens, under
// the lock that keeps a revocation waiting.
func (s *Server) replay(ctx context.Context, op identity.Operator, sc store.Scope, key, reason string) (*store.Delivery, error) {
	if len(reason) > maxCancelReason {
		return nil, fault.New(fault.InvalidArgument, "malformed request").WithField("reason", "is at most %d bytes", maxCancelReason)
	}
	if !s.Delivering {
		return nil, fault.New(fault.Unavailable, "delivery is switched off: see delivery.enabled and dataset.outbox")
	}
	object := "record/" + sc.String() + "/" + protocol.FormatKey(key)
	d, err := s.Store.Replay(ctx, sc, key, reason, actor(op), object)
	if err == nil {
		s.WakeDelivery()
	}
	return d, err
}
