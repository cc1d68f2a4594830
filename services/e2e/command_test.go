package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"sync"
)

// commandLine is built once a run, beside the services.
var commandLine = sync.OnceValues(func() (string, error) {
	dir, err := programs()
	if err != nil {
		return "", err
	}
	program := dir + "/lockstep"
	build := exec.Command("go", "build", "-o", program, "lockstep.dev/services/lockstep") //nolint:noctx // as long as the tests
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build lockstep: %w\n%s", err, out)
	}
	return program, nil
})

// lockstep runs a command as the owner of a token.
func (s *stack) lockstep(token string, args ...string) (exitCode int, out string) {
	s.t.Helper()
	program, err := commandLine()
	s.must(err)
	cmd := exec.CommandContext(s.t.Context(), program, args...)
	cmd.Env = []string{"LOCKSTEP_TOKEN=" + token}
	text, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}
