// Package pgtest gives tests a real PostgreSQL: one private cluster a test
// binary, started when first needed, and a fresh database a test.
//
// Nothing is left behind however the test binary ends. A missing PostgreSQL
// fails the test; it never skips it.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"lockstep.dev/pkg/pglocal"
)

const folderPrefix = "lockstep-pgtest-"

// fast gives up durability over a crash, which no test of the shared cluster sees.
var fast = map[string]string{
	"fsync":                "off",
	"full_page_writes":     "off",
	"synchronous_commit":   "off",
	"autovacuum":           "off", // a worker in a template would block its copying
	"max_connections":      "200",
	"shared_buffers":       "64MB",
	"max_wal_size":         "256MB",
	"wal_level":            "minimal",
	"max_wal_senders":      "0",
	"log_checkpoints":      "off",
	"deadlock_timeout":     "100ms",
	"jit":                  "off", // loading the compiler takes longer than any query of a test
	"idle_session_timeout": "0",
}

// Start starts a cluster with test settings in dir, for tests that stop and
// restart it themselves. settings overlay the test settings. A crash of the
// server (an immediate stop) loses no commit; one of the machine may.
func Start(ctx context.Context, dir string, settings map[string]string) (*pglocal.Cluster, error) {
	durable := map[string]string{"synchronous_commit": "on"}
	maps.Copy(durable, settings)
	return start(ctx, dir, true, durable)
}

func start(ctx context.Context, dir string, tcp bool, settings map[string]string) (*pglocal.Cluster, error) {
	params := map[string]string{}
	for _, source := range []map[string]string{fast, settings} {
		for name, value := range source {
			params[name] = value
		}
	}
	return pglocal.Start(ctx, pglocal.Options{Dir: dir, TCP: tcp, Params: params})
}

// shared is the test binary's own cluster.
var shared = sync.OnceValues(func() (*pglocal.Cluster, error) {
	dir, err := TempDir()
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if err := plant(ctx, dir); err != nil {
		return nil, err
	}
	return start(ctx, dir, false, nil)
})

// TempDir makes a folder for a cluster, in memory if there is room, that
// vanishes after this process has ended, in whatever way.
func TempDir() (string, error) {
	parent := os.TempDir()
	if roomy("/dev/shm") {
		parent = "/dev/shm"
	}
	sweep(parent)
	dir, err := os.MkdirTemp(parent, folderPrefix)
	if err != nil {
		return "", fmt.Errorf("folder for a test cluster: %w", err)
	}
	if err := lock(dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	if err := watch(dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// roomy reports at least 1 GiB free: containers often have 64 MiB.
func roomy(dir string) bool {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return false
	}
	return stat.Bavail*uint64(stat.Bsize) >= 1<<30 //nolint:gosec // a block's size is positive
}

// watch starts a shell that waits until this process is gone, which closes its
// standard input, and then removes the folder. The kernel ends the server
// itself; the shell only waits for it.
func watch(dir string) error {
	const script = `
trap '' INT TERM HUP QUIT
cat >/dev/null
file="$1/data/postmaster.pid"
if pid=$(head -n 1 "$file" 2>/dev/null); then
	kill -QUIT "$pid" 2>/dev/null
	tries=0
	while [ -e "$file" ] && [ $tries -lt 100 ]; do sleep 0.05; tries=$((tries + 1)); done
fi
rm -rf "$1"`
	cmd := exec.Command("/bin/sh", "-c", script, "pgtest-watch", dir) //nolint:gosec,noctx // a fixed script; it outlives this process on purpose
	var pipe [2]int                                                   // its writing end stays open as long as the process lives
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
		return fmt.Errorf("watch the test cluster: %w", err)
	}
	stdin := os.NewFile(uintptr(pipe[0]), "pipe")
	defer stdin.Close() //nolint:errcheck // the shell has its own copy
	cmd.Stdin = stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is not for it
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("watch the test cluster: %w", err)
	}
	return nil
}

// lock marks dir as in use by a living process; the kernel lets go of it. The
// file gets its name once it is locked, so a sweep never finds it unlocked.
func lock(dir string) error {
	fd, err := syscall.Open(lockFile(dir)+".new", syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("lock the test cluster: %w", err)
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("lock the test cluster: %w", err), syscall.Close(fd))
	}
	// fd stays open as long as the process lives.
	return os.Rename(lockFile(dir)+".new", lockFile(dir))
}

func lockFile(dir string) string { return filepath.Join(dir, "lock") }

// sweep removes folders whose process and whose watching shell both died.
func sweep(parent string) {
	dirs, err := filepath.Glob(filepath.Join(parent, folderPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		fd, err := syscall.Open(lockFile(dir), syscall.O_RDWR|syscall.O_CLOEXEC, 0)
		if err != nil {
			continue // being made or being removed right now
		}
		if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir) // what can't be removed is tried again by the next one
		}
		_ = syscall.Close(fd)
	}
}
