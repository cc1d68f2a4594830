package claim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

const (
	testLease = 60 * time.Second
	testStall = 45 * time.Second
)

func TestKeeper(t *testing.T) {
	t.Run("renews each third of the lease while the work ticks", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			renewals := 0
			ctx, k := Keep(t.Context(), testLease, testStall, func(context.Context) error { renewals++; return nil })
			defer k.Stop()
			for range 20 { // 200 seconds of work
				time.Sleep(10 * time.Second)
				k.Tick()
			}
			synctest.Wait()
			if ctx.Err() != nil {
				t.Fatalf("the work was stopped: %v", context.Cause(ctx))
			}
			if renewals != 10 {
				t.Fatalf("renewed %d times in 200 s of a 60 s lease, want 10", renewals)
			}
		})
	})

	t.Run("a fenced renewal ends the work as fenced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, k := Keep(t.Context(), testLease, testStall, func(context.Context) error { return ErrFenced })
			defer k.Stop()
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrFenced) {
				t.Fatalf("cause is %v, want ErrFenced", context.Cause(ctx))
			}
		})
	})

	t.Run("work that does not tick loses its lease", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ctx, k := Keep(t.Context(), testLease, testStall, func(context.Context) error { return nil })
			defer k.Stop()
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
				t.Fatalf("cause is %v, want ErrLeaseLost", context.Cause(ctx))
			}
			if got := time.Since(start); got != 60*time.Second {
				t.Fatalf("stopped after %s, want 1m0s: the first renewal that saw no tick for 45 s", got)
			}
		})
	})

	t.Run("a database that is gone stops the work before the lease ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ctx, k := Keep(t.Context(), testLease, time.Hour, func(context.Context) error { return errors.New("down") })
			defer k.Stop()
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
				t.Fatalf("cause is %v, want ErrLeaseLost", context.Cause(ctx))
			}
			if got := time.Since(start); got >= testLease {
				t.Fatalf("stopped after %s, not before the lease of %s ended", got, testLease)
			}
		})
	})

	t.Run("one lost renewal is made up for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			ctx, k := Keep(t.Context(), testLease, time.Hour, func(context.Context) error {
				calls++
				if calls == 1 {
					return errors.New("connection reset")
				}
				return nil
			})
			time.Sleep(100 * time.Second)
			if ctx.Err() != nil {
				t.Fatalf("the work was stopped: %v", context.Cause(ctx))
			}
			k.Stop()
			if !errors.Is(context.Cause(ctx), context.Canceled) {
				t.Fatalf("after Stop the cause is %v, want Canceled", context.Cause(ctx))
			}
		})
	})
}
