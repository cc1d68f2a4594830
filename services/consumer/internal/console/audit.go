package console

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/fault"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
	shell "lockstep.dev/services/internal/console"
)

type auditLog struct {
	Filter shell.Filter
	Rows   []*auditv1.AuditRow
	Pager  shell.Pager
}

// auditLog shows who did what, newest first.
func (p *pages) auditLog(ctx context.Context, r *shell.Request) (shell.View, error) {
	request := &auditv1.ListAuditRequest{
		Actor: r.Value("actor"), Action: r.Value("action"), Object: r.Value("object"), PageSize: pageRows, PageToken: r.Value(shell.PageToken),
	}
	var err error
	if request.From, err = moment(r, "from"); err != nil {
		return shell.View{}, err
	}
	if request.Before, err = moment(r, "before"); err != nil {
		return shell.View{}, err
	}
	listed, err := p.audit.ListAudit(ctx, request)
	if err != nil {
		return shell.View{}, err
	}
	return shell.View{Title: "Audit log", Data: auditLog{
		Filter: r.Filter(
			shell.Field{Name: "actor", Label: "Actor"}, shell.Field{Name: "action", Label: "Action"}, shell.Field{Name: "object", Label: "Object"},
			shell.Field{Name: "from", Label: "From yyyy-mm-dd"},
			shell.Field{Name: "before", Label: "Before yyyy-mm-dd"}),
		Rows: listed.GetRows(), Pager: r.Pager(listed.GetNextPageToken()),
	}}, nil
}

// moment reads a day or a minute, in UTC; nil where there is none.
func moment(r *shell.Request, field string) (*timestamppb.Timestamp, error) {
	text := r.Value(field)
	if text == "" {
		return nil, nil
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02 15:04", time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return timestamppb.New(at), nil
		}
	}
	return nil, fault.New(fault.InvalidArgument, "a day or a moment is needed").WithField(field, "is written 2006-01-02 or 2006-01-02 15:04")
}
