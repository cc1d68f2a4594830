package load

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"lockstep.dev/pkg/fault"
)

const (
	// LeastRate: below it the rows of one call would not be read within the
	// call's deadline.
	LeastRate = 100
	// burst is how many rows may come at once after a rest: two calls' worth.
	burst = 1000
)

// Rate bounds the rows that a process reads from one database in a second,
// over all of its workers, in the order in which they ask. A nil Rate bounds
// nothing.
type Rate struct{ limiter *rate.Limiter }

// NewRate makes a Rate; 0 is none.
func NewRate(rowsPerSecond int) *Rate {
	if rowsPerSecond == 0 {
		return nil
	}
	return &Rate{rate.NewLimiter(rate.Limit(rowsPerSecond), burst)}
}

// Take waits until rows more rows may be read and says for how long it
// waited. Where that can't be within ctx's deadline it is RATE_LIMITED at once.
func (r *Rate) Take(ctx context.Context, rows int) (waited time.Duration, err error) {
	if r == nil {
		return 0, nil
	}
	for rows > 0 {
		n := min(rows, burst)
		rows -= n
		took, err := r.take(ctx, n)
		if waited += took; err != nil {
			return waited, err
		}
	}
	return waited, nil
}

func (r *Rate) take(ctx context.Context, n int) (time.Duration, error) {
	place := r.limiter.ReserveN(time.Now(), n) //nolint:forbidigo // the limiter's own clock
	wait := place.Delay()
	if wait == 0 {
		return 0, nil
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
		place.Cancel()
		return 0, fault.New(fault.RateLimited, "the limit of rows read a second leaves no room before the deadline; try again later")
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return wait, nil
	case <-ctx.Done():
		place.Cancel()
		return 0, context.Cause(ctx)
	}
}

// Least is the shortest time that reading rows can take.
func (r *Rate) Least(rows int64) time.Duration {
	if r == nil {
		return 0
	}
	return time.Duration(float64(max(0, rows-burst)) / float64(r.limiter.Limit()) * float64(time.Second))
}

// CheckRate tells what is wrong with a setting of rows a second.
func CheckRate(rowsPerSecond int) error {
	if rowsPerSecond != 0 && rowsPerSecond < LeastRate {
		return fmt.Errorf("is 0 for no limit, or at least %d rows a second, not %d", LeastRate, rowsPerSecond)
	}
	return nil
}
