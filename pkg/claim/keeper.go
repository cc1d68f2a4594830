package claim

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ErrLeaseLost: the lease could not be renewed in time or the work stalled;
// somebody else may take the row. Stop before it ends.
var ErrLeaseLost = errors.New("the lease was not renewed in time")

// Keeper renews a claim's lease on its own while the work goes on.
type Keeper struct {
	renew  func(context.Context) error
	lease  time.Duration
	stall  time.Duration
	now    func() time.Time
	ticked atomic.Int64 // nanoseconds since start of the last sign of life
	start  time.Time
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// Keep renews about each third of the lease until Stop, over whatever
// connection renew uses: one that long work can't take away. The returned
// context ends with ErrFenced when a renewal finds another owner, and with
// ErrLeaseLost a tenth of the lease before it would end by this process's own
// clock, or when the work has not called Tick for stall.
func Keep(ctx context.Context, lease, stall time.Duration, renew func(context.Context) error) (context.Context, *Keeper) {
	ctx, cancel := context.WithCancelCause(ctx)
	k := &Keeper{renew: renew, lease: lease, stall: stall, now: time.Now, cancel: cancel, done: make(chan struct{})}
	k.start = k.now()
	go k.run(ctx)
	return ctx, k
}

// Tick is a sign of life of the work.
func (k *Keeper) Tick() { k.ticked.Store(int64(k.now().Sub(k.start))) }

// Stop ends the renewals and waits for the last one.
func (k *Keeper) Stop() {
	k.cancel(context.Canceled)
	<-k.done
}

func (k *Keeper) run(ctx context.Context) {
	defer close(k.done)
	good := k.lease - k.lease/10
	deadline := k.start.Add(good)
	timer := time.NewTimer(k.lease / 3)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		asked := k.now()
		if !asked.Before(deadline) || asked.Sub(k.start)-time.Duration(k.ticked.Load()) > k.stall {
			k.cancel(ErrLeaseLost)
			return
		}
		next := k.lease / 3
		switch err := k.renewOnce(ctx, deadline); {
		case err == nil:
			deadline = asked.Add(good)
		case errors.Is(err, ErrFenced):
			k.cancel(ErrFenced)
			return
		default: // try again sooner; the deadline still stands
			next = k.lease / 20
		}
		timer.Reset(next)
	}
}

func (k *Keeper) renewOnce(ctx context.Context, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return k.renew(ctx)
}
