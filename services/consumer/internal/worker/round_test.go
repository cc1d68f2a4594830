package worker

import "testing"

// A round holds some 8192 rows of a side, whatever a page has, and at least a page.
func TestRoundPages(t *testing.T) {
	for pageRows, want := range map[int]int{1: 64, 4: 64, 128: 64, 256: 32, 4096: 2, 8192: 1, 16384: 1} {
		if got := roundPages(pageRows); got != want {
			t.Errorf("%d rows a page: %d pages, want %d", pageRows, got, want)
		}
	}
}
