package admin_test

import (
	"fmt"
	"slices"
	"testing"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// words gives a task's ledger signed words of some sizes, and the task an instruction.
func (w *world) words(id string, sizes ...int) {
	w.t.Helper()
	stored := func(payload []byte) []byte {
		text, err := document.MarshalEnvelope(evidence.Envelope{PayloadType: "a", Payload: payload, Signatures: []evidence.Signature{{KeyID: "k", Sig: []byte("s")}}})
		if err != nil {
			w.t.Fatal(err)
		}
		return text
	}
	w.exec(`UPDATE lockstep.work SET instruction = $2 WHERE task_id = $1::text::uuid`, id, stored([]byte("instruction")))
	for i, size := range sizes {
		w.exec(`UPDATE lockstep.outcome SET evidence = $3 WHERE task_id = $1::text::uuid AND record_key = $2`, id, []byte{15: byte(i + 1)}, stored(make([]byte, size)))
	}
}

func TestListEvidence(t *testing.T) {
	w := setup(t)
	id := w.ledger()
	ctx := w.as(identity.RoleOperator)
	// The pages of the keys 1 to 5, the last without a word.
	pages := func(size int32) (all [][]string) {
		t.Helper()
		req := &consumerv1.ListEvidenceRequest{TaskId: id, PageSize: size}
		for first := true; ; first = false {
			got, err := w.server.ListEvidence(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			if (got.GetInstruction() != nil) != first || got.GetReport() != nil {
				t.Errorf("instruction %v, report %v", got.GetInstruction(), got.GetReport())
			}
			var page []string
			for _, word := range got.GetWords() {
				page = append(page, fmt.Sprintf("%s %s %d", word.GetKey()[30:], word.GetOutcome(), len(word.GetWord().GetPayload())))
			}
			all = append(all, page)
			if req.PageToken = got.GetNextPageToken(); req.PageToken == "" {
				return all
			}
		}
	}
	w.words(id, 10, 11, 12, 13)
	w.exec(`UPDATE lockstep.outcome SET evidence = NULL WHERE record_key = $1`, []byte{15: 5})
	if got, want := pages(3), [][]string{{"01 REPAIRED 10", "02 REPAIRED 11", "03 REPAIRED 12"}, {"04 REPAIRED 13"}}; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
	t.Run("a page is cut by bytes", func(t *testing.T) {
		w.words(id, 8<<20, 8<<20, 1<<19, 10)
		want := [][]string{{"01 REPAIRED 8388608"}, {"02 REPAIRED 8388608", "03 REPAIRED 524288", "04 REPAIRED 10"}}
		if got := pages(0); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("the report is there while it is what the ledger amounts to", func(t *testing.T) {
		w.exec(`UPDATE lockstep.work SET report = instruction, report_state = 'PARTIAL', report_attempt = 1`)
		pages(0) // RUNNING again: it is not
		w.exec(`UPDATE lockstep.work SET state = 'PARTIAL', claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL, ended_at = now()`)
		got, err := w.server.ListEvidence(ctx, &consumerv1.ListEvidenceRequest{TaskId: id, PageSize: 1})
		if err != nil || string(got.GetReport().GetPayload()) != "instruction" {
			t.Errorf("%v, %v", got, err)
		}
	})
	t.Run("refusals", func(t *testing.T) {
		for name, c := range map[string]struct {
			req  *consumerv1.ListEvidenceRequest
			want fault.Reason
		}{
			"page size": {&consumerv1.ListEvidenceRequest{TaskId: id, PageSize: 201}, fault.InvalidArgument},
			"token":     {&consumerv1.ListEvidenceRequest{TaskId: id, PageToken: "x"}, fault.CursorInvalid},
			"task":      {&consumerv1.ListEvidenceRequest{TaskId: "x"}, fault.InvalidArgument},
		} {
			if _, err := w.server.ListEvidence(ctx, c.req); fault.ReasonOf(err) != c.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := w.server.ListEvidence(w.as(identity.RoleOperator, 8), &consumerv1.ListEvidenceRequest{TaskId: id}); fault.ReasonOf(err) != fault.TaskNotFound {
			t.Errorf("another tenant: %v", err)
		}
		w.exec(`UPDATE lockstep.work SET purged_at = now()`)
		if _, err := w.server.ListEvidence(ctx, &consumerv1.ListEvidenceRequest{TaskId: id}); fault.ReasonOf(err) != fault.NotFound {
			t.Errorf("after the retention time: %v", err)
		}
	})
}
