package api

import (
	"context"
	"net/http"
	"net/url"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// FailedDeliveries reads one page of deliveries, those that moved last first.
func (c *Client) FailedDeliveries(ctx context.Context, in *centerv1.ListFailedDeliveriesRequest) (*centerv1.ListFailedDeliveriesResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	set(query, "consumer", in.GetConsumer())
	set(query, "collection_id", in.GetCollectionId())
	set(query, "code", in.GetCode())
	setInt(query, "tenant_id", in.GetTenantId())
	for _, state := range in.GetStates() {
		query.Add("states", state.String())
	}
	out := &centerv1.ListFailedDeliveriesResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/deliveries", query, nil, out)
	return out, text, wrap(err, "list deliveries")
}

// ReplayDelivery sends the record of a delivery again.
func (c *Client) ReplayDelivery(ctx context.Context, id, reason string) (*centerv1.Delivery, []byte, error) {
	out := &centerv1.ReplayDeliveryResponse{}
	text, err := c.call(ctx, http.MethodPost, "/v1/deliveries/"+url.PathEscape(id)+":replay", nil, &centerv1.ReplayDeliveryRequest{Reason: reason}, out)
	return out.GetDelivery(), text, wrap(err, "replay delivery %s", id)
}

// ReplayRecord sends a record's current value to a consumer.
func (c *Client) ReplayRecord(ctx context.Context, in *centerv1.ReplayRecordRequest) (*centerv1.Delivery, []byte, error) {
	// The key is the path's alone.
	body := &centerv1.ReplayRecordRequest{Consumer: in.GetConsumer(), TenantId: in.GetTenantId(), CollectionId: in.GetCollectionId(), Reason: in.GetReason()}
	out := &centerv1.ReplayRecordResponse{}
	text, err := c.call(ctx, http.MethodPost, "/v1/records/"+url.PathEscape(in.GetKey())+":replay", nil, body, out)
	return out.GetDelivery(), text, wrap(err, "replay record %s", in.GetKey())
}

// CenterRecord shows a record at the center.
func (c *Client) CenterRecord(ctx context.Context, tenant int64, collection, key string) (*centerv1.ExplainRecordResponse, []byte, error) {
	out := &centerv1.ExplainRecordResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/records/"+url.PathEscape(key), within(tenant, collection), nil, out)
	return out, text, wrap(err, "explain record %s at the center", key)
}

// ConsumerRecord shows a record at the consumer.
func (c *Client) ConsumerRecord(ctx context.Context, tenant int64, collection, key string) (*consumerv1.ExplainRecordResponse, []byte, error) {
	out := &consumerv1.ExplainRecordResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/records/"+url.PathEscape(key), within(tenant, collection), nil, out)
	return out, text, wrap(err, "explain record %s at the consumer", key)
}

func within(tenant int64, collection string) url.Values {
	query := url.Values{}
	setInt(query, "tenant_id", tenant)
	set(query, "collection_id", collection)
	return query
}

// Retired reads one page of a collection's retired rows, in key order.
func (c *Client) Retired(ctx context.Context, in *consumerv1.ListRetiredRequest) (*consumerv1.ListRetiredResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	set(query, "collection_id", in.GetCollectionId())
	setInt(query, "tenant_id", in.GetTenantId())
	out := &consumerv1.ListRetiredResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/retired", query, nil, out)
	return out, text, wrap(err, "list retired rows")
}

// RestoreRetired brings a retired row back.
func (c *Client) RestoreRetired(ctx context.Context, tenant int64, collection, key, reason string) ([]byte, error) {
	body := &consumerv1.RestoreRetiredRequest{TenantId: tenant, CollectionId: collection, Reason: reason}
	text, err := c.call(ctx, http.MethodPost, "/v1/retired/"+url.PathEscape(key)+":restore", nil, body, &consumerv1.RestoreRetiredResponse{})
	return text, wrap(err, "restore %s", key)
}

// Quarantined reads one page of quarantined records, in key order.
func (c *Client) Quarantined(ctx context.Context, in *consumerv1.ListQuarantinedRequest) (*consumerv1.ListQuarantinedResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	set(query, "collection_id", in.GetCollectionId())
	setInt(query, "tenant_id", in.GetTenantId())
	out := &consumerv1.ListQuarantinedResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/quarantined", query, nil, out)
	return out, text, wrap(err, "list quarantined records")
}

// RetryQuarantined takes a record off the list until it is found again.
func (c *Client) RetryQuarantined(ctx context.Context, tenant int64, collection, key, reason string) (*consumerv1.RetryQuarantinedResponse, []byte, error) {
	body := &consumerv1.RetryQuarantinedRequest{TenantId: tenant, CollectionId: collection, Reason: reason}
	out := &consumerv1.RetryQuarantinedResponse{}
	text, err := c.call(ctx, http.MethodPost, "/v1/quarantined/"+url.PathEscape(key)+":retry", nil, body, out)
	return out, text, wrap(err, "retry %s", key)
}
