package centertest

import (
	"context"
	"slices"
	"sort"

	"github.com/google/uuid"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
)

// GetManifest serves the header.
func (c *Center) GetManifest(_ context.Context, req *centerv1.GetManifestRequest) (*centerv1.GetManifestResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, err := c.task(req.GetTaskId())
	if err != nil {
		return nil, err
	}
	h := &protocol.Header{
		At: c.at(t), ManifestID: t.ManifestID, Scope: t.Scope, Key: t.Key, Mode: t.Mode, WindowStart: t.Window,
		CanonID: canon.ID, KeyKind: protocol.KeyKindUUID, RowCount: int64(len(t.rows)), PageRows: PageRows, PageCount: len(t.roots),
		Root: t.Root(), IssuedAt: t.Window, BreakerOverride: t.Override,
	}
	if c.lies.Header != nil {
		c.lies.Header(h)
	}
	signer := c.sign()
	if c.truthfulHeader {
		signer = c.signer
	}
	env, err := document.SealHeader(signer, h)
	if err != nil {
		return nil, err
	}
	if c.lies.Signed != nil {
		c.lies.Signed(&env)
	}
	return &centerv1.GetManifestResponse{Header: document.EnvelopeToProto(env)}, nil
}

// indexBatch is small, so that tests page.
const indexBatch = 3

// ListPageIndex serves the index.
func (c *Center) ListPageIndex(_ context.Context, req *centerv1.ListPageIndexRequest) (*centerv1.ListPageIndexResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, err := c.task(req.GetTaskId())
	if err != nil {
		return nil, err
	}
	resp := &centerv1.ListPageIndexResponse{}
	from := int(req.GetFromPage())
	for i := from; i < min(from+indexBatch, len(t.roots)); i++ {
		rows := t.page(i)
		resp.Entries = append(resp.Entries, &centerv1.PageIndexEntry{
			LastKey: []byte(rows[len(rows)-1].Key), Root: slices.Clone(t.roots[i][:]), Rows: int32(len(rows)), //nolint:gosec // a page of a test
		})
	}
	resp.Completed = from+len(resp.Entries) == len(t.roots)
	if c.lies.Index != nil {
		c.lies.Index(resp)
	}
	return resp, nil
}

func (t *Task) page(i int) []evidence.PageRow {
	return t.rows[i*PageRows : min((i+1)*PageRows, len(t.rows))]
}

// pagesBatch is small, so that pages are left over.
const pagesBatch = 2

// GetPages serves packed pages.
func (c *Center) GetPages(_ context.Context, req *centerv1.GetPagesRequest) (*centerv1.GetPagesResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, err := c.task(req.GetTaskId())
	if err != nil {
		return nil, err
	}
	resp := &centerv1.GetPagesResponse{}
	for i, page := range req.GetPages() {
		if i < pagesBatch {
			resp.Pages = append(resp.Pages, &centerv1.PackedPage{Page: page, Body: evidence.AppendPage(nil, t.page(int(page)))})
		} else {
			resp.LeftOver = append(resp.LeftOver, page)
		}
	}
	if c.lies.Pages != nil {
		c.lies.Pages(resp)
	}
	return resp, nil
}

// rowsBatch is small, so that tests page.
const rowsBatch = 3

// ListRows serves the rows one by one.
func (c *Center) ListRows(_ context.Context, req *centerv1.ListRowsRequest) (*centerv1.ListRowsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, err := c.task(req.GetTaskId())
	if err != nil {
		return nil, err
	}
	from := 0
	if req.GetCursor() != "" {
		raw, err := protocol.ParseKey(req.GetCursor())
		from = 1 + slices.IndexFunc(t.rows, func(r evidence.PageRow) bool { return r.Key == raw })
		if err != nil || from == 0 {
			return nil, fault.New(fault.CursorInvalid, "the cursor is no key of this manifest")
		}
	}
	to := min(from+min(rowsBatch, int(req.GetSize())), len(t.rows))
	resp := &centerv1.ListRowsResponse{Completed: to == len(t.rows), TotalRows: int64(len(t.rows))}
	for _, r := range t.rows[from:to] {
		resp.Rows = append(resp.Rows, &centerv1.ManifestRow{
			Key: protocol.FormatKey(r.Key), Revision: r.Revision, ContentHash: r.Hash.String(), Deleted: r.Deleted, SchemaVersion: r.SchemaVersion,
		})
	}
	if c.lies.Rows != nil {
		c.lies.Rows(resp)
	}
	return resp, nil
}

// recordsBatch is small, so that keys are left over.
const recordsBatch = 7

// GetRecords signs the current word about each key.
func (c *Center) GetRecords(_ context.Context, req *centerv1.GetRecordsRequest) (*centerv1.GetRecordsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, err := c.task(req.GetTaskId())
	if err != nil {
		return nil, err
	}
	resp := &centerv1.GetRecordsResponse{}
	for i, ask := range req.GetRecords() {
		if i >= c.recordsBatch {
			resp.LeftOver = append(resp.LeftOver, ask.GetKey())
			continue
		}
		env, err := c.word(t, ask, req.GetNonce())
		if err != nil {
			return nil, err
		}
		if c.lies.Answer != nil {
			c.lies.Answer(&env)
		}
		resp.Answers = append(resp.Answers, &centerv1.RecordAnswer{Key: ask.GetKey(), Word: document.EnvelopeToProto(env)})
	}
	if c.lies.Records != nil {
		c.lies.Records(resp)
	}
	return resp, nil
}

func (c *Center) word(t *Task, ask *centerv1.RecordRequest, nonce []byte) (evidence.Envelope, error) {
	raw, err := protocol.ParseKey(ask.GetKey())
	if err != nil {
		return evidence.Envelope{}, fault.New(fault.InvalidArgument, "no key")
	}
	c.asked = append(c.asked, raw)
	at := c.at(t)
	at.CenterEpoch, at.GrantEpoch = c.centerEpoch, c.grantEpoch
	lie := func(word any) {
		if c.lies.Word != nil {
			c.lies.Word(word)
		}
	}
	r, exists := c.records[raw]
	code := c.undecidable[raw]
	if code == "" && !exists && t.has(raw) {
		code = fault.RowGone
	}
	switch {
	case code != "":
		d := &protocol.Undecidable{At: at, Key: ask.GetKey(), Nonce: nonce, Code: string(code)}
		lie(d)
		return document.SealUndecidable(c.sign(), d)
	case exists:
		d := &protocol.Snapshot{
			At: at, Key: ask.GetKey(), Revision: r.Revision, Hash: r.Hash(), Deleted: r.Deleted, SchemaVersion: 1, Sequence: r.Revision,
			Nonce: nonce, EventID: protocol.FormatID(uuid.New()),
		}
		if r.Content != "" {
			d.Content = []byte(r.Content)
		}
		lie(d)
		return document.SealSnapshot(c.sign(), d)
	default:
		d, err := c.absence(t, raw)
		if err != nil {
			return evidence.Envelope{}, err
		}
		d.At, d.ExpectedRevision, d.Nonce = at, ask.GetExpectedRevision(), nonce
		lie(d)
		return document.SealAbsence(c.sign(), d)
	}
}

func (t *Task) has(raw string) bool {
	return slices.ContainsFunc(t.rows, func(r evidence.PageRow) bool { return r.Key == raw })
}

func (c *Center) absence(t *Task, raw string) (*protocol.Absence, error) {
	at := sort.Search(len(t.rows), func(i int) bool { return t.rows[i].Key > raw })
	ref := func(i int) *evidence.PageRef {
		if i < 0 || i >= len(t.rows) {
			return nil
		}
		return &evidence.PageRef{PageNo: i / PageRows, Rows: evidence.Rows(t.page(i / PageRows)), Offset: i % PageRows}
	}
	proof, err := evidence.ProveAbsence(raw, uint64(len(t.rows)), PageRows, t.roots, ref(at-1), ref(at))
	if err != nil {
		return nil, err
	}
	return &protocol.Absence{
		Key: protocol.FormatKey(raw), ProofID: protocol.FormatID(uuid.New()), ManifestID: t.ManifestID, ManifestRoot: t.Root(), Evidence: proof,
	}, nil
}

// ReportResult answers by the protocol's matrix.
func (c *Center) ReportResult(_ context.Context, req *centerv1.ReportResultRequest) (*centerv1.ReportResultResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := document.OpenReport(document.EnvelopeFromProto(req.GetReport()), c.ConsumerKeys)
	if err != nil {
		return nil, fault.Wrap(err, fault.SignatureInvalid, "the report does not open")
	}
	c.reports = append(c.reports, r)
	t, ok := c.tasks[r.At.TaskID]
	if !ok {
		return nil, fault.New(fault.TaskNotFound, "no such task")
	}
	resp := &centerv1.ReportResultResponse{TaskId: t.ID, ReportAttempt: int32(r.Attempt), Attempt: int32(t.Attempt)} //nolint:gosec // a handful
	switch {
	case t.State.Terminal() && t.Own != "" && r.Attempt == t.Attempt:
		resp.Decision, resp.ResultState = centerv1.Decision_DECISION_CURRENT_DUPLICATE, document.StateToProto(t.Own)
	case t.State.Terminal():
		resp.Decision, resp.Stale, resp.Code = centerv1.Decision_DECISION_CENTER_TERMINAL, true, t.Code
	case r.Attempt > t.Attempt:
		return nil, fault.New(fault.AttemptUnknown, "never dispatched")
	case r.Attempt < t.Attempt:
		resp.Decision = centerv1.Decision_DECISION_STALE_RETRY
	case c.revoked != "":
		t.State, t.Code = protocol.Cancelled, string(c.revoked)
		resp.Decision, resp.Code = centerv1.Decision_DECISION_CENTER_TERMINAL, t.Code
	case r.State == protocol.Running:
		t.State = protocol.Running
		resp.Decision, resp.ResultState = centerv1.Decision_DECISION_CURRENT_ACCEPTED, document.StateToProto(protocol.Running)
	default:
		t.State, t.Own, t.Code = r.State, r.State, r.Code
		resp.Decision, resp.ResultState, resp.Code = centerv1.Decision_DECISION_CURRENT_ACCEPTED, document.StateToProto(r.State), r.Code
	}
	resp.TaskState = document.StateToProto(t.State)
	if c.lies.Ack != nil {
		if err := c.lies.Ack(r, resp); err != nil {
			return nil, err
		}
	}
	return resp, nil
}
