package worker_test

import (
	"context"
	"testing"
	"time"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/consumer/internal/worker"
	"lockstep.dev/services/internal/load"
)

// guarded gives a consumer a guard that looks at a table, and what to set it with.
func guarded(t *testing.T, changes ...change) (w *world, busy func(bool)) {
	t.Helper()
	w = setup(t, changes...)
	w.exec(`CREATE TABLE busy AS SELECT false AS state`)
	guard, err := load.Open(t.Context(), w.pool, load.Config{Query: `SELECT state FROM busy`, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	w.worker.Guard = guard
	return w, func(is bool) {
		t.Helper()
		w.exec(`UPDATE busy SET state = $1`, is)
		for (guard.Busy(t.Context()) != "") != is {
			if t.Context().Err() != nil {
				t.Fatal("the guard never looks")
			}
		}
	}
}

// told lists the codes of the WAITING reports, each change once.
func told(w *world) (codes []string) {
	for _, r := range w.center.Reports() {
		if r.Phase == protocol.Waiting && (len(codes) == 0 || codes[len(codes)-1] != r.Code) {
			codes = append(codes, r.Code)
		}
	}
	return codes
}

func TestLoadGuard(t *testing.T) {
	t.Run("nothing is claimed while the database is busy, and the center is told why", func(t *testing.T) {
		w, busy := guarded(t)
		w.center.Put(k(1), rec(1, `{}`))
		busy(true)
		task := w.center.Task()
		w.accept(task, 1)
		w.work()
		w.wantState(task, work.Queued, "")
		if why := w.worker.WaitsFor(w.row(task)); why != fault.LoadGuard {
			t.Errorf("it waits for %q", why)
		}
		w.exec(`UPDATE lockstep.work SET updated_at = now() - interval '1 hour', due_at = now() - interval '1 hour'`)
		if _, err := w.worker.WaitingOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if codes := told(w); len(codes) != 1 || codes[0] != "LOAD_GUARD" {
			t.Errorf("the center was told %q", codes)
		}
		busy(false)
		w.work()
		w.wantState(task, work.Completed, "")
		if why := w.worker.WaitsFor(w.row(task)); why != fault.None {
			t.Errorf("it waits for %q", why)
		}
	})
	t.Run("a run gives way with its checkpoint, spends no retry, and goes on there", func(t *testing.T) {
		w, busy := guarded(t)
		for n := range 600 {
			w.center.Put(k(n), rec(1, `{}`))
		}
		// The first two rounds' 512 took 77 calls, in six batches, and are stored.
		w.center.Lie(centertest.Lies{Call: onCall("GetRecords", 78, func() { busy(true) })})
		task := w.center.Task()
		w.accept(task, 1)
		w.work()
		w.wantState(task, work.Queued, "LOAD_GUARD")
		if row := w.row(task); row.NextPage != 128 || row.RetryCount != 0 || row.LeaseUntil != nil {
			t.Errorf("page %d, %d retries, lease %v", row.NextPage, row.RetryCount, row.LeaseUntil)
		}
		if why := w.worker.WaitsFor(w.row(task)); why != fault.LoadGuard {
			t.Errorf("it waits for %q", why)
		}
		if codes := told(w); len(codes) != 1 || codes[0] != "LOAD_GUARD" {
			t.Errorf("the center was told %q", codes)
		}
		busy(false)
		w.work()
		w.wantState(task, work.Completed, "")
		if last := w.center.Last(); last.Resumed != 1 || last.CenterScanned != 600 || last.Counts[0].Found != 600 || last.Counts[0].Repaired != 600 {
			t.Errorf("report %+v", last)
		}
	})
	t.Run("between two checkpoints a run is held in place, and goes on there", func(t *testing.T) {
		w, busy := guarded(t)
		for n := range 100 {
			w.center.Put(k(n), rec(1, `{}`))
		}
		w.center.Lie(centertest.Lies{
			Call: onCall("GetRecords", 3, func() { busy(true) }),
			Ack: func(r *protocol.Report, _ *centerv1.ReportResultResponse) error {
				if r.Phase == protocol.Waiting {
					busy(false)
				}
				return nil
			},
		})
		task := w.run()
		w.wantState(task, work.Completed, "")
		if codes := told(w); len(codes) != 1 || codes[0] != "LOAD_GUARD" {
			t.Errorf("the center was told %q", codes)
		}
		if last := w.center.Last(); last.Resumed != 0 || last.Counts[0].Repaired != 100 {
			t.Errorf("report %+v", last)
		}
	})
	t.Run("a frozen report is sent all the same", func(t *testing.T) {
		w, busy := guarded(t)
		w.center.Put(k(1), rec(1, `{}`))
		lost := false
		w.center.Lie(onResult(func(*protocol.Report, *centerv1.ReportResultResponse) error {
			if lost {
				return nil
			}
			lost = true
			busy(true)
			return fault.New(fault.Unavailable, "the answer is lost")
		}))
		task := w.center.Task()
		w.accept(task, 1)
		w.work()
		w.wantState(task, work.Reporting, "UNAVAILABLE")
		w.due()
		w.work()
		w.wantState(task, work.Completed, "")
	})
}

func TestRepairLimit(t *testing.T) {
	w := setup(t, func(_ *store.Settings, _ *worker.Settings, r *repair.Repairer) { r.Limit = repair.NewLimit(1) })
	for n := range 5 {
		w.center.Put(k(n), rec(1, `{}`))
	}
	w.local(k(9), rec(1, `{}`)) // extra: it is asked about when all is repaired
	task := w.center.Task()
	seen := map[fault.Reason]bool{}
	var last fault.Reason
	w.center.Lie(centertest.Lies{Call: func(_ context.Context, method string) error {
		if method == "GetRecords" {
			last = w.worker.WaitsFor(w.row(task))
			seen[last] = true
		}
		return nil
	}})
	w.accept(task, 1)
	start := time.Now()
	w.work()
	if took := time.Since(start); took < 4*time.Second-100*time.Millisecond {
		t.Errorf("5 repairs at one a second took %s", took)
	}
	w.wantState(task, work.Completed, "")
	if !seen[fault.None] || !seen[fault.RateLimited] {
		t.Errorf("it waited for %v", seen)
	}
	if last != fault.None {
		t.Errorf("behind the repairs it waits for %q", last)
	}
	// WAITING once it is held back, however often it is told.
	if codes := told(w); len(codes) != 1 || codes[0] != "RATE_LIMITED" {
		t.Errorf("the center was told %q", codes)
	}
	if n := len(w.center.Asked()); n != 6 {
		t.Errorf("%d records were asked for", n)
	}
	if last := w.center.Last(); last.Counts[0].Found != 5 || last.Counts[0].Repaired != 5 {
		t.Errorf("report %+v", last)
	}
}

// A center that has no time for its consumers is no reason to give a row up.
func TestTheCentersLimitSpendsNoRetry(t *testing.T) {
	for _, method := range []string{"GetPages", "GetRecords", "ReportResult"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.center.Put(k(1), rec(1, `{}`))
			w.center.Lie(centertest.Lies{Call: failing(method, fault.New(fault.RateLimited, "slow down"))})
			task := w.run()
			for range 5 {
				w.wantState(task, work.Queued, "RATE_LIMITED")
				row := w.row(task)
				if rest := row.DueAt.Sub(row.UpdatedAt); row.RetryCount != 0 || row.Tries != 0 || rest != time.Minute {
					t.Fatalf("%d retries, %d tries, it rests for %s", row.RetryCount, row.Tries, rest)
				}
				if why := w.worker.WaitsFor(row); why != fault.RateLimited {
					t.Errorf("it waits for %q", why)
				}
				w.due()
				w.work()
			}
			w.center.Lie(centertest.Lies{})
			w.due()
			w.work()
			w.wantState(task, work.Completed, "")
		})
	}
	t.Run("a frozen report", func(t *testing.T) {
		w := setup(t)
		w.both(k(1), rec(1, `{}`))
		w.center.Lie(onResult(func(*protocol.Report, *centerv1.ReportResultResponse) error {
			return fault.New(fault.RateLimited, "slow down")
		}))
		task := w.run()
		for range 5 {
			w.wantState(task, work.Reporting, "RATE_LIMITED")
			w.due()
			w.work()
		}
		w.center.Lie(centertest.Lies{})
		w.due()
		w.work()
		w.wantState(task, work.Completed, "")
	})
}

// What is asked for at once is small while nothing is known, and small again where it failed.
func TestAsksGrowAndShrink(t *testing.T) {
	w := setup(t)
	for n := range 256 {
		w.center.Put(k(n), rec(1, `{}`))
	}
	var sizes []int
	away := false
	w.center.Lie(centertest.Lies{Records: func(r *centerv1.GetRecordsResponse) {
		sizes = append(sizes, len(r.GetAnswers())+len(r.GetLeftOver()))
	}, Call: func(_ context.Context, method string) error {
		if method == "GetRecords" && len(sizes) == 2 && !away {
			away = true
			return fault.New(fault.Unavailable, "too slow")
		}
		return nil
	}})
	task := w.run()
	w.wantState(task, work.Queued, "UNAVAILABLE")
	w.due()
	w.work()
	w.wantState(task, work.Completed, "")
	// 64, the 93 left of a batch, then the 86 left failed: half of them, and then a few more each time.
	if len(sizes) < 4 || sizes[0] != 64 || sizes[1] != 93 || sizes[2] != 43 || sizes[3] != 59 {
		t.Errorf("asked for %v", sizes)
	}
}
