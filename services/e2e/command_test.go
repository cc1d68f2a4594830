package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"

	"lockstep.dev/services/internal/browsertest"
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

// download keeps a file that the console gives under the name that it gives.
func (s *stack) download(tab *browsertest.Tab, path, name string) (file string) {
	s.t.Helper()
	got := browsertest.Evaluate[[]string](tab, fmt.Sprintf(`fetch(%q).then(async (r) => [r.headers.get("content-disposition"), await r.text()])`, path))
	if got[0] != "attachment; filename="+name {
		s.t.Errorf("%s gives the file %q, want %s", path, got[0], name)
	}
	file = s.file(name)
	s.must(os.WriteFile(file, []byte(got[1]), 0o600))
	return file
}

func (s *stack) read(file string) string {
	s.t.Helper()
	text, err := os.ReadFile(file)
	s.must(err)
	return string(text)
}
