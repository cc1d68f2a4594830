// Package process runs a service as a child process: for the demo, for
// development and for the end-to-end tests.
//
// It promises that a child never outlives the process that started it, even
// where that one is killed, and that a child's last words are in every error
// about it. It restarts nothing.
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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

// Addresses are where a service listens, as its ready file says.
type Addresses struct {
	GRPC string `json:"grpc"`
	HTTP string `json:"http"`
}

// Spec says what to run.
type Spec struct {
	Name    string
	Program string
	Args    []string
	// Env is added to this process's own.
	Env []string
	// LogFile gets what the service writes, appended.
	LogFile string
}

// Process is a service that was started.
type Process struct {
	spec  Spec
	pid   int
	ended chan struct{} // closed when it is gone
	err   error         // why, once it is
}

// Launch starts a service in a process group of its own, so that Ctrl-C is for
// this process, which then stops the services in order. If this process is
// killed the kernel ends the service: it does so when the thread that started
// it ends, and that thread stays, locked, until the service is gone.
func Launch(spec Spec) (*Process, error) {
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p := &Process{spec: spec, ended: make(chan struct{})}
	cmd := exec.Command(spec.Program, spec.Args...) //nolint:gosec,noctx // the service's program; its life is not a call's
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), spec.Env...)
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
	if err := errors.Join(<-started, log.Close()); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// Pid of the service.
func (p *Process) Pid() int { return p.pid }

// Ended is closed when the service is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// AwaitReady waits for the file in which the service says where it listens.
func (p *Process) AwaitReady(ctx context.Context, file string) (Addresses, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(file) //nolint:gosec // a file that the caller named in the service's settings
		var at Addresses
		if err == nil && json.Unmarshal(text, &at) == nil && at.GRPC != "" {
			return at, nil
		}
		select {
		case <-tick.C:
		case <-p.ended:
			return Addresses{}, p.Death()
		case <-ctx.Done():
			return Addresses{}, fmt.Errorf("%s is not ready: %w; its log ends with:\n%s", p.spec.Name, ctx.Err(), p.Tail())
		}
	}
}

// Death says how the service ended and what it wrote last. Only after Ended.
func (p *Process) Death() error {
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended (%s); its log ends with:\n%s", p.spec.Name, how, p.Tail())
}

// ExitError is nil where the service ended with status 0. Only after Ended.
func (p *Process) ExitError() error { return p.err }

// Tail is the end of the service's log.
func (p *Process) Tail() string {
	file, err := os.Open(p.spec.LogFile)
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

// Signal sends a signal to the service's process group; one that is gone is no error.
func (p *Process) Signal(signal syscall.Signal) error {
	if err := syscall.Kill(-p.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to %s: %w", signal, p.spec.Name, err)
	}
	return nil
}

// Kill ends the service at once and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.ended
	return nil
}

// Stop asks the service to end, and kills it if it does not, which is an error.
func (p *Process) Stop() error {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		select {
		case <-p.ended:
			return nil
		default:
		}
		if err := p.Signal(signal); err != nil {
			return err
		}
		select {
		case <-p.ended:
			if signal == syscall.SIGKILL {
				return fmt.Errorf("%s did not end within %s and was killed; its log ends with:\n%s", p.spec.Name, stopTimeout, p.Tail())
			}
			return nil
		case <-time.After(stopTimeout):
		}
	}
	return fmt.Errorf("%s, process %d, does not end", p.spec.Name, p.pid)
}
