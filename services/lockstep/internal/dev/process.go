package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	readyTimeout = 30 * time.Second
	stopTimeout  = 12 * time.Second // a service has 10 s to end in order
	logTail      = 2000             // bytes of a log worth showing
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

// Addresses are where a service listens.
type Addresses struct {
	GRPC string `json:"grpc"`
	HTTP string `json:"http"`
}

// process is a running service.
type process struct {
	name    string
	logFile string
	pid     int
	ended   chan struct{} // closed when it is gone
	err     error         // why, once it is
}

// launch starts a service in a process group of its own, so that Ctrl-C is for
// this process, which then stops the services in order. If this process is
// killed the kernel ends the service: it does so when the thread that started
// it ends, and that thread stays, locked, until the service is gone.
func launch(name, program, config, logFile string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // a file of the stack's own folder
	if err != nil {
		return nil, err
	}
	p := &process{name: name, logFile: logFile, ended: make(chan struct{})}
	cmd := exec.Command(program, "--config", config) //nolint:gosec,noctx // the service's program; its life is the stack's, not a call's
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.ended)
	}()
	err = errors.Join(<-started, log.Close())
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// awaitReady waits for the file in which the service says where it listens.
func (p *process) awaitReady(ctx context.Context, file string) (Addresses, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(file) //nolint:gosec // a file of the stack's own folder
		var at Addresses
		if err == nil && json.Unmarshal(text, &at) == nil && at.GRPC != "" {
			return at, nil
		}
		select {
		case <-tick.C:
		case <-p.ended:
			return Addresses{}, p.death()
		case <-ctx.Done():
			return Addresses{}, fmt.Errorf("%s is not ready: %w; its log ends with:\n%s", p.name, ctx.Err(), p.tail())
		}
	}
}

// death says how the service ended and what it wrote last.
func (p *process) death() error {
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended (%s); its log ends with:\n%s", p.name, how, p.tail())
}

func (p *process) tail() string {
	file, err := os.Open(p.logFile)
	if err != nil {
		return err.Error()
	}
	defer file.Close() //nolint:errcheck // only read
	if info, err := file.Stat(); err == nil && info.Size() > logTail {
		if _, err := file.Seek(-logTail, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	if len(text) == 0 {
		return "(nothing was written)"
	}
	return strings.TrimSpace(string(text))
}

// stop asks the service, all of its process group, to end, and kills it if it does not.
func (p *process) stop() error {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		select {
		case <-p.ended:
			return nil
		default:
		}
		if err := syscall.Kill(-p.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop %s: %w", p.name, err)
		}
		select {
		case <-p.ended:
			if signal == syscall.SIGKILL {
				return fmt.Errorf("%s did not end within %s and was killed; its log ends with:\n%s", p.name, stopTimeout, p.tail())
			}
			return nil
		case <-time.After(stopTimeout):
		}
	}
	return fmt.Errorf("%s, process %d, does not end", p.name, p.pid)
}
