package refresh

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
)

var noDeadline time.Time

func TestPages(t *testing.T) {
	w := setup(t)
	out := w.submit(Input{Payload: payload(upTo(250)...)})
	for i, want := range []State{Pending, Pending, Success} {
		w.equal(w.run(1).Claims, 1, "claims")
		d := w.task(out.TaskID)
		w.equal([]any{d.State, d.Attempt, d.Done}, []any{want, i + 1, min(100*(i+1), 250)}, fmt.Sprintf("state, attempt, done after claim %d", i+1))
		w.equal(d.Cursor, fmt.Sprintf("%d:202601", d.Done), "cursor")
	}
	w.equal(w.sums.resolves, 1, "times the scopes were resolved")
	w.equal(w.run(1).Claims, 0, "claims after that")
	w.equal(w.task(out.TaskID).Counts.Updated, 250, "updated")
}

func TestClaims(t *testing.T) {
	t.Run("a_lapsed_lease_comes_first_whatever_its_due_time_and_retries", func(t *testing.T) {
		w := setup(t)
		lapsed := w.submit(Input{Payload: payload(1)})
		w.claim(w.Engine)
		w.submit(Input{Payload: payload(2)})
		w.equal(w.claim(w.Engine).claim.ID == lapsed.TaskID, false, "claimed again before its lease is over")
		w.submit(Input{Payload: payload(3)})
		w.exec(`UPDATE lockstep.refresh_task SET due_at = now() + interval '1 day', retry_count = 3 WHERE task_id = $1`, lapsed.TaskID)
		w.exec(`UPDATE lockstep.refresh_progress SET lease_until = now() - interval '1 second' WHERE task_id = $1`, lapsed.TaskID)
		w.equal(w.claim(w.Engine).claim.ID, lapsed.TaskID, "claimed")
	})

	t.Run("a_take-over_keeps_the_frozen_payload_and_what_is_done", func(t *testing.T) {
		w := setup(t, func(s *Settings) { s.PageScopes = 2 })
		out := w.submit(Input{Payload: payload(1, 2, 3)})
		w.run(1)
		w.claim(w.Engine)
		w.lapse()
		w.equal(w.run(1).Scopes, 1, "scopes left to the take-over")
		d := w.task(out.TaskID)
		w.equal([]any{d.State, d.Attempt, d.Done}, []any{Success, 3, 3}, "state, attempt, done")
		w.equal(w.sums.resolves, 1, "times the scopes were resolved")
	})

	t.Run("not_due_spent_or_cancelled_is_not_claimed", func(t *testing.T) {
		for _, set := range []string{"due_at = now() + interval '1 minute'", "retry_count = max_retry", "state = 'CANCELLED'", "state = 'SUCCESS'"} {
			w := setup(t)
			out := w.submit(Input{Payload: payload(1)})
			w.exec(`UPDATE lockstep.refresh_task SET ` + set)
			w.equal(w.run(1).Claims, 0, set)
			j, err := w.claimTask(w.ctx, out.TaskID)
			w.must(err)
			w.equal(j == nil, true, set+" by its id")
		}
	})

	t.Run("what_kills_its_workers_ends_with_a_code", func(t *testing.T) {
		w := setup(t)
		out := w.submit(Input{Payload: payload(1)})
		for range 1 + maxLapses - 1 {
			w.claim(w.Engine)
			w.lapse()
		}
		w.equal(w.run(1).Failed, 1, "failed")
		d := w.task(out.TaskID)
		w.equal([]any{d.State, d.Code, d.RetryCount}, []any{Failed, fault.LeaseExpired, 1}, "state, code, retries")
	})

	t.Run("running_without_a_lease_can't_be_stored", func(t *testing.T) {
		w := setup(t)
		out := w.submit(Input{Payload: payload(1)})
		for _, sql := range []string{
			`UPDATE lockstep.refresh_task SET state = 'RUNNING'`,
			`INSERT INTO lockstep.refresh_progress (task_id, running_generation, payload) SELECT task_id, 1, '{}' FROM lockstep.refresh_task;
				UPDATE lockstep.refresh_task SET state = 'RUNNING'`,
			`INSERT INTO lockstep.refresh_progress (task_id, running_generation, payload, claim_token, claimed_by, claimed_at)
				SELECT task_id, 1, '{}', gen_random_uuid(), 'w', now() FROM lockstep.refresh_task; UPDATE lockstep.refresh_task SET state = 'RUNNING'`,
			`INSERT INTO lockstep.refresh_progress (task_id, running_generation, payload, claim_token, claimed_by, claimed_at, lease_until)
				SELECT task_id, 1, '{}', gen_random_uuid(), 'w', now(), now() FROM lockstep.refresh_task`,
		} {
			if _, err := w.pool.Exec(w.ctx, sql); pg.Code(err) != "23503" && pg.Code(err) != "23514" {
				t.Errorf("%s\ngave %v, want a violation", sql, err)
			}
		}
		w.claim(w.Engine)
		for _, sql := range []string{
			`UPDATE lockstep.refresh_progress SET claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL`,
			`UPDATE lockstep.refresh_progress SET lease_until = NULL`,
			`UPDATE lockstep.refresh_task SET state = 'PENDING'`,
		} {
			if _, err := w.pool.Exec(w.ctx, sql); pg.Code(err) != "23503" && pg.Code(err) != "23514" {
				t.Errorf("%s\ngave %v, want a violation", sql, err)
			}
		}
		w.equal(w.task(out.TaskID).State, Running, "state")
	})
}

func TestANewGenerationTakesTheUnreachedScopesFirst(t *testing.T) {
	w := setup(t, func(s *Settings) { s.PageScopes = 3 })
	in := Input{Payload: payload(upTo(8)...)}
	out := w.submit(in)
	reached := map[int64]bool{}
	for _, want := range [][]int64{{1, 2, 3, 4, 5, 6, 7, 8}, {4, 5, 6, 7, 8, 1, 2, 3}, {7, 8, 1, 2, 3, 4, 5, 6}} {
		j := w.claim(w.Engine)
		w.submit(in) // comes while the page runs, every time
		page, err := w.work(w.ctx, j, noDeadline)
		w.must(err)
		w.equal(page.event, Superseded, "conclusion")
		w.equal(w.order(out.TaskID), want, "order")
		for _, id := range want[:3] {
			reached[id] = true
		}
	}
	w.equal(len(reached), 8, "scopes reached by three pages of three, each cut short")
}

func TestTheNewerGenerationIsLookedAtBeforeSuccessAndFailure(t *testing.T) {
	for _, broken := range []bool{false, true} {
		w := setup(t)
		in := Input{Payload: payload(1)}
		out := w.submit(in)
		w.exec(`UPDATE lockstep.refresh_task SET retry_count = 2`)
		w.exec(`INSERT INTO lockstep.refresh_progress (task_id, running_generation, payload) SELECT task_id, 1, payload FROM lockstep.refresh_task`)
		w.sums.hook = func(context.Context, []byte, Scope) error {
			w.submit(in)
			if broken {
				return errors.New("no")
			}
			return nil
		}
		w.equal(w.run(1).Continued, 1, "continued")
		d := w.task(out.TaskID)
		w.equal([]any{d.State, d.RetryCount, d.Code, d.RequestGeneration, d.RunningGeneration}, []any{Pending, 0, "", 2, 1}, "after the run")
		w.sums.hook = nil
		w.equal(w.run(1).Succeeded, 1, "succeeded")
		w.equal(w.task(out.TaskID).RunningGeneration, 2, "running generation")
	}
}

func TestFailures(t *testing.T) {
	t.Run("delays_grow_by_the_count_before_and_three_end_it", func(t *testing.T) {
		w := setup(t)
		out := w.submit(Input{Payload: payload(1)})
		w.sums.check = func() error { return fault.New(fault.LocatorMissing, "no difference") }
		for i, want := range []string{"00:05:00", "00:10:00", "00:15:00"} {
			r := w.run(5)
			w.equal([]any{r.Claims, r.Failed, r.Err() != nil}, []any{1, 1, true}, "the run tells it")
			w.equal(one[string](w, `SELECT (due_at - updated_at)::text FROM lockstep.refresh_task`), want, "delay")
			d := w.task(out.TaskID)
			w.equal([]any{d.State, d.RetryCount, d.Code}, []any{Failed, i + 1, fault.LocatorMissing}, "state, retries, code")
			w.due()
		}
		w.equal(w.run(5).Claims, 0, "claims after three failures")
		w.equal(w.task(out.TaskID).Waiting(true), fault.RetriesExhausted, "waiting because")
		w.sums.check = nil
		w.must(w.Force(w.ctx, "ann", out.TaskID, "facts are right now"))
		w.equal(w.run(5).Succeeded, 1, "succeeded after force")
	})

	t.Run("a_failed_scope_takes_no_other_with_it_and_a_retry_runs_only_it", func(t *testing.T) {
		w := setup(t, func(s *Settings) { s.PageScopes = 2 })
		out := w.submit(Input{Payload: payload(1, 2, 3)})
		w.exec(`INSERT INTO fact VALUES (2, 202601, 5)`)
		w.sums.hook = func(_ context.Context, _ []byte, s Scope) error {
			if s.ID == 2 {
				return fault.New(fault.LocatorAmbiguous, "two differences")
			}
			return nil
		}
		r := w.run(5)
		w.equal([]any{r.Claims, r.Failed, r.FailedScopes, r.Scopes}, []any{2, 1, 1, 3}, "the run")
		rows, err := w.Scopes(w.ctx, out.TaskID, nil, 0, 10)
		w.must(err)
		for i, want := range []string{"DONE 1 ", "FAILED 1 LOCATOR_AMBIGUOUS", "DONE 1 "} {
			w.equal(fmt.Sprintf("%s %d %s", rows[i].State, rows[i].Tries, rows[i].Code), want, "scope")
		}
		w.equal(one[int](w, `SELECT count(*) FROM sum_row`), 2, "rows: the failed scope's was rolled back")
		d := w.task(out.TaskID)
		w.equal([]any{d.State, d.Code, d.Done, d.FailedScopes, d.Cursor}, []any{Failed, fault.LocatorAmbiguous, 2, 1, "1:202601"}, "task")

		w.sums.hook = nil
		w.due()
		r = w.run(5)
		w.equal([]any{r.Scopes, r.Succeeded}, []any{1, 1}, "the retry")
		w.equal(one[string](w, `SELECT string_agg(writes::text, ',' ORDER BY scope_id) FROM sum_row`), "1,1,1", "writes")
		w.equal(one[int](w, `SELECT tries FROM lockstep.refresh_scope WHERE scope_id = 2`), 2, "tries of the failed one")
	})

	t.Run("messages_are_masked_and_cut", func(t *testing.T) {
		w := setup(t)
		out := w.submit(Input{Payload: payload(1)})
		w.sums.check = func() error {
			return errors.New(`payee_account_name: Zhang San, open_bank="Bank of Nowhere", account 6222021234567890123; ` + strings.Repeat("é", 2000))
		}
		w.run(1)
		got := w.task(out.TaskID).Error
		w.equal(len([]rune(got)), 1000, "characters")
		for _, secret := range []string{"Zhang", "Nowhere", "6222021"} {
			if strings.Contains(got, secret) {
				t.Errorf("%q is in %.120s", secret, got)
			}
		}
	})
}

func TestSeveralScopesRunAtOnceAndNobodyWaitsForThem(t *testing.T) {
	w := setup(t)
	a := newArrivals()
	w.sums.hook = a.hook
	w.submit(Input{Payload: payload(1, 2, 3)})
	j := w.claim(w.Engine)
	done := make(chan pageResult)
	go func() {
		page, err := w.work(w.ctx, j, noDeadline)
		if err != nil {
			t.Error(err)
		}
		done <- page
	}()
	// Each blocks inside its own transaction: only side by side can all three arrive.
	w.equal(a.wait(t, 3), []Scope{{1, 202601}, {2, 202601}, {3, 202601}}, "inside at once")
	w.equal(one[int](w, `SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()`), 3, "connections in a scope")

	impatient := w.open(pg.PoolConfig{LockTimeout: 50 * time.Millisecond})
	w.must(pg.InTx(w.ctx, impatient, func(tx pgx.Tx) error {
		got, err := w.Submit(w.ctx, tx, w.parse(Input{Payload: payload(1, 2, 3)}))
		w.equal(got.Generation, 2, "generation submitted while scopes run")
		return err
	}))
	if err := Site.Renew(w.ctx, impatient, j.claim, time.Minute); err != nil {
		t.Errorf("the renewal waits for a scope: %v", err)
	}
	close(a.out)
	w.equal((<-done).event, Superseded, "conclusion: a newer generation came")
}

// TestFactsAreReadAfterTheGuard: a scope that waited for the guard must see what
// was committed during the wait.
func TestFactsAreReadAfterTheGuard(t *testing.T) {
	w := setup(t)
	a := newArrivals()
	w.sums.hook = a.hook
	w.submit(Input{Payload: payload(1), BusinessKey: "a"})
	w.submit(Input{Payload: payload(1), BusinessKey: "b"})
	done := make(chan RunResult, 2)
	run := func() { done <- w.run(1) }
	go run()
	a.wait(t, 1) // holds the guard, and has read no fact
	go run()
	w.until(`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`, 1)
	w.exec(`INSERT INTO fact VALUES (1, 202601, 42)`)
	close(a.out)
	w.equal([]any{(<-done).Succeeded, (<-done).Succeeded}, []any{1, 1}, "succeeded")
	w.equal(one[string](w, `SELECT total || ' ' || writes FROM sum_row`), "42 2", "the row the waiter wrote")
	w.equal(one[string](w, `SELECT guard_key FROM lockstep.refresh_scope_guard`), "sums:1:202601", "the guard's key")
	w.equal(one[string](w, `SELECT string_agg(schemaname || '.' || tablename, ',') FROM pg_tables WHERE tablename LIKE '%guard%'`),
		"lockstep.refresh_scope_guard", "the one table of guards")
	w.equal(len(w.sums.doubled), 0, "scopes written by two at once")
}

// TestAWorkerThatStoppedInMidEffect stands still inside a scope's transaction
// until another one has taken the task over, and then goes on.
func TestAWorkerThatStoppedInMidEffect(t *testing.T) {
	w := setup(t)
	a := newArrivals()
	w.sums.hook = a.hook
	out := w.submit(Input{Payload: payload(1)})
	old := w.claim(w.engine1("old"))
	done := make(chan pageResult, 2)
	run := func(j *job) {
		page, err := w.work(w.ctx, j, noDeadline)
		if err != nil {
			t.Error(err)
		}
		done <- page
	}
	go run(old)
	a.wait(t, 1) // it has written, holds the guard, and stands still
	w.lapse()
	young := w.claim(w.engine1("young"))
	go run(young)
	w.until(`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`, 1)
	close(a.out)
	events := map[Event]bool{(<-done).event: true, (<-done).event: true}
	w.equal(events, map[Event]bool{"": true, AllDone: true}, "one was fenced, one concluded")
	d := w.task(out.TaskID)
	w.equal([]any{d.State, d.Attempt, d.Done, d.Counts.Updated}, []any{Success, 2, 1, 1}, "task")
	w.equal(one[int](w, `SELECT writes FROM sum_row`), 1, "writes: the old worker's was rolled back")
}

// TestARunThatStandsStillFails holds a scope until its lease is let go: that
// costs a retry, or it would be taken again and again.
func TestARunThatStandsStillFails(t *testing.T) {
	w := setup(t)
	w.set.Lease, w.set.Stall = 3*time.Second, time.Millisecond // looked at after one second
	w.sums.hook = func(ctx context.Context, _ []byte, _ Scope) error {
		<-ctx.Done()
		return ctx.Err()
	}
	out := w.submit(Input{Payload: payload(1)})
	w.equal(w.run(1).Failed, 1, "failed")
	d := w.task(out.TaskID)
	w.equal([]any{d.State, d.Code, d.RetryCount, d.Due, d.LeaseUntil == nil}, []any{Failed, "LEASE_EXPIRED", 1, false, true}, "task")
}

// TestTheTokenStaysInItsColumn looks for every token of a run in all that people can read.
func TestTheTokenStaysInItsColumn(t *testing.T) {
	w := setup(t)
	core, logs := observer.New(zap.DebugLevel)
	w.log = zap.New(core)
	var tokens []string
	w.sums.hook = func(_ context.Context, _ []byte, s Scope) error {
		tokens = append(tokens, one[string](w, `SELECT claim_token::text FROM lockstep.refresh_progress WHERE claim_token IS NOT NULL`))
		switch s.ID {
		case 1:
			return errors.New("no")
		case 2:
			w.lapse()
			w.claim(w.engine1("young"))
		}
		return nil
	}
	var shown strings.Builder
	for id := 1; id <= 3; id++ {
		out := w.submit(Input{Payload: payload(id)})
		j := w.claim(w.Engine)
		page, err := w.work(w.ctx, j, noDeadline)
		fmt.Fprintf(&shown, "%v %+v %v %+v\n", j.claim, page, err, w.task(out.TaskID))
		if d := w.task(out.TaskID); d.State == Running {
			w.must(w.Cancel(w.ctx, "ann", out.TaskID, "over"))
		}
	}
	for _, entry := range logs.All() {
		fmt.Fprintf(&shown, "%s %v\n", entry.Message, entry.ContextMap())
	}
	shown.WriteString(one[string](w, `SELECT string_agg(a::text, ' ') FROM lockstep.audit a`))
	shown.WriteString(one[string](w, `SELECT string_agg(t::text, ' ') FROM lockstep.refresh_task t`))
	shown.WriteString(one[string](w, `SELECT string_agg(s::text, ' ') FROM lockstep.refresh_scope s`))
	shown.WriteString(one[string](w, `SELECT string_agg(p::text, ' ') FROM lockstep.refresh_progress p`)) // all claims are over
	w.equal([]any{len(tokens), logs.Len() >= 2}, []any{3, true}, "tokens seen, and logs written")
	for _, token := range tokens {
		if strings.Contains(shown.String(), token) {
			t.Errorf("token %s was shown", token)
		}
	}
}

func TestAShutdownGivesBack(t *testing.T) {
	w := setup(t)
	a := newArrivals()
	w.sums.hook = a.hook
	out := w.submit(Input{Payload: payload(upTo(5)...)})
	ctx, stop := context.WithCancel(w.ctx)
	done := make(chan error)
	go func() {
		_, err := w.RunDue(ctx, 1)
		done <- err
	}()
	a.wait(t, 3)
	stop()
	w.must(<-done)
	d := w.task(out.TaskID)
	w.equal([]any{d.State, d.RetryCount, d.Due, d.Done, d.ClaimedBy}, []any{Pending, 0, true, 0, ""}, "after the shutdown")
	w.equal(one[int](w, `SELECT count(*) FROM sum_row`), 0, "rows half done")
}

func TestAnEmptyRangeSucceeds(t *testing.T) {
	w := setup(t)
	out := w.submit(Input{Payload: payload()})
	w.equal(w.run(1).Succeeded, 1, "succeeded")
	w.equal(w.task(out.TaskID).Scopes, 0, "scopes")
}
