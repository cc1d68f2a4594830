package repair

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Limit bounds the repairs of a process in a second. A nil Limit bounds nothing.
type Limit struct{ limiter *rate.Limiter }

// NewLimit makes a Limit; 0 is none.
func NewLimit(perSecond int) *Limit {
	if perSecond == 0 {
		return nil
	}
	// A second's worth at once: what is waited for then is asked for then, so that
	// no word grows old over it.
	return &Limit{rate.NewLimiter(rate.Limit(perSecond), perSecond)}
}

// take waits until the center may be asked about some of n rows, and says about
// how many.
func (l *Limit) take(ctx context.Context, t *Task, n int) (int, error) {
	if l == nil {
		return n, nil
	}
	n = min(n, l.limiter.Burst())
	place := l.limiter.ReserveN(time.Now(), n) //nolint:forbidigo // the limiter's own clock
	wait := place.Delay()
	t.limited.Store(wait > 0)
	if wait == 0 {
		return n, nil
	}
	timer := time.NewTimer(wait) // at most a second
	defer timer.Stop()
	select {
	case <-timer.C:
		t.Alive()
		return n, nil
	case <-ctx.Done():
		place.Cancel()
		return 0, context.Cause(ctx)
	}
}

// Limited says that repairs are held back by the limit now.
func (t *Task) Limited() bool { return t.limited.Load() }

// Unlimited says that there is nothing to be held back.
func (t *Task) Unlimited() { t.limited.Store(false) }
