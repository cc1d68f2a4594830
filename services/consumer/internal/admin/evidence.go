package admin

import (
	"context"
	"fmt"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/internal/cursor"
)

const (
	maxWords = 200
	// maxWordBytes of one page; a content has at most 8 MiB, and a receiver takes 12.
	maxWordBytes = 9 << 20
)

// ListEvidence gives the signed words behind a task as they came, in key order.
func (s *Server) ListEvidence(ctx context.Context, req *consumerv1.ListEvidenceRequest) (*consumerv1.ListEvidenceResponse, error) {
	w, err := s.visible(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	size, err := cursor.Size(req.GetPageSize(), defaultRows)
	if err != nil || size > maxWords {
		return nil, fault.New(fault.InvalidArgument, "impossible page size").WithField("page_size", "1 to %d", maxWords)
	}
	page := store.EvidencePage{Limit: size, MaxBytes: maxWordBytes}
	answer := &consumerv1.ListEvidenceResponse{}
	list := cursor.Of("evidence", w.TaskID)
	if page.After, err = cursor.ResumeKey(list, req.GetPageToken()); err != nil {
		return nil, err
	}
	if req.GetPageToken() == "" {
		if err := s.firstWords(ctx, w, answer); err != nil {
			return nil, err
		}
	}
	words, more, err := s.Store.Evidence(ctx, w, page)
	if err != nil {
		return nil, err
	}
	for _, word := range words {
		env, err := envelope(w, word.Word)
		if err != nil {
			return nil, err
		}
		answer.Words = append(answer.Words, &consumerv1.ListEvidenceResponse_Word{Key: protocol.FormatKey(word.Key), Outcome: string(word.Outcome), Word: env})
	}
	if more {
		answer.NextPageToken = cursor.AfterKey(list, words[len(words)-1].Key)
	}
	return answer, nil
}

// firstWords are the instruction, and the report while it is what the ledger
// amounts to: not once the task is worked on again.
func (s *Server) firstWords(ctx context.Context, w *store.Work, answer *consumerv1.ListEvidenceResponse) error {
	instruction, err := s.Store.Instruction(ctx, w)
	if err != nil {
		return err
	}
	if answer.Instruction, err = envelope(w, instruction); err != nil {
		return err
	}
	if w.State != work.Reporting && w.EndedAt == nil || len(w.Report) == 0 {
		return nil
	}
	answer.Report, err = envelope(w, w.Report)
	return err
}

func envelope(w *store.Work, stored []byte) (*evidencev1.Envelope, error) {
	env, err := document.UnmarshalEnvelope(stored)
	if err != nil {
		return nil, fmt.Errorf("words of task %s: %w", w.ID(), err)
	}
	return document.EnvelopeToProto(env), nil
}
