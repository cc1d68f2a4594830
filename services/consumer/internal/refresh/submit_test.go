package refresh

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
)

func TestFirstRequest(t *testing.T) {
	w := setup(t)
	out := w.submit(Input{Payload: payload(1), Trigger: "import"})
	sum := sha256.Sum256([]byte("sums\x00EXISTING_ONLY[[1 202601]]"))
	w.equal(out.TaskCode, hex.EncodeToString(sum[:]), "task code")
	d := w.task(out.TaskID)
	w.equal(d.State, Pending, "state")
	w.equal([]any{d.RequestGeneration, d.RunningGeneration, d.Attempt, d.RetryCount, d.MaxRetry, d.Due, d.RequestedBy},
		[]any{1, 0, 0, 0, 3, true, "import"}, "generations, attempt, retries, due, trigger")
	w.equal(one[int](w, `SELECT count(*) FROM lockstep.refresh_progress`), 0, "progress rows that a submission makes")
}

func TestSameKeyAgain(t *testing.T) {
	key := func(note string) Input { return Input{Payload: payloadOf(sumsPayload{Note: note}, 1)} }

	t.Run("a_waiting_task_takes_the_newest_payload", func(t *testing.T) {
		w := setup(t)
		first := w.submit(key("old"))
		second := w.submit(key("new"))
		w.equal(second, Submitted{
			TaskID: first.TaskID, TaskCode: first.TaskCode, Projection: "sums", BusinessKey: first.BusinessKey, Generation: 2, Outcome: Advanced,
		}, "second")
		w.equal(one[string](w, `SELECT payload->>'note' FROM lockstep.refresh_task`), "new", "payload")
	})

	t.Run("a_succeeded_or_failed_one_is_pending_again_with_a_clean_slate", func(t *testing.T) {
		for _, broken := range []bool{false, true} {
			w := setup(t)
			out := w.submit(key(""))
			if broken {
				w.sums.check = func() error { return errors.New("no") }
			}
			w.run(1)
			w.sums.check = nil
			w.equal(w.task(out.TaskID).State, map[bool]State{false: Success, true: Failed}[broken], "state before")
			w.submit(key(""))
			d := w.task(out.TaskID)
			w.equal([]any{d.State, d.RetryCount, d.Code, d.Error, d.Due}, []any{Pending, 0, "", "", true}, "after the request")
		}
	})

	t.Run("a_running_one_goes_on_with_its_frozen_payload", func(t *testing.T) {
		w := setup(t)
		out := w.submit(key("old"))
		j := w.claim(w.Engine)
		w.submit(key("new"))
		d := w.task(out.TaskID)
		w.equal([]any{d.State, d.RequestGeneration, d.RunningGeneration}, []any{Running, 2, 1}, "while it runs")
		w.equal(one[string](w, `SELECT payload->>'note' FROM lockstep.refresh_progress`), "old", "frozen payload")
		page, err := w.work(w.ctx, j, noDeadline)
		w.must(err)
		w.equal(page.event, Superseded, "conclusion")
		w.claim(w.Engine)
		w.equal(one[string](w, `SELECT payload->>'note' FROM lockstep.refresh_progress`), "new", "payload of the next claim")
	})

	t.Run("a_source_event_seen_before_changes_nothing", func(t *testing.T) {
		w := setup(t)
		in := key("first")
		in.SourceEventID = "event-1"
		w.submit(in)
		before := one[string](w, `SELECT t::text FROM lockstep.refresh_task t`)
		again := key("again")
		again.SourceEventID = "event-1"
		out := w.submit(again)
		w.equal([]any{out.Outcome, out.Generation}, []any{Unchanged, 1}, "outcome")
		w.equal(one[string](w, `SELECT t::text FROM lockstep.refresh_task t`), before, "the task's row")
		again.SourceEventID = "event-2"
		w.equal(w.submit(again).Generation, 2, "generation after another event")
	})
}

func TestRefusalsAreResults(t *testing.T) {
	t.Run("a_cancelled_task_does_not_rise_and_the_caller's_transaction_goes_on", func(t *testing.T) {
		w := setup(t)
		out := w.submit(Input{Payload: payload(1)})
		w.must(w.Cancel(w.ctx, "ann", out.TaskID, "not wanted"))
		tx, err := w.pool.Begin(w.ctx)
		w.must(err)
		refused, err := w.Submit(w.ctx, tx, w.parse(Input{Payload: payload(1)}))
		w.must(err)
		w.equal([]any{refused.Outcome, refused.Code}, []any{Refused, fault.CancelledByOperator}, "outcome")
		_, err = tx.Exec(w.ctx, `INSERT INTO fact VALUES (9, 202601, 1)`)
		w.must(err)
		w.must(tx.Commit(w.ctx))
		w.equal(one[int](w, `SELECT count(*) FROM fact`), 1, "the caller's own row")
		w.equal(w.task(out.TaskID).State, Cancelled, "state")

		w.must(w.Reopen(w.ctx, "ann", out.TaskID, "wanted after all"))
		d := w.task(out.TaskID)
		w.equal([]any{d.State, d.RequestGeneration, d.Code}, []any{Pending, 2, ""}, "after reopening")
	})

	t.Run("another_range_under_a_key_needs_replace", func(t *testing.T) {
		w := setup(t)
		in := Input{Payload: payload(1), BusinessKey: "account-7"}
		first := w.submit(in)
		in.Payload = payload(2)
		refused := w.submit(in)
		w.equal([]any{refused.Outcome, refused.Code, refused.TaskID}, []any{Refused, fault.KeyRangeMismatch, first.TaskID}, "outcome")
		w.equal(w.task(first.TaskID).RequestGeneration, 1, "generation")
		in.Replace = true
		w.equal(w.submit(in).Generation, 2, "generation after replace")
		w.run(1)
		w.equal(w.order(first.TaskID), []int64{2}, "scopes")
	})
}

func TestOwnKeys(t *testing.T) {
	w := setup(t)
	review := payloadOf(sumsPayload{Mode: ReviewCreate}, 1)
	_, err := w.Parse(Input{Projection: "sums", Payload: review, BusinessKey: "mine"})
	w.equal(fault.ReasonOf(err), fault.InvalidArgument, "a review under a key of the caller's own")
	computed := w.parse(Input{Payload: review}).BusinessKey
	w.equal(w.parse(Input{Payload: review, BusinessKey: computed}).CustomKey, false, "the computed key, given")
	w.equal(w.parse(Input{Payload: payload(1), BusinessKey: "mine"}).CustomKey, true, "an own key for EXISTING_ONLY")
	w.equal(w.parse(Input{Payload: payload(1)}).Mode, ExistingOnly, "a payload without a mode")
	// The database holds it too.
	_, err = w.pool.Exec(w.ctx, `INSERT INTO lockstep.refresh_task (task_id, projection, task_code, business_key, custom_key, mode, payload, range_hash, max_retry)
		VALUES (gen_random_uuid(), 'sums', repeat('a', 64), 'k', true, 'REVIEW_CREATE', '{}', repeat('x', 32)::bytea, 3)`)
	if err == nil {
		t.Error("the table took a review with a key of the caller's own")
	}
}

func TestRequestsThatCantBeStoredAreRefusedBeforeTheDatabase(t *testing.T) {
	w := setup(t)
	for name, in := range map[string]Input{
		"long_key":       {Payload: payload(1), BusinessKey: strings.Repeat("k", 1025)},
		"key_with_a_NUL": {Payload: payload(1), BusinessKey: "a\x00b"},
		"blank_key":      {Payload: payload(1), BusinessKey: "  "},
		"long_event":     {Payload: payload(1), SourceEventID: strings.Repeat("e", 257)},
		"no_UTF-8":       {Payload: payload(1), Trigger: "\xff"},
		"unknown_field":  {Payload: []byte(`{"scopes":[],"status":1}`)},
		"no_JSON":        {Payload: []byte(`{"scopes":`)},
	} {
		t.Run(name, func(t *testing.T) {
			in.Projection = "sums"
			if _, err := w.Parse(in); fault.ReasonOf(err) != fault.InvalidArgument || len(fault.FieldsOf(err)) == 0 {
				t.Errorf("got %v, want INVALID_ARGUMENT with fields", err)
			}
		})
	}
	if _, err := w.Parse(Input{Projection: "other", Payload: payload(1)}); fault.ReasonOf(err) != fault.InvalidArgument {
		t.Errorf("an unknown projection: %v", err)
	}
}

func TestASubmissionThatFailsLeavesTheCallersTransactionUsable(t *testing.T) {
	w := setup(t)
	w.submit(Input{Payload: payload(1)})
	other, err := w.pool.Begin(w.ctx)
	w.must(err)
	_, err = other.Exec(w.ctx, `SELECT FROM lockstep.refresh_task FOR UPDATE`)
	w.must(err)
	tx, err := w.pool.Begin(w.ctx)
	w.must(err)
	_, err = tx.Exec(w.ctx, `SET LOCAL lock_timeout = '20ms'`)
	w.must(err)
	if _, err := w.Submit(w.ctx, tx, w.parse(Input{Payload: payload(1)})); err == nil {
		t.Error("submitted past a lock")
	}
	_, err = tx.Exec(w.ctx, `INSERT INTO fact VALUES (1, 202601, 1)`)
	w.must(err)
	w.must(tx.Commit(w.ctx))
	w.must(other.Rollback(w.ctx))
	w.equal(one[int](w, `SELECT count(*) FROM fact`), 1, "the caller's own row")
}

func TestWakingFollowsTheCommit(t *testing.T) {
	w := setup(t, func(s *Settings) { s.Kick.Stages = map[string]Stage{"sums": {Enabled: true, Grey: 100}} })
	woken := func() int { return len(w.kicker.buckets) + len(w.notify) }
	begin := func() *Tx {
		tx, err := w.pool.Begin(w.ctx)
		w.must(err)
		return w.Wrap(tx)
	}
	tx := begin()
	_, err := w.Submit(w.ctx, tx, w.parse(Input{Payload: payload(1)}))
	w.must(err)
	w.equal(woken(), 0, "woken before the commit")
	w.must(tx.Rollback(w.ctx))
	w.equal(woken(), 0, "woken by a rollback")
	w.equal(one[int](w, `SELECT count(*) FROM lockstep.refresh_task`), 0, "tasks after a rollback")

	tx = begin()
	_, err = w.Submit(w.ctx, tx, w.parse(Input{Payload: payload(1)}))
	w.must(err)
	w.equal(woken(), 0, "woken before the commit")
	w.must(tx.Commit(w.ctx))
	w.equal(woken(), 2, "woken by the commit: one kick, one notification")
}

func TestACommitThatFailsWakesNobody(t *testing.T) {
	w := setup(t)
	inner, err := w.pool.Begin(w.ctx)
	w.must(err)
	tx := w.Wrap(inner)
	_, err = w.Submit(w.ctx, tx, w.parse(Input{Payload: payload(1)}))
	w.must(err)
	_, _ = tx.Exec(w.ctx, `SELECT 1/0`)
	if err := tx.Commit(w.ctx); !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("committed a broken transaction: %v", err)
	}
	w.equal(len(w.notify), 0, "notifications")
}

func TestAnotherReplicaIsWokenByTheDatabase(t *testing.T) {
	w := setup(t)
	other := w.engine("other", func(s *Settings) { s.Kick.Stages = map[string]Stage{"sums": {Enabled: true, Grey: 100}} })
	ctx, stop := context.WithCancel(w.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		other.Run(ctx)
	}()
	go w.sendNotifications(ctx)
	defer func() { stop(); <-done }()
	ended := make(chan Scope, 10)
	w.sums.hook = func(_ context.Context, _ []byte, s Scope) error { ended <- s; return nil }

	// The scan of the other replica rests once its listener has made it look.
	w.until(`SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN lockstep_refresh' AND datname = current_database()`, 1)
	w.submit(Input{Payload: payload(1)})
	w.equal((<-ended).ID, 1, "the scope the other replica refreshed")

	// Its connection is cut: it connects again, and looks at what it missed.
	w.exec(`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query = 'LISTEN lockstep_refresh' AND datname = current_database()`)
	w.submit(Input{Payload: payload(2)})
	w.equal((<-ended).ID, 2, "the scope it refreshed after it was cut off")
}
