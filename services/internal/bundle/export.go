package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/fault"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// Export is a bundle to be made of what the services answer. One of the two is
// enough.
type Export struct {
	TaskID string
	Keys   []string // records whose places in the manifest are shown, by Center
	// Center answers GetEvidence of the task, for a key or for "".
	Center func(ctx context.Context, key string) (*centerv1.GetEvidenceResponse, error)
	// Consumer answers ListEvidence of the task, page by page; "" is the first.
	Consumer func(ctx context.Context, pageToken string) (*consumerv1.ListEvidenceResponse, error)
}

// Open asks for the first documents and the first key, so that a refusal comes
// before the first byte. What it returns writes the bundle, once, while ctx lasts; it holds one
// page of words. Where it fails the bundle has no end.
func (e Export) Open(ctx context.Context) (write func(io.Writer) error, err error) {
	var signed, first *centerv1.GetEvidenceResponse
	var words *consumerv1.ListEvidenceResponse
	if e.Center != nil {
		if signed, err = e.Center(ctx, ""); err != nil {
			return nil, err
		}
		if signed.GetHeader() == nil {
			return nil, fault.New(fault.ManifestNotReady, "the task has no signed manifest, so there is no evidence of it")
		}
		if len(e.Keys) > 0 {
			if first, err = e.Center(ctx, e.Keys[0]); err != nil {
				return nil, err
			}
		}
	}
	if e.Consumer != nil {
		if words, err = e.Consumer(ctx, ""); err != nil {
			return nil, err
		}
	}
	return func(out io.Writer) error {
		to, err := NewWriter(out, e.TaskID)
		if err != nil {
			return err
		}
		if err := e.stated(ctx, to, signed, first); err != nil {
			return err
		}
		if err := e.kept(ctx, to, words); err != nil {
			return err
		}
		return to.Close()
	}, nil
}

// stated writes what the center signed and stores; first is what it said of the first key.
func (e Export) stated(ctx context.Context, to *Writer, signed, first *centerv1.GetEvidenceResponse) error {
	if err := envelope(to, Header, signed.GetHeader()); err != nil {
		return err
	}
	for _, report := range signed.GetReports() {
		if err := envelope(to, Report, report); err != nil {
			return err
		}
	}
	for i, key := range e.Keys {
		got := first
		if i > 0 {
			var err error
			if got, err = e.Center(ctx, key); err != nil {
				return err
			}
		}
		line, err := membership(key, got)
		if err != nil {
			return err
		}
		if err := to.Add(line); err != nil {
			return err
		}
	}
	return nil
}

func membership(key string, got *centerv1.GetEvidenceResponse) (Line, error) {
	row, err := document.NeighbourFromProto(got.GetIncluded())
	left, leftErr := document.NeighbourFromProto(got.GetAbsent().GetLeft())
	right, rightErr := document.NeighbourFromProto(got.GetAbsent().GetRight())
	if err := errors.Join(err, leftErr, rightErr); err != nil {
		return Line{}, fmt.Errorf("read the place of record %s: %w", key, err)
	}
	line := Line{Kind: Membership, Key: key, Included: NeighbourOf(row)}
	if row == nil {
		line.Absent = &Absent{Left: NeighbourOf(left), Right: NeighbourOf(right)}
	}
	return line, nil
}

// kept writes the words that the consumer keeps, page after page.
func (e Export) kept(ctx context.Context, to *Writer, page *consumerv1.ListEvidenceResponse) error {
	for {
		if err := envelope(to, Instruction, page.GetInstruction()); err != nil {
			return err
		}
		if err := envelope(to, Result, page.GetReport()); err != nil {
			return err
		}
		for _, word := range page.GetWords() {
			env := document.EnvelopeFromProto(word.GetWord())
			if err := to.Add(Line{Kind: Word, Key: word.GetKey(), Outcome: word.GetOutcome(), Envelope: &env}); err != nil {
				return err
			}
		}
		if page.GetNextPageToken() == "" {
			return nil
		}
		var err error
		if page, err = e.Consumer(ctx, page.GetNextPageToken()); err != nil {
			return err
		}
	}
}

// envelope writes a document, if there is one.
func envelope(to *Writer, kind Kind, m *evidencev1.Envelope) error {
	if m == nil {
		return nil
	}
	env := document.EnvelopeFromProto(m)
	return to.Add(Line{Kind: kind, Envelope: &env})
}
