package api

import (
	"context"
	"net/http"
	"net/url"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// Work reads one row of work.
func (c *Client) Work(ctx context.Context, id string) (*consumerv1.Work, []byte, error) {
	out := &consumerv1.GetWorkResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/work/"+url.PathEscape(id), nil, nil, out)
	return out.GetWork(), text, wrap(err, "read work %s", id)
}

// WorkList reads one page of work, newest first.
func (c *Client) WorkList(ctx context.Context, in *consumerv1.ListWorkRequest) (*consumerv1.ListWorkResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	set(query, "collection_id", in.GetCollectionId())
	setInt(query, "tenant_id", in.GetTenantId())
	for _, state := range in.GetStates() {
		query.Add("states", state.String())
	}
	out := &consumerv1.ListWorkResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/work", query, nil, out)
	return out, text, wrap(err, "list work")
}

// Outcomes reads one page of a task's ledger, in key order.
func (c *Client) Outcomes(ctx context.Context, in *consumerv1.ListOutcomesRequest) (*consumerv1.ListOutcomesResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	set(query, "class", in.GetClass())
	set(query, "outcome", in.GetOutcome())
	out := &consumerv1.ListOutcomesResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/work/"+url.PathEscape(in.GetTaskId())+"/outcomes", query, nil, out)
	return out, text, wrap(err, "read the outcomes of %s", in.GetTaskId())
}

// PauseWork holds a task at its checkpoint.
func (c *Client) PauseWork(ctx context.Context, id, reason string) (*consumerv1.Work, []byte, error) {
	out := &consumerv1.PauseWorkResponse{}
	text, err := c.call(ctx, http.MethodPost, "/v1/work/"+url.PathEscape(id)+":pause", nil, &consumerv1.PauseWorkRequest{Reason: reason}, out)
	return out.GetWork(), text, wrap(err, "pause %s", id)
}

// ResumeWork lets a paused task go on.
func (c *Client) ResumeWork(ctx context.Context, id, reason string) (*consumerv1.Work, []byte, error) {
	out := &consumerv1.ResumeWorkResponse{}
	text, err := c.call(ctx, http.MethodPost, "/v1/work/"+url.PathEscape(id)+":resume", nil, &consumerv1.ResumeWorkRequest{Reason: reason}, out)
	return out.GetWork(), text, wrap(err, "resume %s", id)
}
