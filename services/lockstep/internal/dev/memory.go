package dev

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory is the most that each service ever had resident, in bytes, 0 where the
// system does not tell.
type Memory struct{ Center, Consumer int64 }

// Memory asks the system.
func (s *Stack) Memory() (m Memory, err error) {
	if m.Center, err = peak(s.center.Pid()); err != nil {
		return Memory{}, err
	}
	m.Consumer, err = peak(s.consumer.Pid())
	return m, err
}

func peak(pid int) (int64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	defer file.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, lines.Err()
}
