package console

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/fault"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
)

type auditLog struct {
	Filter Filter
	Rows   []*auditv1.AuditRow
	Pager  Pager
}

type auditSeals struct {
	Seals []*auditv1.AuditSeal
	Pager Pager
}

// AddAudit adds the pages of a service's audit log. Its API shows it to operators
// of every tenant only.
func AddAudit(c *Console, audit auditv1.AuditServiceClient) {
	c.page(Page{Path: "audit", Nav: "Audit", AllTenants: true, Template: "templates/audit.html", Show: func(ctx context.Context, r *Request) (View, error) {
		return showAudit(ctx, audit, r)
	}}, shell)
	c.page(Page{Path: "audit/seals", Under: "audit", Template: "templates/seals.html", Show: func(ctx context.Context, r *Request) (View, error) {
		got, err := audit.ListSeals(ctx, &auditv1.ListSealsRequest{PageToken: r.Value(PageToken)})
		return View{Title: "Seals of the audit log", Trail: []Link{{Label: "Audit log", Path: "audit"}}, Data: auditSeals{
			Seals: got.GetSeals(), Pager: r.Pager(got.GetNextPageToken()),
		}}, err
	}}, shell)
}

func showAudit(ctx context.Context, audit auditv1.AuditServiceClient, r *Request) (View, error) {
	request := &auditv1.ListAuditRequest{Actor: r.Value("actor"), Action: r.Value("action"), Object: r.Value("object"), PageToken: r.Value(PageToken)}
	var err error
	if request.From, err = r.Moment("from"); err != nil {
		return View{}, err
	}
	if request.Before, err = r.Moment("before"); err != nil {
		return View{}, err
	}
	got, err := audit.ListAudit(ctx, request)
	if err != nil {
		return View{}, err
	}
	return View{Title: "Audit log", Data: auditLog{
		Filter: r.Filter(
			Field{Name: "actor", Label: "Actor"}, Field{Name: "action", Label: "Action"}, Field{Name: "object", Label: "Object"},
			Field{Name: "from", Label: "From (UTC)", Help: "like 2006-01-02 15:04"}, Field{Name: "before", Label: "Before (UTC)", Help: "like 2006-01-02 15:04"}),
		Rows: got.GetRows(), Pager: r.Pager(got.GetNextPageToken()),
	}}, nil
}

// Moment reads a day or a minute in UTC; nil where there is none.
func (r *Request) Moment(name string) (*timestamppb.Timestamp, error) {
	text := r.Value(name)
	if text == "" {
		return nil, nil
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02 15:04", time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return timestamppb.New(at), nil
		}
	}
	return nil, fault.New(fault.InvalidArgument, "a day or a minute is needed").WithField(name, "is written like 2006-01-02 or 2006-01-02 15:04")
}
