// Package reconcile is the edge between the consumers' calls and the packages
// that answer them: it turns messages into values and back.
//
// It promises that nothing is answered before the caller's task was checked
// again, and that who calls is what the call token says. It decides nothing
// itself.
package reconcile

import (
	"context"

	"github.com/google/uuid"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/records"
	"lockstep.dev/services/center/internal/report"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// Server answers consumers. All fields are required.
type Server struct {
	centerv1.UnimplementedReconcileServiceServer

	Store   *store.Store
	Reader  *manifest.Reader
	Records *records.Answerer
	Reports *report.Handler
}

var _ centerv1.ReconcileServiceServer = (*Server)(nil)

// authorize checks the call's task again. A task id that is none names no task.
func (s *Server) authorize(ctx context.Context, taskID string) (*task.Task, error) {
	id, err := protocol.ParseID(taskID)
	if err != nil {
		return nil, fault.Wrap(err, fault.InvalidArgument, "the task id is not usable").WithField("task_id", "%v", err)
	}
	return s.Store.Authorize(ctx, identity.PeerFrom(ctx), uuid.UUID(id))
}

// GetManifest serves the signed header.
func (s *Server) GetManifest(ctx context.Context, req *centerv1.GetManifestRequest) (*centerv1.GetManifestResponse, error) {
	if c := req.GetConsumer(); c != "" && c != identity.PeerFrom(ctx) {
		return nil, fault.New(fault.IdentityMismatch, "the request names another consumer than its caller").WithField("consumer", "not the caller")
	}
	tk, err := s.authorize(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	header, err := s.Reader.Header(tk)
	if err != nil {
		return nil, err
	}
	return &centerv1.GetManifestResponse{Header: document.EnvelopeToProto(header), TaskState: document.StateToProto(tk.State)}, nil
}

// ListPageIndex serves the page index.
func (s *Server) ListPageIndex(ctx context.Context, req *centerv1.ListPageIndexRequest) (*centerv1.ListPageIndexResponse, error) {
	tk, err := s.authorize(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	entries, completed, err := s.Reader.Index(ctx, tk, int(req.GetFromPage()), int(req.GetLimit()))
	if err != nil {
		return nil, err
	}
	out := &centerv1.ListPageIndexResponse{Completed: completed, TaskState: document.StateToProto(tk.State)}
	out.Entries = make([]*centerv1.PageIndexEntry, len(entries))
	for i := range entries {
		e := &entries[i]
		out.Entries[i] = &centerv1.PageIndexEntry{LastKey: []byte(e.LastKey), Root: e.Root[:], Rows: int32(e.Rows)} //nolint:gosec // at most page_rows
	}
	return out, nil
}

// GetPages serves packed pages as they were frozen.
func (s *Server) GetPages(ctx context.Context, req *centerv1.GetPagesRequest) (*centerv1.GetPagesResponse, error) {
	tk, err := s.authorize(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	numbers := make([]int, len(req.GetPages()))
	for i, n := range req.GetPages() {
		numbers[i] = int(n)
	}
	pages, leftOver, err := s.Reader.Pages(ctx, tk, numbers)
	if err != nil {
		return nil, err
	}
	out := &centerv1.GetPagesResponse{TaskState: document.StateToProto(tk.State)}
	for _, p := range pages {
		out.Pages = append(out.Pages, &centerv1.PackedPage{Page: int32(p.Number), Body: p.Body}) //nolint:gosec // came as an int32
	}
	for _, n := range leftOver {
		out.LeftOver = append(out.LeftOver, int32(n)) //nolint:gosec // came as an int32
	}
	return out, nil
}

// ListRows serves the rows one by one.
func (s *Server) ListRows(ctx context.Context, req *centerv1.ListRowsRequest) (*centerv1.ListRowsResponse, error) {
	tk, err := s.authorize(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	page, err := s.Reader.Rows(ctx, tk, req.GetCursor(), int(req.GetSize()))
	if err != nil {
		return nil, err
	}
	out := &centerv1.ListRowsResponse{
		NextCursor: page.NextCursor, Completed: page.Completed, TotalRows: page.TotalRows, TotalPages: page.TotalPages,
		TaskState: document.StateToProto(tk.State),
	}
	for _, r := range page.Rows {
		out.Rows = append(out.Rows, &centerv1.ManifestRow{
			Key: protocol.FormatKey(r.Key), Revision: r.Revision, ContentHash: r.Hash.String(), Deleted: r.Deleted,
			SchemaVersion: r.SchemaVersion, Sequence: r.Sequence,
		})
	}
	return out, nil
}

// GetRecords gives the current, signed word about each record.
func (s *Server) GetRecords(ctx context.Context, req *centerv1.GetRecordsRequest) (*centerv1.GetRecordsResponse, error) {
	tk, err := s.authorize(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	requests := make([]records.Request, len(req.GetRecords()))
	for i, r := range req.GetRecords() {
		requests[i] = records.Request{Key: r.GetKey(), ExpectedRevision: r.GetExpectedRevision()}
	}
	answers, leftOver, err := s.Records.Answer(ctx, tk, req.GetNonce(), requests)
	if err != nil {
		return nil, err
	}
	out := &centerv1.GetRecordsResponse{LeftOver: leftOver, TaskState: document.StateToProto(tk.State)}
	for _, a := range answers {
		out.Answers = append(out.Answers, &centerv1.RecordAnswer{Key: a.Key, Word: document.EnvelopeToProto(a.Word)})
	}
	return out, nil
}

// ReportResult passes a report on. It alone is answered on a task that ended.
func (s *Server) ReportResult(ctx context.Context, req *centerv1.ReportResultRequest) (*centerv1.ReportResultResponse, error) {
	ack, err := s.Reports.Report(ctx, identity.PeerFrom(ctx), document.EnvelopeFromProto(req.GetReport()))
	if err != nil {
		return nil, err
	}
	return &centerv1.ReportResultResponse{
		TaskId: ack.TaskID, Decision: decisionToProto(ack.Decision),
		ReportAttempt: int32(ack.ReportAttempt), Attempt: int32(ack.Attempt), //nolint:gosec // bounded by max_dispatch_attempts
		TaskState: document.StateToProto(ack.TaskState), ResultState: document.StateToProto(ack.ResultState),
		Stale: ack.Stale, Code: ack.Code,
	}, nil
}

func decisionToProto(d protocol.Decision) centerv1.Decision {
	return centerv1.Decision(centerv1.Decision_value["DECISION_"+string(d)])
}
