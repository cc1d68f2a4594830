package admin

import (
	"context"
	"fmt"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/task"
)

// GetEvidence gives the signed words behind a task as they were signed, and for
// a key its place in the manifest. Of the manifest it reads the page index and
// the two pages at most that hold the key's place.
func (s *Server) GetEvidence(ctx context.Context, req *centerv1.GetEvidenceRequest) (*centerv1.GetEvidenceResponse, error) {
	op, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	tk, err := s.visible(ctx, op, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	answer := &centerv1.GetEvidenceResponse{}
	if len(tk.Header) > 0 {
		header, err := document.UnmarshalEnvelope(tk.Header)
		if err != nil {
			return nil, fmt.Errorf("header of task %s: %w", tk.ID, err)
		}
		answer.Header = document.EnvelopeToProto(header)
	}
	results, err := s.Store.Results(ctx, tk.ID)
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		report, err := document.UnmarshalEnvelope(r.Report)
		if err != nil {
			return nil, fmt.Errorf("report of task %s: %w", tk.ID, err)
		}
		answer.Reports = append(answer.Reports, document.EnvelopeToProto(report))
	}
	if req.GetKey() == "" {
		return answer, nil
	}
	return answer, s.membership(ctx, tk, req.GetKey(), answer)
}

// membership shows a key among the manifest's rows, or absent from them. The
// manifest of a task for one record says nothing of any other.
func (s *Server) membership(ctx context.Context, tk *task.Task, name string, answer *centerv1.GetEvidenceResponse) error {
	key, err := protocol.ParseKey(name)
	switch {
	case err != nil:
		return fault.New(fault.InvalidArgument, "the request is malformed").WithField("key", "%s", err)
	case tk.Scope == protocol.Record && name != tk.Key:
		return fault.New(fault.KeyMismatch, "the task is about another record")
	}
	places, err := s.Reader.Places(ctx, tk, []string{key})
	if err != nil {
		return err
	}
	place := places[key]
	if place.Present {
		answer.Membership = &centerv1.GetEvidenceResponse_Included{Included: document.NeighbourToProto(place.Row)}
		return nil
	}
	answer.Membership = &centerv1.GetEvidenceResponse_Absent{Absent: &centerv1.Absence{
		Left: document.NeighbourToProto(place.Absence.Left), Right: document.NeighbourToProto(place.Absence.Right),
	}}
	return nil
}
