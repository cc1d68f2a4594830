package worker_test

import (
	"strings"
	"testing"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/work"
)

// onResult changes the answers to results, not to progress.
func onResult(f func(*protocol.Report, *centerv1.ReportResultResponse) error) centertest.Lies {
	return centertest.Lies{Ack: func(r *protocol.Report, resp *centerv1.ReportResultResponse) error {
		if r.State == protocol.Running {
			return nil
		}
		return f(r, resp)
	}}
}

func onProgress(f func(*protocol.Report, *centerv1.ReportResultResponse) error) centertest.Lies {
	return centertest.Lies{Ack: func(r *protocol.Report, resp *centerv1.ReportResultResponse) error {
		if r.State != protocol.Running {
			return nil
		}
		return f(r, resp)
	}}
}

func TestAcknowledgements(t *testing.T) {
	answer := func(d centerv1.Decision, task, result evidencev1.TaskState) centertest.Lies {
		return onResult(func(_ *protocol.Report, resp *centerv1.ReportResultResponse) error {
			resp.Decision, resp.TaskState, resp.ResultState = d, task, result
			return nil
		})
	}
	const (
		accepted  = centerv1.Decision_DECISION_CURRENT_ACCEPTED
		duplicate = centerv1.Decision_DECISION_CURRENT_DUPLICATE
		terminal  = centerv1.Decision_DECISION_CENTER_TERMINAL
		completed = evidencev1.TaskState_TASK_STATE_COMPLETED
		partial   = evidencev1.TaskState_TASK_STATE_PARTIAL
		cancelled = evidencev1.TaskState_TASK_STATE_CANCELLED
		failed    = evidencev1.TaskState_TASK_STATE_FAILED
		running   = evidencev1.TaskState_TASK_STATE_RUNNING
		no        = evidencev1.TaskState_TASK_STATE_UNSPECIFIED
	)
	for name, c := range map[string]struct {
		lie   centertest.Lies
		state work.State
	}{
		"accepted":                                {answer(accepted, completed, completed), work.Completed},
		"a duplicate mirrors the first result":    {answer(duplicate, partial, partial), work.Partial},
		"a task that was cancelled":               {answer(terminal, cancelled, no), work.Cancelled},
		"a task that failed":                      {answer(terminal, failed, no), work.Failed},
		"a terminal word without a state is none": {answer(terminal, no, no), work.Reporting},
		"a terminal word that is not final":       {answer(terminal, running, no), work.Reporting},
		"accepted without a state":                {answer(accepted, completed, no), work.Reporting},
		"no decision":                             {answer(0, completed, completed), work.Reporting},
		"a decision of a later version":           {answer(9, completed, completed), work.Reporting},
		"STALE_RETRY without a newer instruction": {answer(centerv1.Decision_DECISION_STALE_RETRY, running, no), work.Parked},
		"another task echoed": {onResult(func(_ *protocol.Report, r *centerv1.ReportResultResponse) error {
			r.TaskId = protocol.FormatKey(k(1))
			return nil
		}), work.Reporting},
		"another attempt echoed": {onResult(func(_ *protocol.Report, r *centerv1.ReportResultResponse) error {
			r.ReportAttempt++
			return nil
		}), work.Reporting},
		"no answer": {onResult(func(*protocol.Report, *centerv1.ReportResultResponse) error {
			return fault.New(fault.Unavailable, "cut")
		}), work.Reporting},
		"a refusal that contradicts": {onResult(func(*protocol.Report, *centerv1.ReportResultResponse) error {
			return fault.New(fault.ResultInconsistent, "no")
		}), work.Reporting},
		"the task is not known": {onResult(func(*protocol.Report, *centerv1.ReportResultResponse) error {
			return fault.New(fault.TaskNotFound, "no")
		}), work.Parked},
		"the attempt is not known": {onResult(func(*protocol.Report, *centerv1.ReportResultResponse) error {
			return fault.New(fault.AttemptUnknown, "no")
		}), work.Parked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.both(k(1), rec(1, `{}`))
			w.center.Lie(c.lie)
			task := w.run()
			if got := w.row(task); got.State != c.state {
				t.Fatalf("the row is %s %q, want %s", got.State, got.Code, c.state)
			}
			if c.state != work.Reporting {
				return
			}
			// It reports again, the same bytes, without scanning again.
			first := w.row(task).Report
			w.center.Lie(centertest.Lies{})
			w.due()
			w.work()
			w.wantState(task, work.Completed, "")
			if string(first) != string(w.row(task).Report) {
				t.Error("the report was signed twice")
			}
			if n := w.center.Calls("GetManifest"); n != 1 {
				t.Errorf("scanned %d times", n)
			}
		})
	}
	t.Run("out of tries it parks, and a newer attempt revives it", func(t *testing.T) {
		w := setup(t)
		w.both(k(1), rec(1, `{}`))
		w.center.Lie(onResult(func(*protocol.Report, *centerv1.ReportResultResponse) error {
			return fault.New(fault.Unavailable, "cut")
		}))
		task := w.run()
		for range 3 {
			w.wantState(task, work.Reporting, "UNAVAILABLE")
			w.due()
			w.work()
		}
		w.wantState(task, work.Parked, "UNAVAILABLE")
		w.center.Lie(centertest.Lies{})
		w.center.Redispatch(task, 2)
		w.accept(task, 2)
		w.work()
		w.wantState(task, work.Completed, "")
		if last := w.center.Last(); last.Attempt != 2 {
			t.Errorf("reported under attempt %d", last.Attempt)
		}
	})
	t.Run("STALE_RETRY adopts the remembered instruction and reports again without scanning", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		task := w.center.Task()
		w.accept(task, 1)
		w.center.Lie(centertest.Lies{Call: onCall("ReportResult", 3, func() { // after the first act and the retiring phase
			w.center.Redispatch(task, 2)
			w.accept(task, 2)
		})})
		w.work()
		w.wantState(task, work.Completed, "")
		if row := w.row(task); row.Attempt != 2 || *row.ReportAttempt != 2 {
			t.Errorf("attempt %d, reported %d", row.Attempt, *row.ReportAttempt)
		}
		if last := w.center.Last(); last.Attempt != 2 || last.Counts[0].Repaired != 1 {
			t.Errorf("report %+v", last)
		}
		if n := w.center.Calls("GetManifest"); n != 1 {
			t.Errorf("scanned %d times", n)
		}
	})
	t.Run("a row waiting to report again takes a newer attempt with it", func(t *testing.T) {
		w := setup(t)
		w.both(k(1), rec(1, `{}`))
		w.center.Lie(onResult(func(*protocol.Report, *centerv1.ReportResultResponse) error {
			return fault.New(fault.Unavailable, "cut")
		}))
		task := w.run()
		w.center.Lie(centertest.Lies{})
		w.center.Redispatch(task, 2)
		w.accept(task, 2)
		w.work()
		w.wantState(task, work.Completed, "")
		if last := w.center.Last(); last.Attempt != 2 || w.center.Calls("GetManifest") != 1 {
			t.Errorf("attempt %d, scanned %d times", last.Attempt, w.center.Calls("GetManifest"))
		}
	})
}

func TestProgress(t *testing.T) {
	t.Run("RUNNING is the first act, then every so many rounds, then RETIRING", func(t *testing.T) {
		w := setup(t)
		w.both(k(1), rec(1, `{}`))
		w.run()
		var got []string
		for _, r := range w.center.Reports() {
			got = append(got, string(r.State)+" "+string(r.Phase))
		}
		if s := strings.Join(got, ", "); s != "RUNNING SCANNING, RUNNING RETIRING, COMPLETED REPORTING" {
			t.Error(s)
		}
	})
	t.Run("a lost dispatch answer does not leave a run reporting into the void", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		task := w.center.Task()
		w.accept(task, 1)
		w.center.Lie(centertest.Lies{Call: onCall("ReportResult", 1, func() {
			w.center.Redispatch(task, 2)
			w.accept(task, 2)
		})})
		w.work()
		w.wantState(task, work.Completed, "")
		if last := w.center.Last(); last.Attempt != 2 || w.center.Calls("GetManifest") != 1 {
			t.Errorf("attempt %d, scanned %d times", last.Attempt, w.center.Calls("GetManifest"))
		}
	})
	t.Run("a newer attempt is adopted at a checkpoint and told at once", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		task := w.center.Task()
		w.accept(task, 1)
		w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 1, func() {
			w.center.Redispatch(task, 2)
			w.accept(task, 2)
		})})
		w.work()
		w.wantState(task, work.Completed, "")
		var attempts []int
		for _, r := range w.center.Reports() {
			attempts = append(attempts, r.Attempt)
		}
		if len(attempts) != 4 || attempts[0] != 1 || attempts[1] != 2 {
			t.Errorf("attempts %v", attempts)
		}
	})
	t.Run("STALE_RETRY without a newer instruction parks, with the checkpoint kept", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		task := w.center.Task()
		w.accept(task, 1)
		w.center.Lie(centertest.Lies{Call: onCall("ReportResult", 2, func() { w.center.Redispatch(task, 2) })})
		w.work()
		w.wantState(task, work.Parked, "")
		if !w.row(task).LocalComplete {
			t.Error("the checkpoint was lost")
		}
		w.accept(task, 2)
		w.work()
		w.wantState(task, work.Completed, "")
		w.wantLedger(task, "1 MISSING REPAIRED")
	})
	t.Run("a task that ended stops all effects and is mirrored", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		w.center.Lie(centertest.Lies{Call: onCall("GetPages", 1, func() {
			w.center.EndAll(protocol.Cancelled, fault.CancelledByOperator)
		})})
		task := w.run()
		w.wantState(task, work.Cancelled, "CANCELLED_BY_OPERATOR")
		w.wantLedger(task)
		if last := w.center.Last(); last.State != protocol.Cancelled || last.Code != "TASK_TERMINAL" {
			t.Errorf("report %s %s", last.State, last.Code)
		}
	})
	t.Run("a progress report told that the task ended mirrors it", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		task := w.center.Task()
		w.accept(task, 1)
		w.center.End(task, protocol.Failed, fault.LeaseExpired)
		w.work()
		w.wantState(task, work.Failed, "LEASE_EXPIRED")
		if w.center.Last() != nil {
			t.Error("a result was reported")
		}
	})
	t.Run("a progress answer about something else is a failed round", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		w.center.Lie(onProgress(func(_ *protocol.Report, r *centerv1.ReportResultResponse) error {
			r.ReportAttempt = 7
			return nil
		}))
		w.wantState(w.run(), work.Queued, "UNAVAILABLE")
	})
	t.Run("a task unknown to the center parks", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		w.center.Lie(onProgress(func(*protocol.Report, *centerv1.ReportResultResponse) error {
			return fault.New(fault.TaskNotFound, "no")
		}))
		w.wantState(w.run(), work.Parked, "TASK_NOT_FOUND")
	})
}

// No newer attempt comes to a task that has ended or is forgotten, and a row that
// waited for one would wait for ever.
func TestParkedRowsHearOfTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		then  func(*world, *centertest.Task)
		state work.State
		code  string
	}{
		"the task has ended": {func(w *world, task *centertest.Task) {
			w.center.End(task, protocol.Failed, fault.LeaseExpired)
		}, work.Failed, "LEASE_EXPIRED"},
		"the center has forgotten it": {func(w *world, _ *centertest.Task) {
			w.center.Lie(centertest.Lies{Call: failing("GetManifest", fault.New(fault.TaskNotFound, "no"))})
		}, work.Cancelled, "TASK_NOT_FOUND"},
		"the grant is gone": {func(w *world, _ *centertest.Task) {
			w.center.Lie(centertest.Lies{Call: failing("GetManifest", fault.New(fault.GrantRevoked, "no"))})
		}, work.Cancelled, "GRANT_REVOKED"},
		"it is open": {func(*world, *centertest.Task) {}, work.Parked, ""},
		"nobody knows for now": {func(w *world, _ *centertest.Task) {
			w.center.Lie(centertest.Lies{Call: failing("GetManifest", fault.New(fault.Unavailable, "no"))})
		}, work.Parked, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			task := w.center.Task()
			w.accept(task, 1)
			w.center.Lie(centertest.Lies{Call: onCall("ReportResult", 2, func() { w.center.Redispatch(task, 2) })})
			w.work()
			w.wantState(task, work.Parked, "")
			w.center.Lie(centertest.Lies{})
			c.then(w, task)
			ask := func() {
				t.Helper()
				if _, err := w.worker.ParkedOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			asked := w.center.Calls("GetManifest")
			ask() // it was touched just now
			if n := w.center.Calls("GetManifest") - asked; n != 0 {
				t.Errorf("asked %d times within a lease", n)
			}
			w.exec(`UPDATE lockstep.work SET updated_at = now() - interval '1 hour'`)
			reports := len(w.center.Reports())
			ask()
			ask()
			if n := w.center.Calls("GetManifest") - asked; n != 1 {
				t.Errorf("asked %d times, want once a lease", n)
			}
			if n := len(w.center.Reports()) - reports; n != 0 {
				t.Errorf("%d reports were made, and the center's lease renewed", n)
			}
			w.wantState(task, c.state, c.code)
		})
	}
}

func TestErrorItemsAreBoundedAndTheCountsAreNot(t *testing.T) {
	w := setup(t)
	for n := range 80 {
		w.center.Put(k(n), rec(0, `{}`))
	}
	task := w.run()
	last := w.center.Last()
	if len(last.Items) != 50 || last.Counts[0].Reported != 80 {
		t.Errorf("%d items, %+v", len(last.Items), last.Counts)
	}
	if it := last.Items[0]; it.Consumer != centertest.Consumer || it.TaskID != task.ID || it.Key != protocol.FormatKey(k(0)) || it.Code != "REVISION_ZERO" {
		t.Errorf("item %+v", it)
	}
	w.reporter.MaxChars = 500
	w.run()
	if n := len(w.center.Last().Items); n == 0 || n > 5 {
		t.Errorf("%d items in 500 characters", n)
	}
}

func TestWaiting(t *testing.T) {
	last := func(w *world) *protocol.Report {
		reports := w.center.Reports()
		if len(reports) == 0 {
			return nil
		}
		return reports[len(reports)-1]
	}
	// old makes it long since anything was told.
	old := func(w *world) {
		w.exec(`UPDATE lockstep.work SET updated_at = now() - interval '1 hour', waiting_reported_at = waiting_reported_at - interval '1 hour'`)
	}
	wait := func(w *world) {
		w.t.Helper()
		if _, err := w.worker.WaitingOnce(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		sql  string
		off  bool
		code string
	}{
		"paused":               {sql: `UPDATE lockstep.work SET paused = true`, code: "PAUSED"},
		"switched off":         {off: true, code: "EXECUTION_DISABLED"},
		"behind another task":  {sql: `UPDATE lockstep.work SET due_at = now() - interval '1 hour'`, code: "BEHIND_ANOTHER"},
		"waiting after a fail": {sql: `UPDATE lockstep.work SET due_at = now() + interval '1 hour', code = 'UNAVAILABLE'`, code: "UNAVAILABLE"},
	} {
		t.Run("a row that is "+name+" says so each third of the lease", func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.worker.Set.Enabled = !c.off
			w.center.Put(k(1), rec(1, `{}`))
			task := w.center.Task()
			w.accept(task, 1)
			if c.sql != "" {
				w.exec(c.sql)
			}
			wait(w)
			if last(w) != nil {
				t.Error("it was told too early")
			}
			old(w)
			wait(w)
			if r := last(w); r == nil || r.Phase != protocol.Waiting || r.State != protocol.Running || r.Code != c.code {
				t.Fatalf("told %+v", r)
			}
			wait(w)
			if n := len(w.center.Reports()); n != 1 {
				t.Errorf("told %d times", n)
			}
			old(w)
			wait(w)
			if n := len(w.center.Reports()); n != 2 {
				t.Errorf("told %d times in two thirds", n)
			}
			w.wantState(task, work.Queued, w.row(task).Code)
		})
	}
	t.Run("it reports under the newest accepted attempt", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		task := w.center.Task()
		w.accept(task, 1)
		w.exec(`UPDATE lockstep.work SET paused = true`)
		w.center.Redispatch(task, 2)
		w.accept(task, 2)
		old(w)
		wait(w)
		if r := last(w); r == nil || r.Attempt != 2 {
			t.Errorf("told %+v", r)
		}
		w.wantState(task, work.Queued, "")
	})
	for name, c := range map[string]struct {
		prepare func(*world, *centertest.Task)
		state   work.State
	}{
		"a task that ended is mirrored": {func(w *world, task *centertest.Task) {
			w.center.End(task, protocol.Failed, fault.GivenUp)
		}, work.Failed},
		"a newer attempt that never came parks it": {func(w *world, task *centertest.Task) { w.center.Redispatch(task, 2) }, work.Parked},
		"a task unknown to the center parks it": {func(w *world, _ *centertest.Task) {
			w.center.Lie(centertest.Lies{Call: failing("ReportResult", fault.New(fault.TaskNotFound, "no"))})
		}, work.Parked},
		"no answer changes nothing": {func(w *world, _ *centertest.Task) {
			w.center.Lie(centertest.Lies{Call: failing("ReportResult", fault.New(fault.Unavailable, "no"))})
		}, work.Queued},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			task := w.center.Task()
			w.accept(task, 1)
			w.exec(`UPDATE lockstep.work SET paused = true`)
			c.prepare(w, task)
			old(w)
			wait(w)
			if got := w.row(task).State; got != c.state {
				t.Errorf("the row is %s, want %s", got, c.state)
			}
		})
	}
	t.Run("with execution off nothing is worked, but a frozen report is sent", func(t *testing.T) {
		w := setup(t)
		w.both(k(1), rec(1, `{}`))
		w.center.Lie(onResult(func(*protocol.Report, *centerv1.ReportResultResponse) error {
			return fault.New(fault.Unavailable, "cut")
		}))
		task := w.run()
		w.center.Lie(centertest.Lies{})
		w.worker.Set.Enabled = false
		second := w.center.Task()
		w.accept(second, 1)
		w.due()
		w.work()
		w.wantState(task, work.Completed, "")
		w.wantState(second, work.Queued, "")
	})
}
