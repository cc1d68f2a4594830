package protocol_test

import (
	"testing"

	"lockstep.dev/pkg/protocol"
)

func TestPercent(t *testing.T) {
	for _, c := range []struct {
		scanned, rows int64
		complete      bool
		want          float64
	}{
		{0, 0, false, 0},
		{0, 0, true, 100},
		{0, 8, false, 0},
		{1, 8, false, 12.5},
		{8, 8, false, 100},
		{8, 8, true, 100},
		{9, 8, false, 100},
	} {
		if got := protocol.Percent(c.scanned, c.rows, c.complete); got != c.want {
			t.Errorf("%d of %d, complete %t: %v, want %v", c.scanned, c.rows, c.complete, got, c.want)
		}
	}
}
