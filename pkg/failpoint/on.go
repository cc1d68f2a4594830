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
)

// Enabled says whether this binary has fail points.
const Enabled = true

// Variable is the environment variable that arms one point: "name" for its
// first hit, "name:N" for its Nth.
const Variable = "LOCKSTEP_FAILPOINT"

var (
	armed Name
	left  atomic.Int64
)

func init() {
	setting := os.Getenv(Variable)
	if setting == "" {
		return
	}
	name, count, counted := strings.Cut(setting, ":")
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

// Hit ends the process by SIGKILL if name is armed and this is the hit it waits for.
func Hit(name Name) {
	if name != armed || left.Add(-1) != 0 {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way; nothing after the point may run
}
