package refresh

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/fault"
)

func TestSelectors(t *testing.T) {
	for name, raw := range map[string]string{
		"no_JSON":       `{"codes":`,
		"another_type":  `["a"]`,
		"unknown_field": `{"taskCodes":["a"]}`,
		"two_documents": `{"keys":["a"]}{}`,
		"empty":         `{}`,
		"nothing":       ``,
		"only_blanks":   `{"codes":[" ",""],"keys":["\t"]}`,
		"no_code":       `{"codes":["RIPBDS:1"]}`,
		"one_bad_code":  `{"codes":["` + strings.Repeat("a", 64) + `","x"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseSelector([]byte(raw)); fault.ReasonOf(err) != fault.InvalidArgument {
				t.Errorf("got %v, want INVALID_ARGUMENT", err)
			}
		})
	}
	s, err := ParseSelector([]byte(`{"codes":["` + strings.Repeat("a", 64) + `"," "],"keys":[" k "]}`))
	if err != nil || len(s.Codes) != 1 || s.Keys[0] != "k" {
		t.Errorf("got %v, %v", s, err)
	}
}

func TestRetry(t *testing.T) {
	w := setup(t)
	a, b, c := w.submit(Input{Payload: payload(1), BusinessKey: "a"}), w.submit(Input{Payload: payload(2), BusinessKey: "b"}), w.submit(Input{Payload: payload(3), BusinessKey: "c"})
	w.exec(`UPDATE lockstep.refresh_task SET state = 'FAILED', code = 'INTERNAL', retry_count = 3 WHERE business_key = 'b'`)
	w.exec(`UPDATE lockstep.refresh_task SET due_at = now() + interval '1 hour' WHERE business_key = 'c'`)
	w.exec(`CREATE TABLE before AS SELECT task_id, t::text AS row FROM lockstep.refresh_task t`)

	for name, s := range map[string]Selector{
		"nothing":       {},
		"blanks":        {Codes: []string{" "}, Keys: []string{""}},
		"another_key":   {Keys: []string{"no such key"}},
		"no_task_of_it": {Codes: []string{strings.Repeat("0", 64)}},
	} {
		ids, err := w.Retry(w.ctx, "ann", s)
		if err == nil || len(ids) != 0 {
			t.Errorf("%s: woke %v, %v; want an error", name, ids, err)
		}
		w.equal(len(w.scan), 0, "wake-ups of the scan after "+name)
	}

	ids, err := w.Retry(w.ctx, "ann", Selector{Codes: []string{a.TaskCode}, Keys: []string{"b", "c"}})
	w.must(err)
	w.equal(len(ids), 3, "woken: codes or keys")
	w.equal(len(w.scan), 1, "wake-ups of the scan")
	w.equal(one[int](w, `SELECT count(*) FROM lockstep.refresh_task t JOIN before b USING (task_id) WHERE t::text <> b.row`), 0,
		"tasks that a retry changed")
	w.equal(w.run(10).Claims, 1, "claimed: the others are not due, or spent")
	w.equal(w.task(a.TaskID).State, Success, "the due one")
	w.equal([]any{w.task(b.TaskID).State, w.task(c.TaskID).State}, []any{Failed, Pending}, "the spent one and the one that is not due")
	w.equal(one[string](w, `SELECT string_agg(DISTINCT actor || ' ' || action, ',') FROM lockstep.audit`), "ann refresh.retry", "audit")

	if _, err := w.Retry(w.ctx, "ann", Selector{Keys: []string{"a"}}); fault.ReasonOf(err) != fault.TaskNotFound {
		t.Errorf("a succeeded task: %v, want TASK_NOT_FOUND", err)
	}
}

func TestForce(t *testing.T) {
	w := setup(t)
	out := w.submit(Input{Payload: payload(1)})
	w.exec(`UPDATE lockstep.refresh_task SET state = 'FAILED', code = 'INTERNAL', retry_count = 3, due_at = now() + interval '1 hour'`)
	w.must(w.Force(w.ctx, "ann", out.TaskID, "checked"))
	d := w.task(out.TaskID)
	w.equal([]any{d.State, d.RetryCount, d.Due}, []any{Failed, 0, true}, "state, retries, due")
	w.equal(one[string](w, `SELECT actor || ' ' || action || ' ' || object || ' ' || reason FROM lockstep.audit`),
		"ann refresh.force refresh task "+out.TaskID.String()+" checked", "audit")
	w.equal(w.run(1).Succeeded, 1, "succeeded")
	for _, state := range []State{Success, Cancelled} {
		w.exec(`UPDATE lockstep.refresh_task SET state = $1`, state)
		if err := w.Force(w.ctx, "ann", out.TaskID, ""); fault.ReasonOf(err) != fault.TaskTerminal {
			t.Errorf("forced a task that is %s: %v", state, err)
		}
	}
	if err := w.Force(w.ctx, "ann", uuid.New(), ""); fault.ReasonOf(err) != fault.TaskNotFound {
		t.Errorf("forced nothing: %v", err)
	}
	w.equal(one[int](w, `SELECT count(*) FROM lockstep.audit`), 1, "audit rows: refusals changed nothing")
}

func TestCancelTakesTheClaimAway(t *testing.T) {
	w := setup(t)
	a := newArrivals()
	w.sums.hook = a.hook
	out := w.submit(Input{Payload: payload(1)})
	j := w.claim(w.Engine)
	done := make(chan pageResult)
	go func() {
		page, err := w.work(w.ctx, j, noDeadline)
		if err != nil {
			t.Error(err)
		}
		done <- page
	}()
	a.wait(t, 1)
	w.must(w.Cancel(w.ctx, "ann", out.TaskID, "wrong range")) // waits for no scope
	close(a.out)
	w.equal((<-done).event, "", "the run is fenced")
	d := w.task(out.TaskID)
	w.equal([]any{d.State, d.Code, d.ClaimedBy, d.Done}, []any{Cancelled, fault.CancelledByOperator, "", 0}, "task")
	w.equal(d.Error, "an operator cancelled the task; what is asked of it is refused until it is reopened", "message")
	w.equal(one[int](w, `SELECT count(*) FROM sum_row`), 0, "rows written by the cancelled run")
	w.due()
	w.equal(w.run(1).Claims, 0, "claims of a cancelled task")
	w.equal(d.Waiting(true), fault.CancelledByOperator, "waiting because")

	w.sums.hook = nil
	w.must(w.Reopen(w.ctx, "ann", out.TaskID, ""))
	w.equal(w.run(1).Succeeded, 1, "succeeded after reopening")
	if err := w.Reopen(w.ctx, "ann", out.TaskID, ""); fault.ReasonOf(err) != fault.TaskTerminal {
		t.Errorf("reopened what is not cancelled: %v", err)
	}
}

func TestRefreshNow(t *testing.T) {
	t.Run("runs_here_under_a_claim", func(t *testing.T) {
		w := setup(t, func(s *Settings) { s.PageScopes = 2 })
		got, err := w.RefreshNow(w.ctx, w.parse(Input{Payload: payload(1, 2, 3)}))
		w.must(err)
		w.equal(got.State, NowDone, "state")
		d := w.task(got.TaskID)
		w.equal([]any{d.State, d.Attempt, d.Done}, []any{Success, 2, 3}, "task")
	})

	t.Run("waits_for_whoever_holds_it_until_its_own_generation_is_done", func(t *testing.T) {
		w := setup(t)
		a := newArrivals()
		w.sums.hook = a.hook
		in := Input{Payload: payload(1)}
		w.submit(in)
		j := w.claim(w.Engine)
		other := make(chan error)
		go func() {
			_, err := w.work(w.ctx, j, noDeadline)
			other <- err
		}()
		a.wait(t, 1)
		type answer struct {
			NowResult
			error
		}
		answers := make(chan answer)
		go func() {
			got, err := w.RefreshNow(w.ctx, w.parse(in))
			answers <- answer{got, err}
		}()
		w.until(`SELECT request_generation::int FROM lockstep.refresh_task`, 2) // submitted, and waiting
		close(a.out)
		w.must(<-other)
		got := <-answers
		w.must(got.error)
		w.equal([]any{got.State, got.Generation}, []any{NowDone, 2}, "answer")
		w.equal(w.task(got.TaskID).RunningGeneration, 2, "generation that is done")
	})

	t.Run("says_in_progress_when_the_caller's_time_is_over", func(t *testing.T) {
		w := setup(t)
		w.submit(Input{Payload: payload(1)})
		w.claim(w.Engine) // somebody who does not come back
		ctx, cancel := context.WithTimeout(w.ctx, nowMargin+200*time.Millisecond)
		defer cancel()
		got, err := w.RefreshNow(ctx, w.parse(Input{Payload: payload(1)}))
		w.must(err)
		w.equal(got.State, NowInProgress, "state")
	})

	t.Run("tells_a_failure_and_a_refusal", func(t *testing.T) {
		w := setup(t)
		w.sums.check = func() error { return errors.New("no") }
		got, err := w.RefreshNow(w.ctx, w.parse(Input{Payload: payload(1)}))
		w.must(err)
		w.equal(got.State, NowFailed, "state")
		w.must(w.Cancel(w.ctx, "ann", got.TaskID, ""))
		got, err = w.RefreshNow(w.ctx, w.parse(Input{Payload: payload(1)}))
		w.must(err)
		w.equal([]any{got.State, got.Code}, []any{NowRefused, fault.CancelledByOperator}, "refusal")
	})
}

// TestTheOnlyWayIn: nothing writes a scope's rows without a held claim.
func TestAScopeWithoutAClaimWritesNothing(t *testing.T) {
	w := setup(t)
	w.submit(Input{Payload: payload(1)})
	j := w.claim(w.Engine)
	w.must(w.prepare(w.ctx, j))
	w.exec(`BEGIN; UPDATE lockstep.refresh_task SET state = 'PENDING';
		UPDATE lockstep.refresh_progress SET claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL; COMMIT`)
	if _, err := w.refreshScope(w.ctx, j, Scope{ID: 1, Month: 202601}); !errors.Is(err, claim.ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
	w.equal(one[int](w, `SELECT count(*) FROM sum_row`), 0, "rows")
}
