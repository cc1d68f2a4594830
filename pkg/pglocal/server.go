package pglocal

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// postmaster is the server's main process.
type postmaster struct {
	pid   int
	ended chan struct{} // closed when the process is gone
}

// launch starts the server so that it dies with this process: the kernel sends
// it SIGQUIT, PostgreSQL's immediate shutdown, which also removes its shared
// memory. The kernel does so when the thread that started it ends, so that
// thread stays, locked, until the server is gone.
func (c *Cluster) launch() (*postmaster, error) {
	p := &postmaster{ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		cmd, err := c.command()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		_ = cmd.Wait() // how it ended is in its log
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (c *Cluster) command() (*exec.Cmd, error) {
	args := []string{"-D", c.dataDir(), "-k", c.options.Dir, "-p", strconv.Itoa(c.port)}
	settings := map[string]string{
		"listen_addresses":        "",
		"unix_socket_permissions": "0700",
		// Nothing is left in /dev/shm by a server that is killed.
		"dynamic_shared_memory_type": "mmap",
		"timezone":                   "UTC",
	}
	if c.options.TCP {
		settings["listen_addresses"] = "127.0.0.1"
	}
	for name, value := range c.options.Params {
		settings[name] = value
	}
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(c.options.BinDir, "postgres"), args...) //nolint:gosec,noctx // its life is the cluster's, not a call's
	cmd.Dir = c.options.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: c.owner.credential,
		Pdeathsig:  syscall.SIGQUIT,
		Setpgid:    true, // Ctrl-C is for this process, which then stops the server in order
	}
	return cmd, nil
}

// stop signals the server and waits until it is gone; one that does not go is killed.
func (p *postmaster) stop(signal syscall.Signal) error {
	for _, next := range []syscall.Signal{signal, syscall.SIGQUIT, syscall.SIGKILL} {
		select {
		case <-p.ended:
			return nil
		default:
		}
		if err := syscall.Kill(p.pid, next); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal the server: %w", err)
		}
		select {
		case <-p.ended:
			return nil
		case <-time.After(stopTimeout):
		}
	}
	return fmt.Errorf("the server, process %d, does not end", p.pid)
}
