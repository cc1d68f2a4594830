// Package report states what a run amounts to and tells the center.
//
// A report is signed once and its bytes are sent until they are acknowledged.
// Counts are the ledger's; the items beside them name keys, revisions and
// codes, never content. The package decides what an answer of the center
// means, and nothing else: an answer that is not about the very report that
// was sent is no answer.
package report

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/center"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
)

// Reporter builds, signs and sends reports.
type Reporter struct {
	// Self is the consumer's app key; Signer signs as it.
	Self   string
	Signer *evidence.Signer
	Center *center.Client
	Now    func() time.Time
	// MaxItems and MaxChars bound the error items of a report.
	MaxItems, MaxChars int
}

// Conclude is a result's state: COMPLETED only where both scans are complete
// and nothing is left open, FAILED where a code says that trying again can't
// help, CANCELLED where the center told so, PARTIAL otherwise.
func Conclude(w *store.Work, counts []protocol.ClassCount, ended Ending) protocol.State {
	var open int64
	for _, c := range counts {
		open += c.Open()
	}
	switch {
	case ended.State != "":
		return ended.State
	case w.CenterComplete && w.LocalComplete && open == 0 && w.DeferredCode == "":
		return protocol.Completed
	default:
		return protocol.Partial
	}
}

// Ending is how a run ended otherwise than by reaching its end. The zero
// Ending is a run that did.
type Ending struct {
	State protocol.State // FAILED or CANCELLED; "" lets the ledger decide
	Code  string
}

// Final builds and signs the result of a run.
func (r *Reporter) Final(w *store.Work, counts []protocol.ClassCount, open []store.Entry, ended Ending) (store.Final, error) {
	d := r.base(w)
	d.State, d.Phase, d.Code = Conclude(w, counts, ended), protocol.Reporting, ended.Code
	if d.Code == "" {
		d.Code = w.DeferredCode
	}
	d.Counts, d.Items = counts, r.items(w, open)
	return r.seal(w, d)
}

// Again signs a frozen report anew under the attempt that the row has adopted
// since. What it states is what was frozen.
func (r *Reporter) Again(w *store.Work) (store.Final, error) {
	env, err := document.UnmarshalEnvelope(w.Report)
	if err != nil {
		return store.Final{}, fmt.Errorf("sign the report of %s again: %w", w.ID(), err)
	}
	d, err := document.ParseReport(env.Payload)
	if err != nil {
		return store.Final{}, fmt.Errorf("sign the report of %s again: %w", w.ID(), err)
	}
	d.Attempt, d.IssuedAt = w.Attempt, r.Now()
	return r.seal(w, d)
}

func (r *Reporter) seal(w *store.Work, d *protocol.Report) (store.Final, error) {
	env, err := document.SealReport(r.Signer, d)
	if err != nil {
		return store.Final{}, fmt.Errorf("sign the report of %s: %w", w.ID(), err)
	}
	stored, err := document.MarshalEnvelope(env)
	if err != nil {
		return store.Final{}, fmt.Errorf("sign the report of %s: %w", w.ID(), err)
	}
	return store.Final{State: d.State, Code: d.Code, Envelope: stored}, nil
}

func (r *Reporter) base(w *store.Work) *protocol.Report {
	d := &protocol.Report{
		At: w.Coordinates(r.Self), Attempt: w.Attempt,
		ManifestID: protocol.FormatID(w.ManifestID), ManifestRoot: evidence.Node(w.ManifestRoot),
		CenterScanned: w.CenterScanned, LocalScanned: w.LocalScanned,
		CenterComplete: w.CenterComplete, LocalComplete: w.LocalComplete, Verified: w.Verified,
		Fetched: w.Fetched, WireBytes: w.WireBytes, Resumed: w.Resumed, RetireCode: w.RetireCode,
		IssuedAt: r.Now(),
	}
	if w.StartedAt != nil {
		d.StartedAt = *w.StartedAt
	}
	return d
}

// items names open differences, within the bounds; the counts are never cut.
func (r *Reporter) items(w *store.Work, open []store.Entry) []protocol.ErrorItem {
	var out []protocol.ErrorItem
	chars := 0
	for _, e := range open {
		item := protocol.ErrorItem{Consumer: r.Self, TaskID: w.ID(), Range: w.CollectionID, Key: protocol.FormatKey(e.Key), Code: e.Code}
		if item.Code == "" {
			item.Code = string(e.Class)
		}
		switch {
		case e.Center != nil:
			item.Revision = e.Center.Revision
		case e.Local != nil:
			item.Revision = e.Local.Revision
		}
		chars += len(item.Consumer) + len(item.TaskID) + len(item.Range) + len(item.Key) + len(item.Code) + 20
		if len(out) == r.MaxItems || chars > r.MaxChars {
			break
		}
		out = append(out, item)
	}
	return out
}

// Answer is what the center's answer means for the row.
type Answer struct {
	// Event is "" where the run just goes on.
	Event work.Event
	Code  string
}

// Progress tells where a run is. The zero Answer says: go on.
func (r *Reporter) Progress(ctx context.Context, w *store.Work, phase protocol.Phase, code string) (Answer, error) {
	d := r.base(w)
	d.State, d.Phase, d.Code = protocol.Running, phase, code
	env, err := document.SealReport(r.Signer, d)
	if err != nil {
		return Answer{}, fmt.Errorf("sign a progress report of %s: %w", w.ID(), err)
	}
	return r.send(ctx, w, env, protocol.Running)
}

// Send sends the frozen report of a row.
func (r *Reporter) Send(ctx context.Context, w *store.Work) (Answer, error) {
	if w.ReportState == nil {
		return Answer{}, errors.New("send a report: none is frozen")
	}
	env, err := document.UnmarshalEnvelope(w.Report)
	if err != nil {
		return Answer{}, fmt.Errorf("send the report of %s: %w", w.ID(), err)
	}
	return r.send(ctx, w, env, *w.ReportState)
}

func (r *Reporter) send(ctx context.Context, w *store.Work, env evidence.Envelope, reported protocol.State) (Answer, error) {
	ack, err := r.Center.Report(ctx, env)
	switch reason := fault.ReasonOf(err); {
	case err == nil:
		return meaning(w, ack, reported)
	case reason == fault.TaskNotFound, reason == fault.AttemptUnknown:
		return Answer{Event: work.Unknown, Code: string(reason)}, nil
	default:
		return Answer{}, fmt.Errorf("%w: %w", work.ErrNoAnswer, err)
	}
}

// meaning reads an acknowledgement.
func meaning(w *store.Work, ack center.Ack, reported protocol.State) (Answer, error) {
	event, err := work.Hear(
		work.Sent{TaskID: w.ID(), Attempt: w.Attempt, State: reported},
		work.Heard{TaskID: ack.TaskID, Attempt: ack.ReportAttempt, Decision: ack.Decision, TaskState: ack.TaskState, ResultState: ack.ResultState})
	if err != nil || event == "" {
		return Answer{}, err
	}
	return Answer{Event: event, Code: ack.Code}, nil
}
