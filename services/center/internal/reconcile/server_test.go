package reconcile_test

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/center/internal/evidencetest"
	"lockstep.dev/services/center/internal/reconcile"
	"lockstep.dev/services/center/internal/report"
)

var nonce = []byte("a nonce of 24 fresh bytes")

// serve wires the server of a world and gives the consumer's context.
func serve(t *testing.T, w *evidencetest.World) (*reconcile.Server, context.Context) {
	t.Helper()
	s := &reconcile.Server{
		Store: w.Store, Reader: w.Reader, Records: w.Answerer,
		Reports: &report.Handler{
			Store: w.Store, Source: evidencetest.Center, Policy: w.Materialiser.Policy, Wake: func() {},
			Keys: func(string) []evidence.Key { return nil },
		},
	}
	return s, identity.WithPeer(t.Context(), evidencetest.Consumer)
}

// calls are all calls about a task but the report, by name.
func calls(s *reconcile.Server, taskID string) map[string]func(context.Context) (evidencev1.TaskState, error) {
	return map[string]func(context.Context) (evidencev1.TaskState, error){
		"GetManifest": func(ctx context.Context) (evidencev1.TaskState, error) {
			r, err := s.GetManifest(ctx, &centerv1.GetManifestRequest{TaskId: taskID})
			return r.GetTaskState(), err
		},
		"ListPageIndex": func(ctx context.Context) (evidencev1.TaskState, error) {
			r, err := s.ListPageIndex(ctx, &centerv1.ListPageIndexRequest{TaskId: taskID})
			return r.GetTaskState(), err
		},
		"GetPages": func(ctx context.Context) (evidencev1.TaskState, error) {
			r, err := s.GetPages(ctx, &centerv1.GetPagesRequest{TaskId: taskID, Pages: []int32{0}})
			return r.GetTaskState(), err
		},
		"ListRows": func(ctx context.Context) (evidencev1.TaskState, error) {
			r, err := s.ListRows(ctx, &centerv1.ListRowsRequest{TaskId: taskID})
			return r.GetTaskState(), err
		},
		"GetRecords": func(ctx context.Context) (evidencev1.TaskState, error) {
			r, err := s.GetRecords(ctx, &centerv1.GetRecordsRequest{
				TaskId: taskID, Nonce: nonce, Records: []*centerv1.RecordRequest{{Key: evidencetest.Key(1)}},
			})
			return r.GetTaskState(), err
		},
	}
}

func TestEveryCallIsCheckedAgain(t *testing.T) {
	w := evidencetest.New(t)
	w.Answers(3)
	s, ctx := serve(t, w)
	id := w.Task()
	taskID := protocol.FormatID(id)
	all := func(t *testing.T, ctx context.Context, taskID string, want fault.Reason) {
		t.Helper()
		for name, call := range calls(s, taskID) {
			state, err := call(ctx)
			if got := fault.ReasonOf(err); got != want {
				t.Errorf("%s: %q (%v), want %q", name, got, err, want)
			}
			if err == nil && state != evidencev1.TaskState_TASK_STATE_QUEUED {
				t.Errorf("%s: task state %s", name, state)
			}
		}
	}
	t.Run("before the manifest is complete nothing is read", func(t *testing.T) { all(t, ctx, taskID, fault.ManifestNotReady) })
	w.Materialise(id)
	t.Run("the task's consumer is answered, with the task's state", func(t *testing.T) { all(t, ctx, taskID, fault.None) })
	t.Run("another consumer sees no task", func(t *testing.T) {
		all(t, identity.WithPeer(t.Context(), "somebody-else"), taskID, fault.TaskNotFound)
		all(t, t.Context(), taskID, fault.TaskNotFound)
	})
	t.Run("a task that is none", func(t *testing.T) { all(t, ctx, protocol.FormatID(uuid.New()), fault.TaskNotFound) })
	t.Run("an id in another spelling", func(t *testing.T) { all(t, ctx, id.String(), fault.InvalidArgument) })
	t.Run("a claimed identity that differs from the verified one", func(t *testing.T) {
		_, err := s.GetManifest(ctx, &centerv1.GetManifestRequest{TaskId: taskID, Consumer: "somebody-else"})
		if fault.ReasonOf(err) != fault.IdentityMismatch {
			t.Error(err)
		}
		if _, err := s.GetManifest(ctx, &centerv1.GetManifestRequest{TaskId: taskID, Consumer: evidencetest.Consumer}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a moved epoch cancels at the first call; then the task has ended", func(t *testing.T) {
		w.Exec(`UPDATE lockstep.consumer_grant SET grant_epoch = 2`)
		_, err := s.GetManifest(ctx, &centerv1.GetManifestRequest{TaskId: taskID})
		if fault.ReasonOf(err) != fault.EpochMoved {
			t.Error(err)
		}
		all(t, ctx, taskID, fault.TaskTerminal)
		_, err = s.GetManifest(ctx, &centerv1.GetManifestRequest{TaskId: taskID})
		if fault.MetaOf(err)["task_state"] != "CANCELLED" {
			t.Errorf("%v", fault.MetaOf(err))
		}
	})
}

func TestAConsumerCanProveEverythingItIsServed(t *testing.T) {
	w := evidencetest.New(t)
	w.Answers(11)
	w.Answer(evidencetest.Key(12), 6, true, "")
	tk := w.Complete()
	s, ctx := serve(t, w)
	taskID := protocol.FormatID(tk.ID)

	got, err := s.GetManifest(ctx, &centerv1.GetManifestRequest{TaskId: taskID})
	if err != nil {
		t.Fatal(err)
	}
	header, err := document.OpenHeader(document.EnvelopeFromProto(got.GetHeader()), w.Keys)
	if err != nil || header.RowCount != 12 {
		t.Fatalf("header %+v, %v", header, err)
	}
	index, err := s.ListPageIndex(ctx, &centerv1.ListPageIndexRequest{TaskId: taskID})
	if err != nil || !index.GetCompleted() {
		t.Fatal(index, err)
	}
	var roots []evidence.Node
	var numbers []int32
	for i, e := range index.GetEntries() {
		roots, numbers = append(roots, evidence.Node(e.GetRoot())), append(numbers, int32(i))
	}
	if evidence.Fold(roots) != header.Root {
		t.Error("the index does not fold into the signed root")
	}
	pages, err := s.GetPages(ctx, &centerv1.GetPagesRequest{TaskId: taskID, Pages: numbers})
	if err != nil || len(pages.GetPages()) != 3 || len(pages.GetLeftOver()) != 0 {
		t.Fatal(pages, err)
	}
	for i, p := range pages.GetPages() {
		rows, err := evidence.DecodePage(p.GetBody(), nil, header.PageRows)
		if err != nil || evidence.PageRowsRoot(rows) != roots[i] || int(p.GetPage()) != i {
			t.Errorf("page %d: %v", i, err)
		}
	}
	rows, err := s.ListRows(ctx, &centerv1.ListRowsRequest{TaskId: taskID, Cursor: evidencetest.Key(10), Size: 5})
	if err != nil || len(rows.GetRows()) != 2 || !rows.GetCompleted() || rows.GetTotalRows() != 12 || rows.GetTotalPages() != 1 {
		t.Fatal(rows, err)
	}
	last := rows.GetRows()[1]
	if want := "0000000000000000000000000000000000000000000000000000000000000000"; last.GetKey() != evidencetest.Key(12) || last.GetRevision() != 6 ||
		!last.GetDeleted() || len(last.GetContentHash()) != len(want) || last.GetContentHash() == want || last.GetSchemaVersion() != 3 || last.GetSequence() != 46 {
		t.Errorf("row %v", last)
	}
	records, err := s.GetRecords(ctx, &centerv1.GetRecordsRequest{TaskId: taskID, Nonce: nonce, Records: []*centerv1.RecordRequest{
		{Key: evidencetest.Between(4), ExpectedRevision: 3}, {Key: evidencetest.Key(12), ExpectedRevision: 1},
	}})
	if err != nil || len(records.GetAnswers()) != 2 {
		t.Fatal(records, err)
	}
	absence, err := document.OpenAbsence(document.EnvelopeFromProto(records.GetAnswers()[0].GetWord()), w.Keys)
	if err != nil || absence.ExpectedRevision != 3 {
		t.Fatalf("%+v, %v", absence, err)
	}
	raw, err := protocol.ParseKey(evidencetest.Between(4))
	if err != nil {
		t.Fatal(err)
	}
	if err := absence.Evidence.Verify(raw, uint64(header.RowCount), header.Root); err != nil {
		t.Error(err)
	}
	snapshot, err := document.OpenSnapshot(document.EnvelopeFromProto(records.GetAnswers()[1].GetWord()), w.Keys)
	if err != nil || snapshot.Revision != 6 || !snapshot.Deleted || snapshot.Content != nil {
		t.Errorf("%+v, %v", snapshot, err)
	}
}

func TestAReportOfNobodyIsRefused(t *testing.T) {
	w := evidencetest.New(t)
	s, ctx := serve(t, w)
	if _, err := s.ReportResult(ctx, &centerv1.ReportResultRequest{}); fault.ReasonOf(err) == fault.None {
		t.Errorf("an empty report: %v", err)
	}
}

// TestAReportIsAcknowledged: a progress report of the running attempt, signed
// by the consumer.
func TestAReportIsAcknowledged(t *testing.T) {
	w := evidencetest.New(t)
	tk := w.Complete()
	w.Exec(`UPDATE lockstep.task SET state = 'DISPATCHED', attempt = 1, slot = 1, lease_until = now() + interval '1 hour', dispatched_at = now()`)
	s, ctx := serve(t, w)
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Reports.Keys = func(appKey string) []evidence.Key {
		if appKey != evidencetest.Consumer {
			return nil
		}
		return []evidence.Key{{ID: "hall-1", Public: public}}
	}
	env, err := document.SealReport(evidence.NewSigner("hall-1", private), &protocol.Report{
		At: tk.Coordinates(evidencetest.Center), Attempt: 1, State: protocol.Running, Phase: protocol.Scanning,
		ManifestID: protocol.FormatID(tk.ManifestID), ManifestRoot: tk.ManifestRoot, Verified: protocol.Hashes, IssuedAt: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ack, err := s.ReportResult(ctx, &centerv1.ReportResultRequest{Report: document.EnvelopeToProto(env)})
	if err != nil {
		t.Fatal(err)
	}
	if ack.GetTaskId() != protocol.FormatID(tk.ID) || ack.GetDecision() != centerv1.Decision_DECISION_CURRENT_ACCEPTED ||
		ack.GetReportAttempt() != 1 || ack.GetAttempt() != 1 || ack.GetTaskState() != evidencev1.TaskState_TASK_STATE_RUNNING || ack.GetStale() {
		t.Errorf("acknowledgement %v", ack)
	}
}
