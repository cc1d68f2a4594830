// Package loop waits between units of work. It promises that a step runs as
// long as it finds work, then on a wake-up or the timer; that a failing step,
// such as one whose database is gone, is told once and tried again later and
// later with jitter, never in a tight circle; and that nothing but the context
// ends it.
package loop

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// Kick wakes a loop. Wake-ups are lossy and merged; the timer is the durable way.
type Kick chan struct{}

// NewKick makes a kick that holds one wake-up.
func NewKick() Kick { return make(Kick, 1) }

// Wake never waits.
func (k Kick) Wake() {
	select {
	case k <- struct{}{}:
	default:
	}
}

// Loop runs one kind of work.
type Loop struct {
	Name string
	// Step does one unit; worked asks for the next one at once.
	Step func(ctx context.Context) (worked bool, err error)
	// Interval of the scan without a wake-up, First before the first one.
	Interval, First time.Duration
	Kick            Kick
	Log             *zap.Logger
}

// firstPause after a failed step; it doubles up to the interval.
const firstPause = 500 * time.Millisecond

// Run returns when ctx ends.
func (l *Loop) Run(ctx context.Context) {
	failures := 0
	for wait := l.First; l.wait(ctx, wait, failures == 0); {
		err := l.drain(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if failures > 0 {
				l.Log.Info("works again", zap.String("loop", l.Name), zap.Int("failures", failures))
			}
			failures, wait = 0, l.Interval
		default:
			if failures == 0 {
				l.Log.Error("step failed; tried again until it works", zap.String("loop", l.Name), zap.Error(err))
			}
			wait = l.pause(failures)
			failures++
		}
	}
}

func (l *Loop) drain(ctx context.Context) error {
	for ctx.Err() == nil {
		worked, err := l.Step(ctx)
		if err != nil || !worked {
			return err
		}
	}
	return ctx.Err()
}

// pause is between half of and the whole back-off, so that many do not come at once.
func (l *Loop) pause(failures int) time.Duration {
	full := l.Interval
	if failures < 16 {
		full = min(full, firstPause<<failures)
	}
	return full/2 + rand.N(full/2+1) //nolint:gosec // jitter needs no secrecy
}

// wait is over after d or, where a wake-up may shorten it, on one.
func (l *Loop) wait(ctx context.Context, d time.Duration, kicked bool) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	kick := l.Kick
	if !kicked { // wake-ups must not defeat the back-off
		kick = nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-kick:
	}
	return true
}

// All runs steps one after another and asks for more if one of them worked.
// One that fails does not keep the others from their turn.
func All(steps ...func(context.Context) (bool, error)) func(context.Context) (bool, error) {
	return func(ctx context.Context) (worked bool, err error) {
		for _, step := range steps {
			one, stepErr := step(ctx)
			worked = worked || one
			err = errors.Join(err, stepErr)
		}
		return worked, err
	}
}
