package dev

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"lockstep.dev/services/internal/process"
)

// FindService returns the service's program: beside this one, else in PATH.
func FindService(name string) (string, error) {
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("there is no program %q beside %s or in PATH; `make build` makes both services", name, self)
	}
	return filepath.Abs(path)
}

// launch starts a service with its settings and a log, both in the stack's folder.
func (s *Stack) launch(name, program, config string) (*process.Process, error) {
	return process.Launch(process.Spec{Name: name, Program: program, Args: []string{"-config", config}, LogFile: s.file(name + ".log")})
}
