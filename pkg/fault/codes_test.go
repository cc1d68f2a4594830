package fault_test

import (
	"os"
	"strings"
	"testing"

	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// The page for operators tells every code once, and none that there is not.
func TestEveryCodeIsExplainedToOperators(t *testing.T) {
	text, err := os.ReadFile("../../docs/operating/codes.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if row, ok := strings.CutPrefix(line, "| `"); ok {
			code, _, _ := strings.Cut(row, "`")
			told[code]++
		}
	}
	for value, name := range evidencev1.Reason_name {
		code := strings.TrimPrefix(name, "REASON_")
		if n := told[code]; value != 0 && n != 1 {
			t.Errorf("%s is told %d times, want once", code, n)
		}
		delete(told, code)
	}
	for code := range told {
		t.Errorf("there is no code %s", code)
	}
}
