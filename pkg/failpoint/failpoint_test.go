package failpoint_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lockstep.dev/pkg/failpoint"
)

func TestEveryConstantIsListedOnce(t *testing.T) {
	source, err := os.ReadFile("failpoint.go")
	if err != nil {
		t.Fatal(err)
	}
	all := failpoint.All()
	if constants := strings.Count(string(source), ` Name = "`); constants != len(all) {
		t.Errorf("%d constants and %d in All", constants, len(all))
	}
	slices.Sort(all)
	if unique := len(slices.Compact(slices.Clone(all))); unique != len(all) {
		t.Error("a name is there twice")
	}
}

// child hits one point three times and says so after each.
const child = `package main

import "lockstep.dev/pkg/failpoint"

func main() {
	for range 3 {
		failpoint.Hit(failpoint.CenterReportAfterCommit)
		println("passed")
	}
}
`

func build(t *testing.T, tags string) string {
	t.Helper()
	source := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(source, []byte(child), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "child")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", tags, "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return program
}

func TestAPointKillsTheProcessAtItsHitAndOnlyWhereBuiltIn(t *testing.T) {
	with, without := build(t, "failpoints"), build(t, "")
	for name, test := range map[string]struct {
		program, setting string
		passed           int
		killed           bool
	}{
		"first_hit":        {with, "center.report.after_commit", 0, true},
		"third_hit":        {with, "center.report.after_commit:3", 2, true},
		"hit_too_far":      {with, "center.report.after_commit:4", 3, false},
		"another_point":    {with, "center.report.before_commit", 3, false},
		"not_armed":        {with, "", 3, false},
		"production_build": {without, "center.report.after_commit", 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), test.program)
			cmd.Env = append(os.Environ(), "LOCKSTEP_FAILPOINT="+test.setting)
			out, err := cmd.CombinedOutput()
			if passed := strings.Count(string(out), "passed"); passed != test.passed {
				t.Errorf("passed %d times, want %d", passed, test.passed)
			}
			if killed := killedBy(err) == syscall.SIGKILL; killed != test.killed {
				t.Errorf("ended with %v; killed: %v, want %v", err, killed, test.killed)
			}
		})
	}
	for _, wrong := range []string{"no.such.point", "center.report.after_commit:0", "center.report.after_commit:x", "stop=no.such.point"} {
		cmd := exec.CommandContext(t.Context(), with)
		cmd.Env = append(os.Environ(), "LOCKSTEP_FAILPOINT="+wrong)
		if out, err := cmd.CombinedOutput(); err == nil || strings.Contains(string(out), "passed") {
			t.Errorf("%s was accepted: %s", wrong, out)
		}
	}
}

func killedBy(err error) syscall.Signal {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return status.Signal()
		}
	}
	return -1
}
