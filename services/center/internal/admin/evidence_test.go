package admin_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/admin"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/evidencetest"
)

// TestGetEvidence: what an auditor is given leads into the signed root.
func TestGetEvidence(t *testing.T) {
	w := evidencetest.New(t)
	w.Answers(10) // three pages of four rows
	tk := w.Complete()
	s := &admin.Server{Store: w.Store, Reader: w.Reader}
	eva := identity.WithOperator(t.Context(), identity.Operator{ID: "eva", Role: identity.RoleViewer})
	get := func(ctx context.Context, id uuid.UUID, key string) (*centerv1.GetEvidenceResponse, error) {
		return s.GetEvidence(ctx, &centerv1.GetEvidenceRequest{TaskId: protocol.FormatID(id), Key: key})
	}
	raw := func(key string) string {
		parsed, err := protocol.ParseKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	header := func(got *centerv1.GetEvidenceResponse) *protocol.Header {
		t.Helper()
		d, err := document.OpenHeader(document.EnvelopeFromProto(got.GetHeader()), w.Keys)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, n := range []int{1, 4, 5, 10} {
		got, err := get(eva, tk.ID, evidencetest.Key(n))
		if err != nil {
			t.Fatal(err)
		}
		row, err := document.NeighbourFromProto(got.GetIncluded())
		if err != nil || row == nil {
			t.Fatalf("row %d: %v, %v", n, row, err)
		}
		d := header(got)
		if row.Row.Key != raw(evidencetest.Key(n)) || row.Index != uint64(n-1) || !evidence.VerifyInclusion(evidence.LeafHash(&row.Row), row.Index, 10, row.Path, d.Root) || d.RowCount != 10 {
			t.Errorf("row %d is not proven: %v", n, row)
		}
	}
	for _, key := range []string{"00000000000000000000000000000000", evidencetest.Between(4), evidencetest.Between(7), evidencetest.Between(10)} {
		got, err := get(eva, tk.ID, key)
		if err != nil {
			t.Fatal(err)
		}
		left, leftErr := document.NeighbourFromProto(got.GetAbsent().GetLeft())
		right, rightErr := document.NeighbourFromProto(got.GetAbsent().GetRight())
		if got.GetAbsent() == nil || leftErr != nil || rightErr != nil {
			t.Fatalf("%s: %v, %v, %v", key, got, leftErr, rightErr)
		}
		if err := (evidence.Absence{Size: 10, Left: left, Right: right}).Verify(raw(key), 10, header(got).Root); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	t.Run("refusals", func(t *testing.T) {
		kim := identity.WithOperator(t.Context(), identity.Operator{ID: "kim", Role: identity.RoleViewer, Tenants: []int64{8}})
		_, err := get(kim, tk.ID, "")
		wantReason(t, err, fault.TaskNotFound)
		_, err = get(t.Context(), tk.ID, "")
		wantReason(t, err, fault.PermissionDenied)
		_, err = get(eva, tk.ID, "1")
		wantReason(t, err, fault.InvalidArgument)
		one := w.RecordTask(evidencetest.Key(3))
		got, err := get(eva, one, "")
		if err != nil || got.GetHeader() != nil || len(got.GetReports()) != 0 {
			t.Errorf("before the manifest: %v, %v", got, err)
		}
		_, err = get(eva, one, evidencetest.Key(3))
		wantReason(t, err, fault.ManifestNotReady)
		_, err = get(eva, one, evidencetest.Key(4))
		wantReason(t, err, fault.KeyMismatch)
	})
}

func TestGetEvidenceHasTheReports(t *testing.T) {
	w := setup(t)
	id := w.Running(centertest.Scope)
	w.Exec(`UPDATE lockstep.task SET header = NULL, manifest_state = 'PURGED' WHERE task_id = $1`, id)
	w.results(id, []string{"STALE"}, nil)
	before := w.Everything()
	got, err := w.s.GetEvidence(w.eva, &centerv1.GetEvidenceRequest{TaskId: protocol.FormatID(id)})
	w.Must(err)
	if len(got.GetReports()) != 2 || got.GetMembership() != nil || w.Everything() != before {
		t.Errorf("got %v", got)
	}
	for i, env := range got.GetReports() {
		r, err := document.ParseReport(env.GetPayload())
		w.Must(err)
		if r.Attempt != i+1 || len(env.GetSignatures()) != 1 {
			t.Errorf("report %d is of attempt %d", i, r.Attempt)
		}
	}
}
