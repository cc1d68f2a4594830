package api

import (
	"context"
	"net/http"

	operatorv1 "lockstep.dev/proto/lockstep/operator/v1"
)

// Operator tells whom the client's token stands for.
func (c *Client) Operator(ctx context.Context) (*operatorv1.Operator, []byte, error) {
	out := &operatorv1.GetOperatorResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/operator", nil, nil, out)
	return out.GetOperator(), text, wrap(err, "ask who I am")
}
