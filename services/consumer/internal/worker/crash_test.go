package worker_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/consumer/internal/worker"
)

// killer lets so many statements through and none after them, as if the
// process had died between two of them.
type killer struct {
	left atomic.Int64
	dead atomic.Bool
}

func (k *killer) next(ctx context.Context) context.Context {
	if k.dead.Load() || k.left.Add(-1) < 0 {
		k.dead.Store(true)
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx
	}
	return ctx
}

// connecting keeps the dead from making new connections, each of which is a server process.
func (k *killer) connecting(context.Context, *pgx.ConnConfig) error {
	if k.dead.Load() {
		return errDead
	}
	return nil
}

var errDead = errors.New("this process is dead")

func (k *killer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return k.next(ctx)
}

func (k *killer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (k *killer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return k.next(ctx)
}

func (k *killer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (k *killer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// differ puts one difference of each kind on both sides, and the database back
// to where a test starts.
func differ(w *world) {
	w.t.Helper()
	// TRUNCATE would make new files each time, for a few rows.
	w.exec(`DELETE FROM hall.answer_projection; DELETE FROM lockstep.outcome; DELETE FROM lockstep.high_water; DELETE FROM lockstep.work`)
	w.center.Forget()
	for n := 100; n < 110; n++ {
		w.both(k(n), rec(1, `{"a":1}`))
	}
	w.center.Put(k(1), rec(2, `{"a":1}`))
	w.local(k(2), rec(1, `{}`))
	w.center.Put(k(2), rec(3, `{}`))
	w.local(k(3), rec(2, `{}`))
	w.center.Put(k(3), dead())
	w.local(k(4), rec(5, `{"a":1}`))
	w.center.Put(k(4), rec(5, `{"a":2}`))
	w.local(k(5), rec(1, `{}`))
	w.center.Put(k(6), rec(0, `{}`))
}

var differLedger = []string{
	"1 MISSING REPAIRED", "2 STALE REPAIRED", "3 TOMBSTONE REPAIRED", "4 HASH_CONFLICT REPAIRED", "5 EXTRA_ROW RETIRED",
	"6 REVISION_ZERO REPORTED REVISION_ZERO",
}

// wantWhole checks that a run came to its one right end, however it came there.
func (w *world) wantWhole(task *centertest.Task, audits int) {
	w.t.Helper()
	w.wantState(task, work.Partial, "")
	w.wantLedger(task, differLedger...)
	last := w.center.Last()
	var found int64
	for _, c := range last.Counts {
		found += c.Found
	}
	if last.State != protocol.Partial || found != 6 || last.Open() != 1 || last.CenterScanned != 15 ||
		last.LocalScanned < 14 || last.LocalScanned > 15 { // a row repaired before the death is scanned as well
		w.t.Errorf("report %+v", last)
	}
	var claims, retired, audited int
	if err := w.pool.QueryRow(w.t.Context(), `SELECT (SELECT count(*) FROM lockstep.work WHERE claim_token IS NOT NULL),
		(SELECT count(*) FROM hall.answer_projection WHERE retired_at IS NOT NULL),
		(SELECT count(*) FROM lockstep.audit)`).Scan(&claims, &retired, &audited); err != nil {
		w.t.Fatal(err)
	}
	if claims != 0 || retired != 1 || audited != audits {
		w.t.Errorf("%d claims, %d rows retired, %d retirements audited; want 0, 1, %d", claims, retired, audited, audits)
	}
}

// expire ends every lease, as time would.
func (w *world) expire() {
	w.t.Helper()
	w.exec(`UPDATE lockstep.work SET lease_until = now() - interval '1 s' WHERE claim_token IS NOT NULL`)
}

// A worker that dies after any number of statements loses and doubles nothing.
func TestDeathAfterEveryStatement(t *testing.T) {
	w := setup(t)
	kill := &killer{}
	kill.left.Store(1 << 30)
	victim := w.beside("victim", kill)
	for n, deaths := 0, 0; ; n++ {
		differ(w)
		task := w.center.Task()
		w.accept(task, 1)
		kill.dead.Store(false)
		kill.left.Store(int64(n))
		_, err := victim.worker.WorkOnce(t.Context())
		if kill.dead.Load() != (err != nil) {
			t.Fatalf("killed after %d statements: %v", n, err)
		}
		if err != nil {
			deaths++
			// The server notices a dead client sooner or later; here before anybody goes on.
			w.exec(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'killer'`)
			victim.pool.Reset()
			w.expire()
			w.due()
		}
		w.work()
		w.wantWhole(task, n+1)
		if t.Failed() {
			t.Fatalf("killed after %d statements", n)
		}
		if err == nil {
			t.Logf("%d deaths", deaths)
			if deaths < 40 {
				t.Errorf("only %d statements were seen", deaths)
			}
			return
		}
	}
}

// A worker that is taken over at any call to the center changes nothing more.
func TestTakeOverAtEveryCall(t *testing.T) {
	w := setup(t)
	old := w.beside("old", nil)
	tables := []string{"hall.answer_projection", "lockstep.work", "lockstep.outcome", "lockstep.high_water", "lockstep.audit"}
	for n := 1; ; n++ {
		differ(w)
		task := w.center.Task()
		w.accept(task, 1)
		var calls atomic.Int64
		var after string
		taken := false
		w.center.Lie(centertest.Lies{Call: func(context.Context, string) error {
			if calls.Add(1) != int64(n) {
				return nil
			}
			taken = true
			w.expire()
			w.work() // its own calls have higher numbers
			after = w.dump(tables...)
			return nil
		}})
		if _, err := old.worker.WorkOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.center.Lie(centertest.Lies{})
		if taken && w.dump(tables...) != after {
			t.Errorf("taken over at call %d, the old worker still changed something", n)
		}
		w.wantWhole(task, n)
		if t.Failed() {
			t.FailNow()
		}
		if !taken {
			if n < 8 {
				t.Errorf("only %d calls were seen", n-1)
			}
			return
		}
	}
}

func TestPoison(t *testing.T) {
	w := setup(t)
	w.center.Put(k(1), rec(1, `{}`))
	task := w.center.Task()
	w.accept(task, 1)
	w.worker.Set.Enabled = true
	// Four workers die over it, each later than the one before.
	for n := range 4 {
		c, row, err := w.store.Claim(t.Context(), "w", false)
		if err != nil || row == nil {
			t.Fatalf("claim %d (%s): %v", n, c, err)
		}
		w.expire()
		if _, err := w.store.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		var wait float64
		if err := w.pool.QueryRow(t.Context(), `SELECT extract(epoch FROM due_at - updated_at) FROM lockstep.work`).Scan(&wait); err != nil {
			t.Fatal(err)
		}
		if want := []float64{0, 60, 120, 240}[n]; wait != want {
			t.Errorf("after death %d it waits %.0f s, want %.0f", n+1, wait, want)
		}
		w.due()
	}
	w.work()
	w.wantState(task, work.Failed, "LEASE_EXPIRED")
	w.wantImage(map[string]centertest.Record{})
}

func TestStop(t *testing.T) {
	t.Run("a stopping worker gives the row back with its checkpoint and spends no retry", func(t *testing.T) {
		w := setup(t)
		for n := range 600 { // 150 pages: three rounds
			w.center.Put(k(n), rec(1, `{}`))
		}
		task := w.center.Task()
		w.accept(task, 1)
		ctx, stop := context.WithCancel(t.Context())
		// The third round's records: the 512 before took 77 calls, in six batches, and are stored.
		w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 78, stop)})
		if _, err := w.worker.WorkOnce(ctx); err != nil {
			t.Fatal(err)
		}
		row := w.row(task)
		if row.State != work.Queued || row.NextPage != 128 || row.RetryCount != 0 || row.LeaseUntil != nil {
			t.Errorf("%s at page %d, %d retries", row.State, row.NextPage, row.RetryCount)
		}
		w.center.Lie(centertest.Lies{})
		w.work()
		w.wantState(task, work.Completed, "")
		if last := w.center.Last(); last.Resumed != 1 || last.CenterScanned != 600 || last.Counts[0].Repaired != 600 {
			t.Errorf("report %+v", last)
		}
		asked := w.center.Asked()
		slices.Sort(asked)
		// What was ahead when it stopped, two answers of 7, is asked for again.
		if n := len(slices.Compact(slices.Clone(asked))); n != 600 || len(asked) > 614 {
			t.Errorf("%d records were asked for, %d different ones", len(asked), n)
		}
	})
	t.Run("Run ends when told to, idle or at work", func(t *testing.T) {
		w := setup(t)
		w.center.Put(k(1), rec(1, `{}`))
		task := w.center.Task()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		reported := make(chan struct{})
		w.center.Lie(onResult(closeOnce(reported)))
		go func() { done <- w.worker.Run(ctx) }()
		w.accept(task, 1)
		w.worker.Kick()
		<-reported
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		w.work()
		w.wantState(task, work.Completed, "")
	})
	t.Run("a paused run rests between two checkpoints that are far apart", func(t *testing.T) {
		w := setup(t)
		for n := range 100 {
			w.center.Put(k(n), rec(1, `{}`))
		}
		task := w.center.Task()
		w.accept(task, 1)
		pause := onCall("GetRecords", 3, func() {
			if _, err := w.store.SetPaused(t.Context(), w.row(task).TaskID, true, "operator/x", "night"); err != nil {
				t.Error(err)
			}
		})
		w.center.Lie(centertest.Lies{Call: func(ctx context.Context, method string) error {
			if err := pause(ctx, method); err != nil || method != "GetRecords" || !w.row(task).Paused {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}})
		w.work()
		w.wantState(task, work.Queued, "")
		if row := w.row(task); row.NextPage != 0 || row.RetryCount != 0 || row.LeaseUntil != nil {
			t.Errorf("page %d, %d retries, lease until %v", row.NextPage, row.RetryCount, row.LeaseUntil)
		}
		w.center.Lie(centertest.Lies{})
		if _, err := w.store.SetPaused(t.Context(), w.row(task).TaskID, false, "operator/x", ""); err != nil {
			t.Fatal(err)
		}
		w.work()
		w.wantState(task, work.Completed, "")
	})
	t.Run("a paused run rests at its next checkpoint", func(t *testing.T) {
		w := setup(t, func(_ *store.Settings, set *worker.Settings, _ *repair.Repairer) { set.ScanInterval = time.Hour })
		for n := range 600 {
			w.center.Put(k(n), rec(1, `{}`))
		}
		task := w.center.Task()
		w.accept(task, 1)
		w.center.Lie(centertest.Lies{Call: onCall("GetPages", 1, func() {
			if _, err := w.store.SetPaused(t.Context(), w.row(task).TaskID, true, "operator/x", "night"); err != nil {
				t.Error(err)
			}
		})})
		w.work()
		if row := w.row(task); row.State != work.Queued || row.NextPage != 128 || row.RetryCount != 0 {
			t.Errorf("%s at page %d, %d retries", row.State, row.NextPage, row.RetryCount)
		}
		if _, err := w.store.SetPaused(t.Context(), w.row(task).TaskID, false, "operator/x", ""); err != nil {
			t.Fatal(err)
		}
		w.work()
		w.wantState(task, work.Completed, "")
	})
}

// A run that stands still costs a retry, or it would be taken again and again.
func TestARunThatStandsStillIsAFailedRound(t *testing.T) {
	t.Parallel()
	w := setup(t, func(s *store.Settings, set *worker.Settings, _ *repair.Repairer) {
		s.Lease, set.Lease, set.StallLimit = 3*time.Second, 3*time.Second, 700*time.Millisecond // looked at after one second
	})
	w.center.Put(k(1), rec(1, `{}`))
	task := w.center.Task()
	w.accept(task, 1)
	w.center.Lie(centertest.Lies{Call: func(ctx context.Context, method string) error {
		if method == "GetPages" {
			<-ctx.Done()
		}
		return nil
	}})
	if _, err := w.worker.WorkOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantState(task, work.Queued, "LEASE_EXPIRED")
	if row := w.row(task); row.RetryCount != 1 || row.LeaseUntil != nil {
		t.Errorf("%d retries, lease until %v", row.RetryCount, row.LeaseUntil)
	}
}

func TestARowWhoseEndCanNotBeWrittenIsGivenBack(t *testing.T) {
	w := setup(t)
	w.center.Put(k(1), rec(1, `{}`))
	w.exec(`CREATE FUNCTION lockstep.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the disk is full'; END $$;
		CREATE TRIGGER no BEFORE UPDATE ON lockstep.work FOR EACH ROW WHEN (NEW.state = 'REPORTING') EXECUTE FUNCTION lockstep.no()`)
	task := w.center.Task()
	w.accept(task, 1)
	if _, err := w.worker.WorkOnce(t.Context()); err == nil {
		t.Fatal("no error")
	}
	if row := w.row(task); row.State != work.Queued || row.LeaseUntil != nil || !row.LocalComplete || row.RetryCount != 0 {
		t.Errorf("%s, complete %v, %d retries", row.State, row.LocalComplete, row.RetryCount)
	}
	w.exec(`DROP TRIGGER no ON lockstep.work`)
	w.work()
	w.wantState(task, work.Completed, "")
	w.wantLedger(task, "1 MISSING REPAIRED")
}
