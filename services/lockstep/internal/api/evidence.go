package api

import (
	"context"
	"net/http"
	"net/url"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// Evidence reads the signed words that the center has of a task, and of a key,
// "" for none, its place in the manifest.
func (c *Client) Evidence(ctx context.Context, id, key string) (*centerv1.GetEvidenceResponse, error) {
	query := url.Values{}
	set(query, "key", key)
	out := &centerv1.GetEvidenceResponse{}
	_, err := c.call(ctx, http.MethodGet, "/v1/tasks/"+url.PathEscape(id)+"/evidence", query, nil, out)
	return out, wrap(err, "read the evidence of task %s", id)
}

// Words reads one page of the signed words that the consumer keeps of a task.
func (c *Client) Words(ctx context.Context, id, token string) (*consumerv1.ListEvidenceResponse, error) {
	out := &consumerv1.ListEvidenceResponse{}
	_, err := c.call(ctx, http.MethodGet, "/v1/work/"+url.PathEscape(id)+"/evidence", page(0, token), nil, out)
	return out, wrap(err, "read the words of task %s", id)
}
