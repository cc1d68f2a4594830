package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
)

// CreateTask makes one task, or one a subscription for scope ALL.
func (c *Client) CreateTask(ctx context.Context, in *centerv1.CreateTaskRequest) (*centerv1.CreateTaskResponse, []byte, error) {
	out := &centerv1.CreateTaskResponse{}
	text, err := c.call(ctx, http.MethodPost, "/v1/tasks", nil, in, out)
	return out, text, wrap(err, "create a task")
}

// Task reads one task.
func (c *Client) Task(ctx context.Context, id string) (*centerv1.Task, []byte, error) {
	out := &centerv1.GetTaskResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/tasks/"+url.PathEscape(id), nil, nil, out)
	return out.GetTask(), text, wrap(err, "read task %s", id)
}

// Tasks reads one page of tasks, newest first.
func (c *Client) Tasks(ctx context.Context, in *centerv1.ListTasksRequest) (*centerv1.ListTasksResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	set(query, "consumer", in.GetConsumer())
	set(query, "collection_id", in.GetCollectionId())
	setInt(query, "tenant_id", in.GetTenantId())
	for _, state := range in.GetStates() {
		query.Add("states", state.String())
	}
	out := &centerv1.ListTasksResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/tasks", query, nil, out)
	return out, text, wrap(err, "list tasks")
}

// CancelTask ends a task that has not ended.
func (c *Client) CancelTask(ctx context.Context, id, reason string) (*centerv1.Task, []byte, error) {
	out := &centerv1.CancelTaskResponse{}
	text, err := c.call(ctx, http.MethodPost, "/v1/tasks/"+url.PathEscape(id)+":cancel", nil, &centerv1.CancelTaskRequest{Reason: reason}, out)
	return out.GetTask(), text, wrap(err, "cancel task %s", id)
}

// Results reads a task's result reports, by attempt.
func (c *Client) Results(ctx context.Context, id string) ([]*centerv1.Result, []byte, error) {
	out := &centerv1.ListResultsResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/tasks/"+url.PathEscape(id)+"/results", nil, nil, out)
	return out.GetResults(), text, wrap(err, "read the results of task %s", id)
}

// Reported reads one page of what a task's reports name, the newest attempt first.
func (c *Client) Reported(ctx context.Context, in *centerv1.ListOutcomesRequest) (*centerv1.ListOutcomesResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	set(query, "code", in.GetCode())
	setInt(query, "attempt", int64(in.GetAttempt()))
	out := &centerv1.ListOutcomesResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/tasks/"+url.PathEscape(in.GetTaskId())+"/outcomes", query, nil, out)
	return out, text, wrap(err, "read what the reports of task %s name", in.GetTaskId())
}

// Grants reads one page of grants.
func (c *Client) Grants(ctx context.Context, in *centerv1.ListGrantsRequest) (*centerv1.ListGrantsResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	set(query, "consumer", in.GetConsumer())
	setInt(query, "tenant_id", in.GetTenantId())
	out := &centerv1.ListGrantsResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/grants", query, nil, out)
	return out, text, wrap(err, "list grants")
}

// SetGrant makes or changes a grant.
func (c *Client) SetGrant(ctx context.Context, in *centerv1.SetGrantRequest) (*centerv1.SetGrantResponse, []byte, error) {
	path := fmt.Sprintf("/v1/grants/%s/%d/%s", url.PathEscape(in.GetConsumer()), in.GetTenantId(), url.PathEscape(in.GetCollectionId()))
	// The coordinates are the path's alone.
	body := &centerv1.SetGrantRequest{
		Enabled: in.GetEnabled(), ReadAllowed: in.GetReadAllowed(), SubscribeAllowed: in.GetSubscribeAllowed(),
	}
	out := &centerv1.SetGrantResponse{}
	text, err := c.call(ctx, http.MethodPut, path, nil, body, out)
	return out, text, wrap(err, "set the grant of %s for tenant %d, %s", in.GetConsumer(), in.GetTenantId(), in.GetCollectionId())
}

// AddTenant registers that a consumer serves a tenant.
func (c *Client) AddTenant(ctx context.Context, consumer string, tenant int64) error {
	path := fmt.Sprintf("/v1/consumers/%s/tenants/%d", url.PathEscape(consumer), tenant)
	_, err := c.call(ctx, http.MethodPut, path, nil, &centerv1.AddTenantRequest{}, &centerv1.AddTenantResponse{})
	return wrap(err, "register tenant %d for %s", tenant, consumer)
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

func page(size int32, token string) url.Values {
	query := url.Values{}
	setInt(query, "page_size", int64(size))
	set(query, "page_token", token)
	return query
}

func set(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

func setInt(query url.Values, name string, value int64) {
	if value != 0 {
		query.Set(name, strconv.FormatInt(value, 10))
	}
}
