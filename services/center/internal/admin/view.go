package admin

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// views shows tasks as operators see them, with why each one waits.
func (s *Server) views(ctx context.Context, op identity.Operator, tasks []*task.Task) ([]*centerv1.Task, error) {
	var consumers []string
	for _, t := range tasks {
		consumers = append(consumers, t.Consumer)
	}
	traffic, now, err := s.Store.Traffic(ctx, consumers)
	if err != nil {
		return nil, err
	}
	out := make([]*centerv1.Task, len(tasks))
	for i, t := range tasks {
		if out[i], err = taskView(t); err != nil {
			return nil, err
		}
		out[i].WaitingBecause = s.waitingBecause(op, t, traffic[t.Consumer], now)
	}
	return out, nil
}

func taskView(t *task.Task) (*centerv1.Task, error) {
	v := &centerv1.Task{
		TaskId: protocol.FormatID(t.ID), Consumer: t.Consumer, TenantId: t.TenantID, CollectionId: t.CollectionID,
		Scope: document.ScopeToProto(t.Scope), Key: t.Key, Mode: document.ModeToProto(t.Mode),
		State: document.StateToProto(t.State), Code: t.Code, Reason: t.Reason, Attempt: int32(t.Attempt), //nolint:gosec // bounded by max_dispatch_attempts
		GrantEpoch: t.GrantEpoch, ManifestState: centerv1.ManifestState(centerv1.ManifestState_value["MANIFEST_STATE_"+string(t.ManifestState)]),
		RowCount: t.RowCount, WindowStart: stamp(t.WindowStart),
		CreatedAt: stamp(t.CreatedAt), UpdatedAt: stamp(t.UpdatedAt), EndedAt: stamp(t.EndedAt), LeaseUntil: stamp(t.LeaseUntil),
		BreakerOverride: t.BreakerOverride, CreatedBy: t.CreatedBy,
	}
	if t.ManifestID != uuid.Nil {
		v.ManifestId, v.ManifestRoot = protocol.FormatID(t.ManifestID), hex.EncodeToString(t.ManifestRoot[:])
	}
	if t.State == protocol.Queued {
		v.NextDispatchAt = stamp(t.DueAt)
	}
	counted := t.ManifestState == task.ManifestComplete || t.ManifestState == task.ManifestPurged
	if counted {
		v.Estimate = &centerv1.Estimate{}
	}
	if len(t.Progress) == 0 {
		return v, nil
	}
	r, err := document.ParseReport(t.Progress)
	if err != nil {
		return nil, fmt.Errorf("progress of task %s: %w", t.ID, err)
	}
	v.Progress = progressView(r, t.ProgressAt)
	if counted {
		v.Estimate = estimate(t, r)
	}
	return v, nil
}

// estimate says how far the newest report found the scan, and when it ends at
// its pace. The report's two times are the consumer's: only their distance counts.
func estimate(t *task.Task, r *protocol.Report) *centerv1.Estimate {
	e := &centerv1.Estimate{ScannedPercent: protocol.Percent(r.CenterScanned, t.RowCount, r.CenterComplete)}
	took := r.IssuedAt.Sub(r.StartedAt)
	if r.StartedAt.IsZero() || took <= 0 || r.CenterScanned <= 0 {
		return e
	}
	e.RowsPerSecond = float64(r.CenterScanned) / took.Seconds()
	left := t.RowCount - r.CenterScanned
	if t.State != protocol.Running || r.Phase != protocol.Scanning || r.CenterComplete || left <= 0 {
		return e
	}
	if seconds := float64(left) / e.RowsPerSecond; seconds < farthest.Seconds() {
		e.ScanEndsAt = stamp(t.ProgressAt.Add(time.Duration(seconds * float64(time.Second))))
	}
	return e
}

// farthest end that is told: beyond it the pace says nothing.
const farthest = 365 * 24 * time.Hour

// stamp leaves an absent time absent.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func progressView(r *protocol.Report, at time.Time) *centerv1.Progress {
	return &centerv1.Progress{
		Phase: document.PhaseToProto(r.Phase), CenterRowsScanned: r.CenterScanned, LocalRowsScanned: r.LocalScanned,
		Counts: document.CountsToProto(r.Counts), Fetched: r.Fetched, WireBytes: r.WireBytes, Resumed: int32(r.Resumed), //nolint:gosec // it came as one
		ReportedAt: stamp(at), RetireCode: r.RetireCode, Verified: document.VerifiedToProto(r.Verified), StartedAt: stamp(r.StartedAt),
	}
}

// resultView reads the figures out of the signed report, which was verified
// when it came.
func resultView(r store.Result) (*centerv1.Result, error) {
	env, report, err := storedReport(r)
	if err != nil {
		return nil, err
	}
	return &centerv1.Result{
		Attempt: int32(r.Attempt), State: document.StateToProto(r.State), Code: r.Code, //nolint:gosec // bounded by max_dispatch_attempts
		Figures: progressView(report, r.ReceivedAt), Items: itemViews(report.Items),
		ReceivedAt: stamp(r.ReceivedAt), Report: document.EnvelopeToProto(env),
	}, nil
}

func storedReport(r store.Result) (evidence.Envelope, *protocol.Report, error) {
	env, err := document.UnmarshalEnvelope(r.Report)
	if err != nil {
		return env, nil, err
	}
	report, err := document.ParseReport(env.Payload)
	return env, report, err
}

func itemViews(items []protocol.ErrorItem) []*evidencev1.ErrorItem {
	out := make([]*evidencev1.ErrorItem, len(items))
	for i := range items {
		out[i] = itemView(&items[i])
	}
	return out
}

func itemView(it *protocol.ErrorItem) *evidencev1.ErrorItem {
	return &evidencev1.ErrorItem{Consumer: it.Consumer, TaskId: it.TaskID, Range: it.Range, Key: it.Key, Revision: it.Revision, Code: it.Code}
}
