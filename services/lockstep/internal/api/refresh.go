package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// SubmitRefresh hands in a request to refresh stored rows. A refusal is an answer.
func (c *Client) SubmitRefresh(ctx context.Context, in *consumerv1.RefreshRequest) (*consumerv1.Submission, error) {
	out := &consumerv1.SubmitResponse{}
	_, err := c.call(ctx, http.MethodPost, "/v1/refresh/tasks", nil, &consumerv1.SubmitRequest{Request: in}, out)
	return out.GetSubmission(), wrap(err, "submit a refresh of %s", in.GetProjection())
}

// RefreshTask reads a refresh task and what it has amounted to.
func (c *Client) RefreshTask(ctx context.Context, id string) (*consumerv1.GetTaskResponse, error) {
	out := &consumerv1.GetTaskResponse{}
	_, err := c.call(ctx, http.MethodGet, "/v1/refresh/tasks/"+url.PathEscape(id), nil, nil, out)
	return out, wrap(err, "read refresh task %s", id)
}

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
