package admin

import (
	"context"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/create"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
	"lockstep.dev/services/internal/cursor"
)

// CreateTask makes one task, or one for each effective subscription.
func (s *Server) CreateTask(ctx context.Context, req *centerv1.CreateTaskRequest) (*centerv1.CreateTaskResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	what := document.ScopeFromProto(req.GetScope())
	if what != protocol.All && req.GetTenantId() != 0 {
		if err := within(op, req.GetTenantId()); err != nil {
			return nil, err
		}
	}
	out, err := s.Creator.Create(ctx, create.Request{
		Scope: store.Scope{Consumer: req.GetConsumer(), TenantID: req.GetTenantId(), CollectionID: req.GetCollectionId()},
		What:  what, Key: req.GetKey(), Mode: document.ModeFromProto(req.GetMode()),
		BreakerOverride: req.GetBreakerOverride(), OverrideReason: req.GetOverrideReason(),
		Actor: actor(op), Tenants: only(op),
	})
	if err != nil {
		return nil, err
	}
	answer := &centerv1.CreateTaskResponse{}
	tasks := make([]*task.Task, len(out.Tasks))
	for i, c := range out.Tasks {
		tasks[i] = c.Task
	}
	views, err := s.views(ctx, op, tasks)
	if err != nil {
		return nil, err
	}
	for i, c := range out.Tasks {
		answer.Tasks = append(answer.Tasks, &centerv1.CreateTaskResponse_Created{Task: views[i], Existing: c.Existing})
	}
	for _, sc := range out.LeftOut {
		answer.LeftOut = append(answer.LeftOut, &centerv1.CreateTaskResponse_LeftOut{
			TenantId: sc.TenantID, CollectionId: sc.CollectionID, Code: string(fault.ResourceLimit),
		})
	}
	return answer, nil
}

// GetTask shows one task.
func (s *Server) GetTask(ctx context.Context, req *centerv1.GetTaskRequest) (*centerv1.GetTaskResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	tk, err := s.visible(ctx, op, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	view, err := s.views(ctx, op, []*task.Task{tk})
	if err != nil {
		return nil, err
	}
	return &centerv1.GetTaskResponse{Task: view[0]}, nil
}

// Page sizes of the lists.
const (
	defaultPage = 50
)

// ListTasks lists tasks, newest first.
func (s *Server) ListTasks(ctx context.Context, req *centerv1.ListTasksRequest) (*centerv1.ListTasksResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultPage)
	if err != nil {
		return nil, err
	}
	page := store.TaskPage{
		Consumer: req.GetConsumer(), TenantID: req.GetTenantId(), CollectionID: req.GetCollectionId(),
		Tenants: only(op), Limit: size + 1,
	}
	for _, st := range req.GetStates() {
		state := document.StateFromProto(st)
		if state == "" {
			return nil, fault.New(fault.InvalidArgument, "malformed list request").WithField("states", "are task states")
		}
		page.States = append(page.States, state)
	}
	list := cursor.Of("tasks", page.Consumer, page.TenantID, page.CollectionID, page.States)
	if page.AfterTime, page.AfterID, err = cursor.ResumeMoment(list, req.GetPageToken()); err != nil {
		return nil, err
	}
	tasks, err := s.Store.Tasks(ctx, page)
	if err != nil {
		return nil, err
	}
	answer := &centerv1.ListTasksResponse{}
	if len(tasks) > size {
		tasks = tasks[:size]
		answer.NextPageToken = cursor.AfterMoment(list, tasks[size-1].CreatedAt, tasks[size-1].ID)
	}
	answer.Tasks, err = s.views(ctx, op, tasks)
	return answer, err
}

// maxCancelReason bounds what an operator writes; it ends up in the audit log.
const maxCancelReason = 500

// CancelTask ends an open task; cancelling a cancelled one changes nothing.
func (s *Server) CancelTask(ctx context.Context, req *centerv1.CancelTaskRequest) (*centerv1.CancelTaskResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if len(req.GetReason()) > maxCancelReason {
		return nil, fault.New(fault.InvalidArgument, "malformed request").WithField("reason", "is at most %d bytes", maxCancelReason)
	}
	tk, err := s.visible(ctx, op, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if err := s.Store.Cancel(ctx, tk.ID, req.GetReason(), actor(op)); err != nil {
		return nil, err
	}
	s.Wake()
	got, err := s.GetTask(ctx, &centerv1.GetTaskRequest{TaskId: req.GetTaskId()})
	if err != nil {
		return nil, err
	}
	return &centerv1.CancelTaskResponse{Task: got.GetTask()}, nil
}

// ListResults shows what each attempt reported.
func (s *Server) ListResults(ctx context.Context, req *centerv1.ListResultsRequest) (*centerv1.ListResultsResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	tk, err := s.visible(ctx, op, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	results, err := s.Store.Results(ctx, tk.ID)
	if err != nil {
		return nil, err
	}
	answer := &centerv1.ListResultsResponse{}
	for _, r := range results {
		view, err := resultView(r)
		if err != nil {
			return nil, err
		}
		answer.Results = append(answer.Results, view)
	}
	return answer, nil
}
