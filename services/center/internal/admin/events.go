package admin

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/document"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
)

// eventToken is the last event shown.
type eventToken struct {
	Query listQuery `json:"q"`
	After int64     `json:"a"`
}

// ListEvents lists what happened to a task, oldest first.
func (s *Server) ListEvents(ctx context.Context, req *centerv1.ListEventsRequest) (*centerv1.ListEventsResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	size, err := pageSizeOr(req.GetPageSize(), defaultRows)
	if err != nil {
		return nil, err
	}
	tk, err := s.visible(ctx, op, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	query := filter("events", tk.ID)
	after, err := query.resumeEvents(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	events, err := s.Store.Events(ctx, tk.ID, after, size+1)
	if err != nil {
		return nil, err
	}
	answer := &centerv1.ListEventsResponse{}
	if len(events) > size {
		events = events[:size]
		answer.NextPageToken = encode(eventToken{Query: query, After: events[size-1].ID})
	}
	for _, e := range events {
		answer.Events = append(answer.Events, &centerv1.Event{
			At: timestamppb.New(e.At), Attempt: int32(e.Attempt), Event: e.Event, State: document.StateToProto(e.State), Code: e.Code, //nolint:gosec // bounded by max_dispatch_attempts
		})
	}
	return answer, nil
}

func (q listQuery) resumeEvents(token string) (after int64, err error) {
	if token == "" {
		return 0, nil
	}
	var t eventToken
	if err := decode(token, &t); err != nil {
		return 0, err
	}
	if t.Query != q || t.After < 1 {
		return 0, errToken()
	}
	return t.After, nil
}
