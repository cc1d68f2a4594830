package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	shell "lockstep.dev/services/internal/console"
)

// evidence is every signed word behind a task as JSON lines: its instruction and
// its report first, then one line a difference. It holds one page in memory.
func (p *pages) evidence(ctx context.Context, r *shell.Request) (shell.File, error) {
	request := &consumerv1.ListEvidenceRequest{TaskId: r.Value("task")}
	first, err := p.admin.ListEvidence(ctx, request)
	if err != nil {
		return shell.File{}, err
	}
	write := func(w io.Writer) error {
		page := first
		if err := line(w, &consumerv1.ListEvidenceResponse{Instruction: page.GetInstruction(), Report: page.GetReport()}); err != nil {
			return err
		}
		for {
			for _, word := range page.GetWords() {
				if err := line(w, word); err != nil {
					return err
				}
			}
			if page.GetNextPageToken() == "" {
				return nil
			}
			request.PageToken = page.GetNextPageToken()
			var err error
			if page, err = p.admin.ListEvidence(ctx, request); err != nil {
				return fmt.Errorf("read evidence: %w", err)
			}
		}
	}
	return shell.File{Name: "evidence-" + request.GetTaskId() + ".jsonl", Media: "application/jsonl", Write: write}, nil
}

// line writes a message as one line: protojson's own spaces differ from run to run.
func line(w io.Writer, m proto.Message) error {
	text, err := protojson.Marshal(m)
	if err != nil {
		return fmt.Errorf("write evidence: %w", err)
	}
	return json.NewEncoder(w).Encode(json.RawMessage(text))
}
