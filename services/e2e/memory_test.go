package e2e

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestFlatMemory runs 10 000 and 100 000 rows through fresh processes: ten
// times the rows take no more memory.
func TestFlatMemory(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	peak := func(rows int) (center, consumer int64) {
		s := setup(t)
		s.fill(form, rows)
		s.damageAll(form, everything)
		before := s.extensions()
		// Nothing dies here: a machine that is slow has time, as in production.
		consumerNode := s.startConsumer("", settings{"lease": "1m", "stall_limit": "45s"})
		centerNode := s.startCenter("", settings{"lease": "2m", "claim_lease": "1m", "stall_limit": "45s"})
		id := s.create(form)
		s.awaitEnd(id)
		s.mended(id, everything, before)
		return s.peak(centerNode), s.peak(consumerNode)
	}
	smallCenter, smallConsumer := peak(10_000)
	center, consumer := peak(100_000)
	t.Logf("peak memory at 10 000 and 100 000 rows: center %d and %d MiB, consumer %d and %d MiB",
		smallCenter/mib, center/mib, smallConsumer/mib, consumer/mib)
	for name, m := range map[string]struct{ small, large, most int64 }{
		"center": {smallCenter, center, 128 * mib}, "consumer": {smallConsumer, consumer, 64 * mib},
	} {
		if m.large > m.most {
			t.Errorf("%s: %d MiB, more than %d", name, m.large/mib, m.most/mib)
		}
		// What the garbage collector lets lie around is not the same twice.
		if m.large > m.small+m.small/2 {
			t.Errorf("%s: %d MiB for ten times the rows of %d MiB", name, m.large/mib, m.small/mib)
		}
	}
}

// peak is the most memory a process ever had resident.
func (s *stack) peak(n *node) int64 {
	s.t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", n.Pid()))
	s.must(err)
	defer file.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			s.must(err)
			return kib << 10
		}
	}
	s.t.Fatal("the kernel tells no peak memory")
	return 0
}
