//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Enabled says whether this binary has fail points.
const Enabled = true

// Variable is the environment variable that arms one point: "name" for its
// first hit, "name:N" for its Nth. "stop=name" stops the process there instead
// of ending it, until somebody lets it go on.
const Variable = "LOCKSTEP_FAILPOINT"

var (
	armed  Name
	left   atomic.Int64
	signal = syscall.SIGKILL
)

func init() {
	setting := os.Getenv(Variable)
	if setting == "" {
		return
	}
	at, stop := strings.CutPrefix(setting, "stop=")
	if stop {
		signal = syscall.SIGSTOP
	}
	name, count, counted := strings.Cut(at, ":")
	hits := int64(1)
	if counted {
		parsed, err := strconv.ParseInt(count, 10, 64)
		if err != nil || parsed < 1 {
			panic(fmt.Sprintf("%s=%s: the count is no number from 1", Variable, setting))
		}
		hits = parsed
	}
	if !slices.Contains(all, Name(name)) && !slices.Contains(delivery, Name(name)) {
		panic(fmt.Sprintf("%s=%s: no such fail point", Variable, setting))
	}
	armed = Name(name)
	left.Store(hits)
}

// onItsWay is longer than a signal needs to arrive: nothing after the point may
// run before it does.
const onItsWay = time.Second

// Hit ends or stops the process by a signal if name is armed and this is the
// hit it waits for.
func Hit(name Name) {
	if name != armed || left.Add(-1) != 0 {
		return
	}
	_ = syscall.Kill(os.Getpid(), signal)
	if signal == syscall.SIGSTOP {
		time.Sleep(onItsWay) //nolint:forbidigo // a test's fault, in no production build
		return
	}
	select {}
}
