package refreshapi

import (
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/refresh"
	"lockstep.dev/services/consumer/internal/scores"
)

const (
	taskPrefix  = "REFRESH_STATE_"
	scopePrefix = "SCOPE_STATE_"
)

func taskState(state consumerv1.RefreshState) (refresh.State, error) {
	if consumerv1.RefreshState_name[int32(state)] == "" || state == consumerv1.RefreshState_REFRESH_STATE_UNSPECIFIED {
		return "", errState(int32(state))
	}
	return refresh.State(strings.TrimPrefix(state.String(), taskPrefix)), nil
}

func scopeState(state consumerv1.ScopeState) (string, error) {
	if consumerv1.ScopeState_name[int32(state)] == "" || state == consumerv1.ScopeState_SCOPE_STATE_UNSPECIFIED {
		return "", errState(int32(state))
	}
	return strings.TrimPrefix(state.String(), scopePrefix), nil
}

func errState(number int32) error {
	return fault.New(fault.InvalidArgument, "no such state").WithField("states", "%d is not known", number)
}

func taskID(id string) (uuid.UUID, error) {
	parsed, err := protocol.ParseID(id)
	if err != nil {
		return uuid.Nil, fault.Wrap(err, fault.InvalidArgument, "no task id").WithField("task_id", "%s", err)
	}
	return parsed, nil
}

func stamp(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}

func submissionToProto(s refresh.Submitted) *consumerv1.Submission {
	return &consumerv1.Submission{
		TaskId: protocol.FormatID(s.TaskID), TaskCode: s.TaskCode, BusinessKey: s.BusinessKey, Generation: s.Generation,
		Outcome: string(s.Outcome), Code: string(s.Code), Message: s.Message,
	}
}

func (s *Server) taskToProto(t *refresh.Task) *consumerv1.RefreshTask {
	return &consumerv1.RefreshTask{
		TaskId: protocol.FormatID(t.TaskID), Projection: t.Projection, TaskCode: t.TaskCode, BusinessKey: t.BusinessKey, CustomKey: t.CustomKey,
		Mode: string(t.Mode), State: consumerv1.RefreshState(consumerv1.RefreshState_value[taskPrefix+string(t.State)]), Code: t.Code, Message: t.Error,
		RequestGeneration: t.RequestGeneration, RunningGeneration: t.RunningGeneration, Attempt: t.Attempt,
		RetryCount: t.RetryCount, MaxRetry: t.MaxRetry, DueAt: timestamppb.New(t.DueAt), ClaimedBy: t.ClaimedBy, LeaseUntil: stamp(t.LeaseUntil),
		Trigger: t.RequestedBy, CreatedAt: timestamppb.New(t.CreatedAt), UpdatedAt: timestamppb.New(t.UpdatedAt),
		WaitingBecause: string(t.Waiting(s.Engine.Enabled())),
	}
}

func countsToProto(c refresh.Counts) *consumerv1.RefreshCounts {
	return &consumerv1.RefreshCounts{
		Differences: c.Differences, Created: c.Created, Updated: c.Updated, Unchanged: c.Unchanged, Missed: c.Missed,
		LateSkipped: c.LateSkipped, Warnings: c.Warnings, MissedIds: c.MissedIDs,
	}
}

func scopeToProto(r *refresh.ScopeRow) *consumerv1.RefreshScope {
	return &consumerv1.RefreshScope{
		Id: r.ID, Month: r.Month, Position: r.Position, State: consumerv1.ScopeState(consumerv1.ScopeState_value[scopePrefix+r.State]),
		Tries: r.Tries, Code: r.Code, Message: r.Error, Counts: countsToProto(r.Counts), UpdatedAt: timestamppb.New(r.UpdatedAt),
	}
}

func scoreToProto(s scores.Score) *consumerv1.GetScoreResponse {
	out := &consumerv1.GetScoreResponse{
		CandidateId: s.CandidateID, Period: s.Period, Found: s.Found, Dimensions: s.Dimensions, Total: s.Total, RefreshVersion: s.RefreshVersion,
	}
	if s.Found {
		out.RefreshedAt = timestamppb.New(s.RefreshedAt)
	}
	return out
}
