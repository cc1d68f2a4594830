package e2e

import (
	"encoding/json"
	"errors"
	"maps"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestBench measures a set over real processes, as an operator would, and holds
// the answer to its shape and its counts; times are printed, and not judged.
func TestBench(t *testing.T) {
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	// Beside the services, where it looks for them.
	lockstep := filepath.Join(bin, "lockstep")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", lockstep, "lockstep.dev/services/lockstep").CombinedOutput(); err != nil {
		t.Fatalf("build lockstep: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), lockstep, "bench", "--rows", "100000", "--diff", "1000", "--repeat", "1", "--json")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Logf("%s", exit.Stderr)
		}
		t.Fatal(err)
	}
	var result struct {
		Reconcile map[string]any
	}
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"materialise_seconds", "equal_seconds", "equal_wire_bytes", "content_seconds", "content_wire_bytes", "scattered_seconds",
		"find_seconds", "find_wire_bytes",
		"repair_seconds", "repair_wire_bytes", "center_rss_bytes", "consumer_rss_bytes",
	} {
		if value, _ := result.Reconcile[name].(float64); value <= 0 {
			t.Errorf("%s is %v", name, result.Reconcile[name])
		}
		t.Logf("%s %v", name, result.Reconcile[name])
		delete(result.Reconcile, name)
	}
	found, _ := result.Reconcile["found"].(map[string]any)
	if want := (map[string]any{"MISSING": 200.0, "STALE": 200.0, "HASH_CONFLICT": 200.0, "TOMBSTONE": 200.0, "EXTRA_ROW": 200.0}); !maps.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
	delete(result.Reconcile, "found")
	want := map[string]any{"rows": 100000.0, "diff": 1000.0, "scattered_rows": 2000.0, "repaired": 800.0, "retired": 200.0, "reported": 0.0, "repeat": 1.0}
	if !maps.Equal(result.Reconcile, want) {
		t.Errorf("%v, want %v", result.Reconcile, want)
	}
}
