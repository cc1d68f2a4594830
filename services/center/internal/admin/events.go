package admin

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/document"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/internal/cursor"
)

// ListEvents lists what happened to a task, oldest first.
func (s *Server) ListEvents(ctx context.Context, req *centerv1.ListEventsRequest) (*centerv1.ListEventsResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultRows)
	if err != nil {
		return nil, err
	}
	tk, err := s.visible(ctx, op, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	list := cursor.Of("events", tk.ID)
	after, err := cursor.Resume[int64](list, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	var last int64 // ids begin at 1
	if after != nil {
		last = *after
	}
	events, err := s.Store.Events(ctx, tk.ID, last, size+1)
	if err != nil {
		return nil, err
	}
	answer := &centerv1.ListEventsResponse{}
	if len(events) > size {
		events = events[:size]
		answer.NextPageToken = cursor.After(list, events[size-1].ID)
	}
	for _, e := range events {
		answer.Events = append(answer.Events, &centerv1.Event{
			At: timestamppb.New(e.At), Attempt: int32(e.Attempt), Event: e.Event, State: document.StateToProto(e.State), Code: e.Code, //nolint:gosec // bounded by max_dispatch_attempts
		})
	}
	return answer, nil
}
