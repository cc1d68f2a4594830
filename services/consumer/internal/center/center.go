// Package center is the consumer's line to the center: one method a call, plain
// values out, generated messages in no one else's hands.
//
// It promises a deadline for every call and the bytes of every call counted for
// the task it was made for. It verifies nothing but the shape of an answer: who
// signed what, and whether it is about the right thing, is decided by those
// who ask.
package center

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/consumer/internal/lockstep"
)

const (
	// callTimeout is what every server of the protocol caps a call at.
	callTimeout = 30 * time.Second
	// maxPages and maxRecords bound the answers to what a connection receives.
	maxPages   = 4 << 20
	maxRecords = 12 << 20
	// indexBatch is the most entries one call gives.
	indexBatch = 10_000
	// MaxRows is the most rows one call gives.
	MaxRows = 500
)

// Client asks the center.
type Client struct {
	rpc centerv1.ReconcileServiceClient
}

// New makes a client over a connection that carries the identity of both sides.
func New(conn grpc.ClientConnInterface) *Client {
	return &Client{rpc: centerv1.NewReconcileServiceClient(conn)}
}

// Manifest gives the signed header of a task's manifest.
func (c *Client) Manifest(ctx context.Context, task, consumer string) (evidence.Envelope, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.rpc.GetManifest(ctx, &centerv1.GetManifestRequest{TaskId: task, Consumer: consumer})
	if err != nil {
		return evidence.Envelope{}, fmt.Errorf("get the manifest of %s: %w", task, err)
	}
	return document.EnvelopeFromProto(resp.GetHeader()), nil
}

// Index gives the page index from a page on, as much as one call holds.
func (c *Client) Index(ctx context.Context, task string, from int) (entries []lockstep.Entry, completed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.rpc.ListPageIndex(ctx, &centerv1.ListPageIndexRequest{TaskId: task, FromPage: int32(from), Limit: indexBatch}, //nolint:gosec // a page number of a checked header
		grpc.MaxCallRecvMsgSize(maxPages))
	if err != nil {
		return nil, false, fmt.Errorf("list the page index of %s: %w", task, err)
	}
	entries = make([]lockstep.Entry, 0, len(resp.GetEntries()))
	for _, e := range resp.GetEntries() {
		if len(e.GetRoot()) != len(evidence.Node{}) {
			return nil, false, fault.New(fault.PageNotProven, "the root of page %d has %d bytes", from+len(entries), len(e.GetRoot()))
		}
		entries = append(entries, lockstep.Entry{LastKey: string(e.GetLastKey()), Root: evidence.Node(e.GetRoot()), Rows: int(e.GetRows())})
	}
	return entries, resp.GetCompleted(), nil
}

// Page is a page as it came: its body is not yet believed.
type Page struct {
	Number int
	Body   []byte
}

// Pages gives packed pages; leftOver are those that did not fit.
func (c *Client) Pages(ctx context.Context, task string, pages []int) (got []Page, leftOver []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := &centerv1.GetPagesRequest{TaskId: task}
	for _, p := range pages {
		req.Pages = append(req.Pages, int32(p)) //nolint:gosec // a page number of a checked index
	}
	resp, err := c.rpc.GetPages(ctx, req, grpc.MaxCallRecvMsgSize(maxPages))
	if err != nil {
		return nil, nil, fmt.Errorf("get %d pages of %s: %w", len(pages), task, err)
	}
	for _, p := range resp.GetPages() {
		got = append(got, Page{Number: int(p.GetPage()), Body: p.GetBody()})
	}
	for _, p := range resp.GetLeftOver() {
		leftOver = append(leftOver, int(p))
	}
	return got, leftOver, nil
}

// Rows gives rows of the manifest one by one, at most limit of those after a raw
// key; "" is the start.
func (c *Client) Rows(ctx context.Context, task, after string, limit int) (rows []evidence.PageRow, completed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := &centerv1.ListRowsRequest{TaskId: task, Size: int32(limit)} //nolint:gosec // at most MaxRows
	if after != "" {
		req.Cursor = protocol.FormatKey(after)
	}
	resp, err := c.rpc.ListRows(ctx, req, grpc.MaxCallRecvMsgSize(maxPages))
	if err != nil {
		return nil, false, fmt.Errorf("list the rows of %s: %w", task, err)
	}
	rows = make([]evidence.PageRow, 0, len(resp.GetRows()))
	for _, r := range resp.GetRows() {
		key, err := protocol.ParseKey(r.GetKey())
		if err != nil {
			return nil, false, fault.Wrap(err, fault.OrderViolation, "a row of the manifest has no key")
		}
		hash, err := canon.ParseHash(r.GetContentHash())
		if err != nil {
			return nil, false, fault.Wrap(err, fault.PageNotProven, "a row of the manifest has no hash")
		}
		rows = append(rows, evidence.PageRow{
			Row:           evidence.Row{Key: key, Revision: r.GetRevision(), Hash: hash, Deleted: r.GetDeleted()},
			SchemaVersion: r.GetSchemaVersion(), Sequence: r.GetSequence(),
		})
	}
	return rows, resp.GetCompleted(), nil
}

// Ask is a key and the revision the consumer holds of it, 0 for none.
type Ask struct {
	Key      string // raw
	Expected int64
}

// Answer is a word about a key, as it came.
type Answer struct {
	Key  string // as the answer spells it
	Word evidence.Envelope
}

// Records asks for the current word about keys; leftOver are those that did not fit.
func (c *Client) Records(ctx context.Context, task string, nonce []byte, asks []Ask) (answers []Answer, leftOver []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := &centerv1.GetRecordsRequest{TaskId: task, Nonce: nonce}
	for _, a := range asks {
		req.Records = append(req.Records, &centerv1.RecordRequest{Key: protocol.FormatKey(a.Key), ExpectedRevision: a.Expected})
	}
	resp, err := c.rpc.GetRecords(ctx, req, grpc.MaxCallRecvMsgSize(maxRecords))
	if err != nil {
		return nil, nil, fmt.Errorf("get %d records of %s: %w", len(asks), task, err)
	}
	for _, a := range resp.GetAnswers() {
		answers = append(answers, Answer{Key: a.GetKey(), Word: document.EnvelopeFromProto(a.GetWord())})
	}
	return answers, resp.GetLeftOver(), nil
}

// Ack is the center's answer to a report.
type Ack struct {
	TaskID        string
	Decision      protocol.Decision // "" for a value this version does not know
	ReportAttempt int
	Attempt       int
	TaskState     protocol.State
	ResultState   protocol.State
	Code          string
}

// Report sends a signed report.
func (c *Client) Report(ctx context.Context, report evidence.Envelope) (Ack, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.rpc.ReportResult(ctx, &centerv1.ReportResultRequest{Report: document.EnvelopeToProto(report)})
	if err != nil {
		return Ack{}, fmt.Errorf("report: %w", err)
	}
	return Ack{
		TaskID: resp.GetTaskId(), Decision: decision(resp.GetDecision()), ReportAttempt: int(resp.GetReportAttempt()),
		Attempt: int(resp.GetAttempt()), TaskState: document.StateFromProto(resp.GetTaskState()),
		ResultState: document.StateFromProto(resp.GetResultState()), Code: resp.GetCode(),
	}, nil
}

func decision(d centerv1.Decision) protocol.Decision {
	switch d {
	case centerv1.Decision_DECISION_CURRENT_ACCEPTED:
		return protocol.CurrentAccepted
	case centerv1.Decision_DECISION_CURRENT_DUPLICATE:
		return protocol.CurrentDuplicate
	case centerv1.Decision_DECISION_STALE_RETRY:
		return protocol.StaleRetry
	case centerv1.Decision_DECISION_CENTER_TERMINAL:
		return protocol.CenterTerminal
	case centerv1.Decision_DECISION_UNSPECIFIED:
	}
	return ""
}
