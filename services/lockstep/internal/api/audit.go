package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
)

// Audit reads one page of the audit log.
func (c *Client) Audit(ctx context.Context, in *auditv1.ListAuditRequest) (*auditv1.ListAuditResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	set(query, "actor", in.GetActor())
	set(query, "action", in.GetAction())
	set(query, "object", in.GetObject())
	setTime(query, "from", in.GetFrom())
	setTime(query, "before", in.GetBefore())
	setOldest(query, in.GetOldestFirst())
	out := &auditv1.ListAuditResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/audit", query, nil, out)
	return out, text, wrap(err, "list the audit log")
}

// Seals reads one page of the audit log's seals.
func (c *Client) Seals(ctx context.Context, in *auditv1.ListSealsRequest) (*auditv1.ListSealsResponse, []byte, error) {
	query := page(in.GetPageSize(), in.GetPageToken())
	setOldest(query, in.GetOldestFirst())
	out := &auditv1.ListSealsResponse{}
	text, err := c.call(ctx, http.MethodGet, "/v1/audit/seals", query, nil, out)
	return out, text, wrap(err, "list the seals of the audit log")
}

func setTime(query url.Values, name string, at *timestamppb.Timestamp) {
	if at != nil {
		query.Set(name, at.AsTime().Format(time.RFC3339Nano))
	}
}

func setOldest(query url.Values, oldest bool) {
	if oldest {
		query.Set("oldest_first", "true")
	}
}
