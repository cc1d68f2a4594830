package loop_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"lockstep.dev/services/center/internal/loop"
)

type world struct {
	steps atomic.Int32
	work  atomic.Int32          // units left
	err   atomic.Pointer[error] // what the step fails with
	kick  loop.Kick
	logs  *observer.ObservedLogs
}

// run lets a loop live in a bubble for a while.
func run(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		w := &world{kick: loop.NewKick(), logs: logs}
		l := &loop.Loop{
			Name: "test", Interval: 15 * time.Second, First: 45 * time.Second, Kick: w.kick, Log: zap.New(core),
			Step: func(context.Context) (bool, error) {
				w.steps.Add(1)
				if err := w.err.Load(); err != nil {
					return false, *err
				}
				return w.work.Add(-1) >= 0, nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.Run(ctx); close(done) }()
		test(t, w)
		cancel()
		<-done
	})
}

func (w *world) after(d time.Duration) int {
	time.Sleep(d)
	synctest.Wait()
	return int(w.steps.Load())
}

func TestLoop(t *testing.T) {
	t.Run("waits_for_its_first_scan_and_then_from_scan_to_scan", func(t *testing.T) {
		run(t, func(t *testing.T, w *world) {
			for _, c := range []struct {
				wait time.Duration
				want int
			}{{44 * time.Second, 0}, {2 * time.Second, 1}, {15 * time.Second, 2}, {15 * time.Second, 3}} {
				if got := w.after(c.wait); got != c.want {
					t.Fatalf("%d steps, want %d", got, c.want)
				}
			}
		})
	})
	t.Run("goes_on_until_nothing_is_left", func(t *testing.T) {
		run(t, func(t *testing.T, w *world) {
			w.work.Store(5)
			if got := w.after(46 * time.Second); got != 6 {
				t.Errorf("%d steps", got)
			}
		})
	})
	t.Run("wakes_at_once_and_merges_wake-ups", func(t *testing.T) {
		run(t, func(t *testing.T, w *world) {
			w.kick.Wake()
			w.kick.Wake()
			if got := w.after(time.Millisecond); got < 1 || got > 2 {
				t.Errorf("%d steps", got)
			}
		})
	})
	t.Run("backs_off_from_a_failing_step_tells_it_once_and_recovers", func(t *testing.T) {
		run(t, func(t *testing.T, w *world) {
			gone := errors.New("the database is gone")
			w.err.Store(&gone)
			w.kick.Wake()
			w.after(0)
			for range 100 { // wake-ups do not defeat the back-off
				w.kick.Wake()
				w.after(100 * time.Millisecond)
			}
			if n := w.steps.Load(); n < 4 || n > 8 {
				t.Errorf("%d steps in ten seconds", n)
			}
			if n := w.logs.FilterLevelExact(zap.ErrorLevel).Len(); n != 1 {
				t.Errorf("it was told %d times", n)
			}
			w.err.Store(nil)
			w.after(15 * time.Second)
			if n := w.logs.FilterMessage("works again").Len(); n != 1 {
				t.Errorf("the recovery was told %d times", n)
			}
		})
	})
}

func TestAllGivesEveryStepItsTurn(t *testing.T) {
	broken := errors.New("broken")
	var turns int
	step := func(worked bool, err error) func(context.Context) (bool, error) {
		return func(context.Context) (bool, error) { turns++; return worked, err }
	}
	worked, err := loop.All(step(false, broken), step(true, nil), step(false, nil))(t.Context())
	if turns != 3 || !worked || !errors.Is(err, broken) {
		t.Errorf("%d turns, worked %t, %v", turns, worked, err)
	}
}
