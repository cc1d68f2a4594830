package pglocal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// installTimeout bounds a download: some 30 MB.
const installTimeout = 10 * time.Minute

// Obtain returns the folder of the server's programs: those installed; else, for
// root, what the system's package manager installs; else a copy that is
// downloaded into cacheDir. tell is called with what it is about to do.
func Obtain(ctx context.Context, cacheDir string, tell func(string)) (binDir string, err error) {
	binDir, err = Find(ctx)
	if !errors.Is(err, ErrNotFound) {
		return binDir, err
	}
	problems := []error{err}
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	for _, way := range []func(context.Context, string, func(string)) (string, error){install, download} {
		binDir, err := way(ctx, cacheDir, tell)
		if err == nil {
			return binDir, nil
		}
		problems = append(problems, err)
	}
	problems = append(problems, fmt.Errorf("install PostgreSQL %d or newer, or name a running one by its DSN", MinVersion))
	return "", errors.Join(problems...)
}

// managers are the package managers tried, with what they are asked.
var managers = []struct {
	program string
	args    []string
}{
	{"apt-get", []string{"install", "-y", "--no-install-recommends", "postgresql"}},
	{"dnf", []string{"install", "-y", "postgresql-server"}},
	{"apk", []string{"add", "postgresql"}},
}

func install(ctx context.Context, _ string, tell func(string)) (string, error) {
	if os.Geteuid() != 0 {
		return "", errors.New("only root may use the system's package manager")
	}
	for _, manager := range managers {
		program, err := exec.LookPath(manager.program)
		if err != nil {
			continue
		}
		tell(fmt.Sprintf("no PostgreSQL is installed; %s installs it", manager.program))
		cmd := exec.CommandContext(ctx, program, manager.args...) //nolint:gosec // one of the list above
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", manager.program, err, lastOf(out))
		}
		return Find(ctx)
	}
	return "", errors.New("no package manager known here")
}

func lastOf(text []byte) []byte {
	const most = 500
	return text[max(0, len(text)-most):]
}

// download fetches the programs that embedded-postgres publishes. Its own start
// is only the way to have them unpacked: the cluster is run by this package.
func download(ctx context.Context, cacheDir string, tell func(string)) (string, error) {
	programs := filepath.Join(cacheDir, "postgresql")
	binDir := filepath.Join(programs, "bin")
	if versionIn(ctx, binDir) >= MinVersion {
		return binDir, nil
	}
	tell("no PostgreSQL is installed; its programs are downloaded into " + programs)
	scratch, err := os.MkdirTemp("", "lockstep-postgresql-")
	if err != nil {
		return "", fmt.Errorf("download PostgreSQL: %w", err)
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // a folder of temporary files
	port, err := freePort(ctx)
	if err != nil {
		return "", fmt.Errorf("download PostgreSQL: %w", err)
	}
	trial := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.V16).Port(uint32(port)). //nolint:gosec // a port fits
		CachePath(filepath.Join(cacheDir, "download")).BinariesPath(programs).
		RuntimePath(filepath.Join(scratch, "run")).DataPath(filepath.Join(scratch, "data")).
		Logger(io.Discard))
	err = trial.Start()
	if err == nil {
		err = trial.Stop()
	}
	// As root its start fails, after the programs were unpacked.
	if versionIn(ctx, binDir) >= MinVersion {
		return binDir, openUp(cacheDir, programs)
	}
	return "", errors.Join(errors.New("download PostgreSQL: nothing usable came"), err)
}

// openUp lets the user the server runs as reach programs that root unpacked.
func openUp(dirs ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, dir := range dirs {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // programs, no secrets
			return fmt.Errorf("download PostgreSQL: %w", err)
		}
	}
	return nil
}
