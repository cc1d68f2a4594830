// Package refreshapi is the operators' side of the snapshot refresh: requests
// and their tasks, and what the refreshed rows say.
//
// Reads write nothing. What changes something asks for the role operator and is
// audited, or kept as the task's trigger. No answer holds a claim token. Bills
// and scores belong to no tenant, so an operator who is held to some tenants
// sees none of them.
package refreshapi

import (
	"context"

	"github.com/google/uuid"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/bills"
	"lockstep.dev/services/consumer/internal/refresh"
	"lockstep.dev/services/consumer/internal/scores"
	"lockstep.dev/services/internal/cursor"
)

const (
	defaultPage = 50
	scopePage   = 100
	maxClaims   = 500
	maxReason   = 500
)

// Rules say who may call the methods.
func Rules() map[string]identity.Rule {
	viewer, operator := identity.OperatorWith(identity.RoleViewer), identity.OperatorWith(identity.RoleOperator)
	return map[string]identity.Rule{
		consumerv1.RefreshService_Submit_FullMethodName:         operator,
		consumerv1.RefreshService_ListTasks_FullMethodName:      viewer,
		consumerv1.RefreshService_GetTask_FullMethodName:        viewer,
		consumerv1.RefreshService_ListScopes_FullMethodName:     viewer,
		consumerv1.RefreshService_Retry_FullMethodName:          operator,
		consumerv1.RefreshService_Force_FullMethodName:          operator,
		consumerv1.RefreshService_Cancel_FullMethodName:         operator,
		consumerv1.RefreshService_Reopen_FullMethodName:         operator,
		consumerv1.RefreshService_RefreshNow_FullMethodName:     operator,
		consumerv1.RefreshService_Run_FullMethodName:            operator,
		consumerv1.RefreshService_ListBills_FullMethodName:      viewer,
		consumerv1.RefreshService_StationSummary_FullMethodName: viewer,
		consumerv1.RefreshService_ExportBills_FullMethodName:    viewer,
		consumerv1.RefreshService_GetScore_FullMethodName:       viewer,
	}
}

// Server implements RefreshService.
type Server struct {
	consumerv1.UnimplementedRefreshServiceServer

	Engine *refresh.Engine
	// Bills and Scores are nil where they are not kept.
	Bills  *bills.Reader
	Scores *scores.Reader
	// ClaimsPerRun is the default of Run.
	ClaimsPerRun int
}

// caller is who asks, as tasks and the audit log name operators.
func caller(ctx context.Context) (string, error) {
	operator, ok := identity.OperatorFrom(ctx)
	if !ok {
		return "", fault.New(fault.PermissionDenied, "an operator's token is needed")
	}
	if len(operator.Tenants) > 0 {
		return "", fault.New(fault.PermissionDenied, "refreshed rows belong to no tenant; an operator of some tenants only may not see them")
	}
	return "operator/" + operator.ID, nil
}

func notKept(projection string) error {
	return fault.New(fault.NotFound, "this service keeps no %s: refresh.projections does not name them", projection)
}

// Submit accepts a request.
func (s *Server) Submit(ctx context.Context, req *consumerv1.SubmitRequest) (*consumerv1.SubmitResponse, error) {
	parsed, err := s.parse(ctx, req.GetRequest())
	if err != nil {
		return nil, err
	}
	out, err := s.Engine.SubmitNow(ctx, parsed)
	if err != nil {
		return nil, err
	}
	return &consumerv1.SubmitResponse{Submission: submissionToProto(out)}, nil
}

// parse reads a request; without a trigger its operator is the trigger.
func (s *Server) parse(ctx context.Context, req *consumerv1.RefreshRequest) (refresh.Request, error) {
	actor, err := caller(ctx)
	if err != nil {
		return refresh.Request{}, err
	}
	trigger := req.GetTrigger()
	if trigger == "" {
		trigger = actor
	}
	return s.Engine.Parse(refresh.Input{
		Projection: req.GetProjection(), Payload: []byte(req.GetPayload()), BusinessKey: req.GetBusinessKey(),
		SourceEventID: req.GetSourceEventId(), Trigger: trigger, Replace: req.GetReplace(),
	})
}

// ListTasks lists newest first.
func (s *Server) ListTasks(ctx context.Context, req *consumerv1.ListTasksRequest) (*consumerv1.ListTasksResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultPage)
	if err != nil {
		return nil, err
	}
	filter := refresh.Filter{Projection: req.GetProjection(), Key: req.GetBusinessKey()}
	for _, state := range req.GetStates() {
		word, err := taskState(state)
		if err != nil {
			return nil, err
		}
		filter.States = append(filter.States, word)
	}
	list := cursor.Of("tasks", filter)
	after, err := cursor.Resume[refresh.Position](list, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	tasks, err := s.Engine.Tasks(ctx, filter, after, size+1)
	if err != nil {
		return nil, err
	}
	answer := &consumerv1.ListTasksResponse{}
	if len(tasks) > size {
		tasks = tasks[:size]
		last := tasks[size-1]
		answer.NextPageToken = cursor.After(list, refresh.Position{CreatedAt: last.CreatedAt, TaskID: last.TaskID})
	}
	for i := range tasks {
		answer.Tasks = append(answer.Tasks, s.taskToProto(&tasks[i]))
	}
	return answer, nil
}

// GetTask shows one task with what its running generation amounts to.
func (s *Server) GetTask(ctx context.Context, req *consumerv1.GetTaskRequest) (*consumerv1.GetTaskResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	d, err := s.detail(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return &consumerv1.GetTaskResponse{
		Task: s.taskToProto(&d.Task), Counts: countsToProto(d.Counts),
		Scopes: d.Scopes, ScopesDone: d.Done, ScopesFailed: d.FailedScopes, Cursor: d.Cursor,
	}, nil
}

func (s *Server) detail(ctx context.Context, id string) (*refresh.Detail, error) {
	parsed, err := taskID(id)
	if err != nil {
		return nil, err
	}
	return s.Engine.Task(ctx, parsed)
}

// ListScopes lists the running generation's scopes in their order.
func (s *Server) ListScopes(ctx context.Context, req *consumerv1.ListScopesRequest) (*consumerv1.ListScopesResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), scopePage)
	if err != nil {
		return nil, err
	}
	d, err := s.detail(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	var states []string
	for _, state := range req.GetStates() {
		word, err := scopeState(state)
		if err != nil {
			return nil, err
		}
		states = append(states, word)
	}
	// A newer generation has another order: the token does not go on with it.
	list := cursor.Of("scopes", d.TaskID, d.RunningGeneration, states)
	after, err := cursor.Resume[int64](list, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	var position int64
	if after != nil {
		position = *after
	}
	rows, err := s.Engine.Scopes(ctx, d.TaskID, states, position, size+1)
	if err != nil {
		return nil, err
	}
	answer := &consumerv1.ListScopesResponse{}
	if len(rows) > size {
		rows = rows[:size]
		answer.NextPageToken = cursor.After(list, rows[size-1].Position)
	}
	for i := range rows {
		answer.Scopes = append(answer.Scopes, scopeToProto(&rows[i]))
	}
	return answer, nil
}

// Retry wakes tasks by their codes or keys.
func (s *Server) Retry(ctx context.Context, req *consumerv1.RetryRequest) (*consumerv1.RetryResponse, error) {
	actor, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	ids, err := s.Engine.Retry(ctx, actor, refresh.Selector{Codes: req.GetTaskCodes(), Keys: req.GetBusinessKeys()})
	if err != nil {
		return nil, err
	}
	answer := &consumerv1.RetryResponse{}
	for _, id := range ids {
		answer.TaskIds = append(answer.TaskIds, protocol.FormatID(id))
	}
	return answer, nil
}

// Force makes a task due now with its whole budget.
func (s *Server) Force(ctx context.Context, req *consumerv1.ForceRequest) (*consumerv1.ForceResponse, error) {
	task, err := s.operate(ctx, req, s.Engine.Force)
	return &consumerv1.ForceResponse{Task: task}, err
}

// Cancel ends a task.
func (s *Server) Cancel(ctx context.Context, req *consumerv1.CancelRequest) (*consumerv1.CancelResponse, error) {
	task, err := s.operate(ctx, req, s.Engine.Cancel)
	return &consumerv1.CancelResponse{Task: task}, err
}

// Reopen lets a cancelled task rise again.
func (s *Server) Reopen(ctx context.Context, req *consumerv1.ReopenRequest) (*consumerv1.ReopenResponse, error) {
	task, err := s.operate(ctx, req, s.Engine.Reopen)
	return &consumerv1.ReopenResponse{Task: task}, err
}

// named is a request that names a task and says why.
type named interface {
	GetTaskId() string
	GetReason() string
}

func (s *Server) operate(ctx context.Context, req named, do func(ctx context.Context, actor string, id uuid.UUID, reason string) error) (*consumerv1.RefreshTask, error) {
	actor, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	id, err := taskID(req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if len(req.GetReason()) > maxReason {
		return nil, fault.New(fault.InvalidArgument, "the reason is too long").WithField("reason", "at most %d bytes", maxReason)
	}
	if err := do(ctx, actor, id, req.GetReason()); err != nil {
		return nil, err
	}
	d, err := s.Engine.Task(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.taskToProto(&d.Task), nil
}

// RefreshNow submits and works on it here, or waits for whoever does.
func (s *Server) RefreshNow(ctx context.Context, req *consumerv1.RefreshNowRequest) (*consumerv1.RefreshNowResponse, error) {
	parsed, err := s.parse(ctx, req.GetRequest())
	if err != nil {
		return nil, err
	}
	out, err := s.Engine.RefreshNow(ctx, parsed)
	if err != nil {
		return nil, err
	}
	d, err := s.Engine.Task(ctx, out.TaskID)
	if err != nil {
		return nil, err
	}
	return &consumerv1.RefreshNowResponse{Submission: submissionToProto(out.Submitted), Outcome: string(out.State), Task: s.taskToProto(&d.Task)}, nil
}

// Run works on due tasks. What failed is in the answer, not an error.
func (s *Server) Run(ctx context.Context, req *consumerv1.RunRequest) (*consumerv1.RunResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	claims := int(req.GetMaxClaims())
	if claims == 0 {
		claims = s.ClaimsPerRun
	}
	if claims < 0 || claims > maxClaims {
		return nil, fault.New(fault.InvalidArgument, "impossible limit").WithField("max_claims", "1 to %d", maxClaims)
	}
	r, err := s.Engine.RunInTime(ctx, claims)
	if err != nil {
		return nil, err
	}
	return &consumerv1.RunResponse{
		Claims: int32(r.Claims), Succeeded: int32(r.Succeeded), Continued: int32(r.Continued), Failed: int32(r.Failed), Fenced: int32(r.Fenced), //nolint:gosec // at most 500
		Scopes: r.Scopes, ScopesFailed: r.FailedScopes, Counts: countsToProto(r.Counts), Ok: r.Err() == nil,
	}, nil
}

// GetScore shows a candidate's row, or an empty score.
func (s *Server) GetScore(ctx context.Context, req *consumerv1.GetScoreRequest) (*consumerv1.GetScoreResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	if s.Scores == nil {
		return nil, notKept("scores")
	}
	score, err := s.Scores.Score(ctx, req.GetCandidateId(), req.GetPeriod())
	if err != nil {
		return nil, err
	}
	return scoreToProto(score), nil
}
