package report_test

import (
	"context"
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/report"
	"lockstep.dev/services/center/internal/store"
)

type world struct {
	*centertest.World
	h      *report.Handler
	signer *evidence.Signer
	woken  int
}

func newKey(seed string) (*evidence.Signer, evidence.Key) {
	private := ed25519.NewKeyFromSeed([]byte((seed + strings.Repeat(".", 32))[:32]))
	public, _ := private.Public().(ed25519.PublicKey)
	return evidence.NewSigner(seed, private), evidence.Key{ID: seed, Public: public}
}

func setup(t *testing.T) *world {
	t.Helper()
	signer, key := newKey(centertest.Consumer)
	_, otherKey := newKey("svc-other")
	w := &world{World: centertest.New(t), signer: signer}
	w.h = &report.Handler{
		Store: w.Store, Source: centertest.Center, Policy: centertest.Policy,
		Limits: report.Limits{MaxItems: 2, MaxChars: 200},
		Keys: func(appKey string) []evidence.Key {
			return map[string][]evidence.Key{centertest.Consumer: {key}, "svc-other": {otherKey}}[appKey]
		},
		Wake: func() { w.woken++ },
	}
	return w
}

// about is a progress report of a task's first attempt.
func (w *world) about(id uuid.UUID) *protocol.Report {
	w.T.Helper()
	tk := w.Read(id)
	return &protocol.Report{
		At: tk.Coordinates(centertest.Center), Attempt: 1, State: protocol.Running, Phase: protocol.Scanning,
		ManifestID: protocol.FormatID(tk.ManifestID), ManifestRoot: tk.ManifestRoot, Verified: protocol.Hashes,
		IssuedAt: time.Unix(1_700_000_000, 0),
	}
}

// completed is the report of a run that found two differences and repaired them.
func (w *world) completed(id uuid.UUID) *protocol.Report {
	r := w.about(id)
	r.State, r.Phase, r.CenterComplete, r.LocalComplete, r.CenterScanned = protocol.Completed, "", true, true, 3
	r.Counts = []protocol.ClassCount{{Class: protocol.Missing, Found: 2, Repaired: 2}}
	return r
}

func (w *world) send(r *protocol.Report) (*report.Ack, error) {
	w.T.Helper()
	env, err := document.SealReport(w.signer, r)
	w.Must(err)
	return w.h.Report(w.T.Context(), centertest.Consumer, env)
}

func (w *world) mustSend(r *protocol.Report) *report.Ack {
	w.T.Helper()
	ack, err := w.send(r)
	w.Must(err)
	return ack
}

func (w *world) wantAck(got *report.Ack, want report.Ack) {
	w.T.Helper()
	want.TaskID = got.TaskID
	if *got != want {
		w.T.Fatalf("the answer is %+v, want %+v", *got, want)
	}
}

func TestReport(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, w *world){
		"progress_makes_a_dispatched_task_run_and_renews_its_lease": func(t *testing.T, w *world) {
			id := w.Dispatched(centertest.Scope)
			w.Set(id, `lease_until = now() + interval '1 second'`)
			w.wantAck(w.mustSend(w.about(id)), report.Ack{Decision: protocol.CurrentAccepted, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Running, ResultState: protocol.Running})
			w.WantState(id, "RUNNING")
			if w.Int(`SELECT count(*) FROM lockstep.task WHERE lease_until > now() + interval '14 minutes' AND progress IS NOT NULL AND waiting_since IS NULL`) != 1 {
				t.Error("the lease was not renewed, or the progress not stored")
			}
		},
		"a_result_moves_the_state_and_is_stored_with_it": func(t *testing.T, w *world) {
			id := w.Running(centertest.Scope)
			w.wantAck(w.mustSend(w.completed(id)), report.Ack{Decision: protocol.CurrentAccepted, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Completed, ResultState: protocol.Completed})
			w.WantState(id, "COMPLETED")
			if n := w.Int(`SELECT count(*) FROM lockstep.task_result WHERE attempt = 1 AND state = 'COMPLETED'`); n != 1 {
				t.Errorf("%d results are stored", n)
			}
			if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE action = 'task.end' AND decision = 'COMPLETED' AND actor = 'consumer/svc-hall'`); n != 1 {
				t.Errorf("%d audit rows", n)
			}
			if w.woken != 1 {
				t.Error("nobody was told that a slot is free")
			}
		},
		"a_repeated_result_is_a_duplicate_whatever_it_says": func(_ *testing.T, w *world) {
			id := w.Running(centertest.Scope)
			w.mustSend(w.completed(id))
			again := w.about(id)
			again.State, again.Phase, again.Code = protocol.Failed, "", "ORDER_VIOLATION"
			w.wantAck(w.mustSend(again), report.Ack{Decision: protocol.CurrentDuplicate, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Completed, ResultState: protocol.Completed})
			w.wantAck(w.mustSend(w.about(id)), report.Ack{Decision: protocol.CurrentDuplicate, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Completed, ResultState: protocol.Completed})
			w.WantState(id, "COMPLETED")
		},
		"a_task_that_ended_otherwise_is_to_be_mirrored": func(_ *testing.T, w *world) {
			id := w.Running(centertest.Scope)
			w.Must(w.Store.Cancel(w.T.Context(), id, "no longer wanted", "operator/eva"))
			w.Revoke(centertest.Scope) // no grant is read any more
			w.wantAck(w.mustSend(w.completed(id)), report.Ack{Decision: protocol.CenterTerminal, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Cancelled, Stale: true, Code: "CANCELLED_BY_OPERATOR"})
			w.WantState(id, "CANCELLED CANCELLED_BY_OPERATOR")
		},
		"an_attempt_never_dispatched_is_refused": func(t *testing.T, w *world) {
			id := w.Running(centertest.Scope)
			r := w.completed(id)
			r.Attempt = 2
			_, err := w.send(r)
			wantReason(t, err, fault.AttemptUnknown)
			w.WantState(id, "RUNNING")
		},
		"a_stale_attempt_moves_nothing": func(t *testing.T, w *world) {
			id := w.Running(centertest.Scope)
			w.Set(id, `attempt = 2`)
			before := w.Everything()
			w.wantAck(w.mustSend(w.completed(id)), report.Ack{Decision: protocol.StaleRetry, ReportAttempt: 1, Attempt: 2, TaskState: protocol.Running})
			if w.Everything() != before {
				t.Error("something moved")
			}
		},
		"a_revoked_grant_cancels_the_task": func(_ *testing.T, w *world) {
			id := w.Running(centertest.Scope)
			w.Revoke(centertest.Scope)
			w.wantAck(w.mustSend(w.completed(id)), report.Ack{Decision: protocol.CenterTerminal, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Cancelled, Code: "GRANT_REVOKED"})
			w.WantState(id, "CANCELLED GRANT_REVOKED")
		},
		"a_moved_epoch_cancels_the_task": func(_ *testing.T, w *world) {
			id := w.Running(centertest.Scope)
			w.Exec(`UPDATE lockstep.consumer_grant SET grant_epoch = 2`)
			w.wantAck(w.mustSend(w.about(id)), report.Ack{Decision: protocol.CenterTerminal, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Cancelled, Code: "EPOCH_MOVED"})
		},
		"a_failed_report_keeps_its_code": func(_ *testing.T, w *world) {
			id := w.Running(centertest.Scope)
			r := w.about(id)
			r.State, r.Phase, r.Code = protocol.Failed, "", "PAGE_NOT_PROVEN"
			w.wantAck(w.mustSend(r), report.Ack{Decision: protocol.CurrentAccepted, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Failed, ResultState: protocol.Failed, Code: "PAGE_NOT_PROVEN"})
			w.WantState(id, "FAILED PAGE_NOT_PROVEN")
		},
		"a_result_reaches_a_task_queued_again": func(_ *testing.T, w *world) {
			id := w.Ready(centertest.Scope)
			w.Set(id, `attempt = 1, due_at = now() + interval '1 hour'`)
			w.mustSend(w.completed(id))
			w.WantState(id, "COMPLETED")
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, setup(t)) })
	}
}

func TestProgressOfAQueuedTask(t *testing.T) {
	t.Run("takes_the_row_from_the_dispatcher_whose_answer_is_late", func(t *testing.T) {
		w := setup(t)
		id := w.Ready(centertest.Scope)
		c, _, ok, err := w.Store.ClaimDispatch(t.Context(), "dispatcher", centertest.Policy)
		if err != nil || !ok {
			t.Fatalf("claim: %t, %v", ok, err)
		}
		w.mustSend(w.about(id))
		w.WantState(id, "RUNNING")
		err = w.Store.InTx(t.Context(), func(tx *store.Tx) error {
			tk, err := tx.LockTask(t.Context(), id)
			if err != nil {
				return err
			}
			return tx.MoveHeld(t.Context(), store.DispatchSite, c, tk, store.Move{To: protocol.Dispatched, Lease: time.Minute})
		})
		if err == nil {
			t.Error("the dispatcher still had effect")
		}
	})
	t.Run("gets_its_slot_back_where_one_is_free", func(t *testing.T) {
		w := setup(t)
		id := w.Ready(centertest.Scope)
		w.Set(id, `attempt = 1, due_at = now() + interval '1 hour'`)
		w.mustSend(w.about(id))
		w.WantState(id, "RUNNING")
	})
	t.Run("waits_for_the_next_instruction_where_none_is", func(t *testing.T) {
		w := setup(t)
		id := w.Ready(centertest.Scope)
		w.Set(id, `attempt = 1, due_at = now() + interval '1 hour'`)
		other := centertest.Scope
		other.CollectionID = "form-2"
		w.Grant(other)
		w.Running(other)
		w.wantAck(w.mustSend(w.about(id)), report.Ack{Decision: protocol.StaleRetry, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Queued})
		w.WantState(id, "QUEUED")
	})
}

func TestWaiting(t *testing.T) {
	w := setup(t)
	id := w.Dispatched(centertest.Scope)
	r := w.about(id)
	r.Phase, r.Code = protocol.Waiting, "PAUSED"
	w.wantAck(w.mustSend(r), report.Ack{Decision: protocol.CurrentAccepted, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Dispatched, ResultState: protocol.Dispatched})
	if tk := w.Read(id); tk.WaitingCode != "PAUSED" || tk.State != protocol.Dispatched {
		t.Errorf("the task is %s and waits for %q", tk.State, tk.WaitingCode)
	}
	w.Set(id, `waiting_since = now() - interval '13 hours'`)
	w.wantAck(w.mustSend(r), report.Ack{Decision: protocol.CenterTerminal, ReportAttempt: 1, Attempt: 1, TaskState: protocol.Failed, Code: "GIVEN_UP"})
	w.WantState(id, "FAILED GIVEN_UP")
}

func TestReportIsRefused(t *testing.T) {
	w := setup(t)
	id := w.Running(centertest.Scope)
	before := w.Everything()
	for name, c := range map[string]struct {
		change func(r *protocol.Report)
		want   fault.Reason
	}{
		"COMPLETED with an incomplete local scan":   {func(r *protocol.Report) { r.LocalComplete = false }, fault.ResultInconsistent},
		"COMPLETED with an incomplete center scan":  {func(r *protocol.Report) { r.CenterComplete = false }, fault.ResultInconsistent},
		"COMPLETED with an open difference":         {func(r *protocol.Report) { r.Counts[0].Repaired, r.Counts[0].Reported = 1, 1 }, fault.ResultInconsistent},
		"COMPLETED with a difference without end":   {func(r *protocol.Report) { r.Counts[0].Found = 3 }, fault.ResultInconsistent},
		"another manifest":                          {func(r *protocol.Report) { r.ManifestRoot[0]++ }, fault.ManifestMismatch},
		"another tenant":                            {func(r *protocol.Report) { r.At.TenantID++ }, fault.TenantMismatch},
		"another collection":                        {func(r *protocol.Report) { r.At.CollectionID = "form-2" }, fault.CollectionMismatch},
		"another grant epoch":                       {func(r *protocol.Report) { r.At.GrantEpoch++ }, fault.GrantEpochMismatch},
		"another center epoch":                      {func(r *protocol.Report) { r.At.CenterEpoch++ }, fault.GrantEpochMismatch},
		"another consumer":                          {func(r *protocol.Report) { r.At.Consumer = "svc-other" }, fault.IdentityMismatch},
		"another center":                            {func(r *protocol.Report) { r.At.Source = "other-center" }, fault.AudienceMismatch},
		"a task that does not exist":                {func(r *protocol.Report) { r.At.TaskID = strings.Repeat("0", 32) }, fault.TaskNotFound},
		"a task id that is none":                    {func(r *protocol.Report) { r.At.TaskID = "1" }, fault.InvalidArgument},
		"a state of the center's":                   {func(r *protocol.Report) { r.State = protocol.Dispatched }, fault.InvalidArgument},
		"attempt 0":                                 {func(r *protocol.Report) { r.Attempt = 0 }, fault.InvalidArgument},
		"RUNNING without a phase":                   {func(r *protocol.Report) { r.State = protocol.Running }, fault.InvalidArgument},
		"FAILED without a code":                     {func(r *protocol.Report) { r.State = protocol.Failed }, fault.InvalidArgument},
		"a code that is a sentence":                 {func(r *protocol.Report) { r.Code = "the answer is 42" }, fault.InvalidArgument},
		"a class nobody knows":                      {func(r *protocol.Report) { r.Counts[0].Class = "ODD" }, fault.InvalidArgument},
		"a class stated twice":                      {func(r *protocol.Report) { r.Counts = append(r.Counts, r.Counts[0]) }, fault.InvalidArgument},
		"a negative count":                          {func(r *protocol.Report) { r.Counts[0].Settled = -1 }, fault.InvalidArgument},
		"more items than the limit":                 {func(r *protocol.Report) { r.Items = make([]protocol.ErrorItem, 3) }, fault.InvalidArgument},
		"longer items than the limit":               {func(r *protocol.Report) { r.Items = []protocol.ErrorItem{{Range: strings.Repeat("x", 201)}} }, fault.InvalidArgument},
		"an item whose key is content":              {func(r *protocol.Report) { r.Items = []protocol.ErrorItem{{Key: "my phone number"}} }, fault.InvalidArgument},
		"an item whose code is content":             {func(r *protocol.Report) { r.Items = []protocol.ErrorItem{{Code: "my phone number"}} }, fault.InvalidArgument},
		"a retirement code that is no code at all!": {func(r *protocol.Report) { r.RetireCode = "oh no" }, fault.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.completed(id)
			c.change(r)
			_, err := w.send(r)
			wantReason(t, err, c.want)
		})
	}
	if w.Everything() != before {
		t.Error("a refused report moved something")
	}
}

func TestReportIdentity(t *testing.T) {
	w := setup(t)
	id := w.Running(centertest.Scope)
	other, _ := newKey("svc-other")
	t.Run("a_report_signed_by_another_service_is_refused", func(t *testing.T) {
		env, err := document.SealReport(other, w.completed(id))
		w.Must(err)
		_, err = w.h.Report(t.Context(), centertest.Consumer, env)
		wantReason(t, err, fault.SignatureInvalid)
	})
	t.Run("a_task_of_another_consumer_is_not_found", func(t *testing.T) {
		r := w.completed(id)
		r.At.Consumer = "svc-other"
		env, err := document.SealReport(other, r)
		w.Must(err)
		_, err = w.h.Report(t.Context(), "svc-other", env)
		wantReason(t, err, fault.TaskNotFound)
	})
	t.Run("another_kind_of_document_is_refused", func(t *testing.T) {
		env, err := document.SealUndecidable(w.signer, &protocol.Undecidable{At: w.Read(id).Coordinates(centertest.Center)})
		w.Must(err)
		_, err = w.h.Report(t.Context(), centertest.Consumer, env)
		wantReason(t, err, fault.DocumentType)
	})
	w.WantState(id, "RUNNING")
}

// TestRevocationRacesAReport: the report waits for a revocation that came
// first, and then sees it; a plain join would have let it pass.
func TestRevocationRacesAReport(t *testing.T) {
	w := setup(t)
	id := w.Running(centertest.Scope)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	revoker, err := w.Connect().Begin(ctx)
	w.Must(err)
	_, err = revoker.Exec(ctx, `UPDATE lockstep.consumer_grant SET enabled = false, grant_epoch = grant_epoch + 1`)
	w.Must(err)
	answer := make(chan *report.Ack)
	go func() {
		env, _ := document.SealReport(w.signer, w.completed(id))
		ack, _ := w.h.Report(ctx, centertest.Consumer, env)
		answer <- ack
	}()
	w.Blocked(ctx)
	w.Must(revoker.Commit(ctx))
	ack := <-answer
	if ack == nil || ack.Decision != protocol.CenterTerminal || ack.Code != "GRANT_REVOKED" {
		t.Fatalf("the answer is %+v", ack)
	}
	w.WantState(id, "CANCELLED GRANT_REVOKED")
	if n := w.Int(`SELECT count(*) FROM lockstep.task_result`); n != 0 {
		t.Error("the result of a revoked task was stored")
	}
}

func wantReason(t *testing.T, err error, want fault.Reason) {
	t.Helper()
	if got := fault.ReasonOf(err); got != want {
		t.Fatalf("refused with %q (%v), want %s", got, err, want)
	}
}
