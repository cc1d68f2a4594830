package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"google.golang.org/protobuf/proto"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// Stations reads the first page of the stations' sums.
func (c *Client) Stations(ctx context.Context) ([]*consumerv1.StationBills, error) {
	out := &consumerv1.StationSummaryResponse{}
	_, err := c.call(ctx, http.MethodGet, "/v1/bills/stations", nil, nil, out)
	return out.GetStations(), wrap(err, "read the stations' bills")
}

// Bills reads the first page of a station's bills of a month.
func (c *Client) Bills(ctx context.Context, station int64, month int32) ([]*consumerv1.Bill, error) {
	at := strconv.Itoa(int(month))
	query := url.Values{"filter.first_month": {at}, "filter.last_month": {at}}
	setInt(query, "filter.station_ids", station)
	out := &consumerv1.ListBillsResponse{}
	_, err := c.call(ctx, http.MethodGet, "/v1/bills", query, nil, out)
	return out.GetBills(), wrap(err, "read the bills of station %d", station)
}

// refreshPost posts to a refresh task, or to the collection where id is "".
func (c *Client) refreshPost(ctx context.Context, id, verb string, in, out proto.Message) ([]byte, error) {
	path := "/v1/refresh/" + verb
	if id != "" {
		path = "/v1/refresh/tasks/" + url.PathEscape(id) + ":" + verb
	}
	return c.call(ctx, http.MethodPost, path, nil, in, out)
}

// SubmitRefresh hands in a request to refresh stored rows. A refusal is an answer.
func (c *Client) SubmitRefresh(ctx context.Context, in *consumerv1.RefreshRequest) (*consumerv1.Submission, []byte, error) {
	out := &consumerv1.SubmitResponse{}
	text, err := c.refreshPost(ctx, "", "tasks", &consumerv1.SubmitRequest{Request: in}, out)
	return out.GetSubmission(), text, wrap(err, "submit a refresh of %s", in.GetProjection())
}

// RefreshNow submits and waits for the work, for as long as a call may take.
func (c *Client) RefreshNow(ctx context.Context, in *consumerv1.RefreshRequest) (*consumerv1.RefreshNowResponse, []byte, error) {
	out := &consumerv1.RefreshNowResponse{}
	text, err := c.refreshPost(ctx, "", "now", &consumerv1.RefreshNowRequest{Request: in}, out)
	return out, text, wrap(err, "refresh %s now", in.GetProjection())
}

// RefreshTasks reads one page of refresh tasks, newest first.
func (c *Client) RefreshTasks(ctx context.Context, in *consumerv1.ListTasksRequest) (*consumerv1.ListTasksResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	set(query, "projection", in.GetProjection())
	set(query, "business_key", in.GetBusinessKey())
	for _, state := range in.GetStates() {
		query.Add("states", state.String())
	}
	out := &consumerv1.ListTasksResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/refresh/tasks", query, nil, out)
	return out, text, wrap(err, "list refresh tasks")
}

// RefreshTask reads a refresh task and what it has amounted to.
func (c *Client) RefreshTask(ctx context.Context, id string) (*consumerv1.GetTaskResponse, []byte, error) {
	out := &consumerv1.GetTaskResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/refresh/tasks/"+url.PathEscape(id), nil, nil, out)
	return out, text, wrap(err, "read refresh task %s", id)
}

// RefreshScopes reads one page of a task's scopes, in their order.
func (c *Client) RefreshScopes(ctx context.Context, in *consumerv1.ListScopesRequest) (*consumerv1.ListScopesResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	for _, state := range in.GetStates() {
		query.Add("states", state.String())
	}
	out := &consumerv1.ListScopesResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/refresh/tasks/"+url.PathEscape(in.GetTaskId())+"/scopes", query, nil, out)
	return out, text, wrap(err, "list the scopes of refresh task %s", in.GetTaskId())
}

// RetryRefresh wakes pending and failed tasks by their codes or keys.
func (c *Client) RetryRefresh(ctx context.Context, codes, keys []string) ([]string, []byte, error) {
	out := &consumerv1.RetryResponse{}
	text, err := c.refreshPost(ctx, "", "tasks:retry", &consumerv1.RetryRequest{TaskCodes: codes, BusinessKeys: keys}, out)
	return out.GetTaskIds(), text, wrap(err, "retry refresh tasks")
}

// ForceRefresh makes a task due now with its whole budget.
func (c *Client) ForceRefresh(ctx context.Context, id, reason string) (*consumerv1.RefreshTask, []byte, error) {
	out := &consumerv1.ForceResponse{}
	text, err := c.refreshPost(ctx, id, "force", &consumerv1.ForceRequest{Reason: reason}, out)
	return out.GetTask(), text, wrap(err, "force refresh task %s", id)
}

// CancelRefresh ends a task.
func (c *Client) CancelRefresh(ctx context.Context, id, reason string) (*consumerv1.RefreshTask, []byte, error) {
	out := &consumerv1.CancelResponse{}
	text, err := c.refreshPost(ctx, id, "cancel", &consumerv1.CancelRequest{Reason: reason}, out)
	return out.GetTask(), text, wrap(err, "cancel refresh task %s", id)
}

// ReopenRefresh lets a cancelled task rise again.
func (c *Client) ReopenRefresh(ctx context.Context, id, reason string) (*consumerv1.RefreshTask, []byte, error) {
	out := &consumerv1.ReopenResponse{}
	text, err := c.refreshPost(ctx, id, "reopen", &consumerv1.ReopenRequest{Reason: reason}, out)
	return out.GetTask(), text, wrap(err, "reopen refresh task %s", id)
}
