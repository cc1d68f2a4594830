package serve

import (
	"context"
	"time"

	"lockstep.dev/pkg/fault"
)

const (
	// Whoever reads faster than one operator may call waits as long as this.
	patience = 60
	pause    = 500 * time.Millisecond
)

// Patiently calls until the call was not refused for its caller's pace, as
// tooFast says of what it gave, for half a minute at most.
func Patiently[T any](ctx context.Context, tooFast func(T) bool, call func() T) T {
	for try := 1; ; try++ {
		got := call()
		if try == patience || !tooFast(got) {
			return got
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return got
		}
	}
}

// TooFast says whether a call was refused for its caller's pace alone.
func TooFast(err error) bool { return fault.ReasonOf(err) == fault.RateLimited }
