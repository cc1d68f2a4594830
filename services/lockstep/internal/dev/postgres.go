package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"lockstep.dev/pkg/pglocal"
)

// finder gets hold of the server's programs, by the first way that works.
type finder struct {
	dir  string // the stack's folder, which the server's user can pass through
	note func(format string, args ...any)
	find func(ctx context.Context) (string, error)
	root bool
	// repository is where the programs of embedded-postgres are published.
	repository string
}

func newFinder(dir string, note func(string, ...any)) *finder {
	return &finder{dir: dir, note: note, find: pglocal.Find, root: os.Geteuid() == 0, repository: mavenCentral}
}

const mavenCentral = "https://repo1.maven.org/maven2"

// programs returns the folder of the server's programs.
func (f *finder) programs(ctx context.Context) (string, error) {
	binDir, err := f.find(ctx)
	if err == nil {
		f.note("PostgreSQL: installed in %s", binDir)
		return binDir, nil
	}
	tried := []error{err}
	for _, way := range []func(context.Context) (string, error){f.install, f.download} {
		binDir, err := way(ctx)
		if err == nil {
			return binDir, nil
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		tried = append(tried, err)
	}
	return "", fmt.Errorf("there is no PostgreSQL to be had; install version %d or newer (Debian and Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server; macOS: brew install postgresql@17), or give --center-dsn and --consumer-dsn.\n%w",
		pglocal.MinVersion, errors.Join(tried...))
}

// manager is a system's way to install packages.
type manager struct {
	program string
	refresh []string // fetches the lists of packages, if installing fails without
	install []string
}

var managers = []manager{
	{"apt-get", []string{"update", "-q"}, []string{"install", "-y", "-q", "--no-install-recommends", "postgresql"}},
	{"dnf", nil, []string{"install", "-y", "postgresql-server"}},
	{"apk", []string{"update"}, []string{"add", "postgresql"}},
	{"zypper", nil, []string{"--non-interactive", "install", "postgresql-server"}},
	{"pacman", nil, []string{"-Sy", "--noconfirm", "--needed", "postgresql"}},
}

const installTimeout = 5 * time.Minute

// install asks the system's package manager, which only root may.
func (f *finder) install(ctx context.Context) (string, error) {
	if !f.root {
		return "", errors.New("only root may install a package")
	}
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	for _, m := range managers {
		if _, err := exec.LookPath(m.program); err != nil {
			continue
		}
		f.note("PostgreSQL: none installed; %s %s", m.program, strings.Join(m.install, " "))
		if err := m.run(ctx); err != nil {
			return "", err
		}
		binDir, err := f.find(ctx)
		if err != nil {
			return "", fmt.Errorf("after %s: %w", m.program, err)
		}
		f.note("PostgreSQL: installed in %s", binDir)
		return binDir, nil
	}
	return "", errors.New("no known package manager is in PATH")
}

// noCluster keeps Debian's package from starting a server of its own.
const noCluster = "/etc/postgresql-common/createcluster.d/lockstep.conf"

func (m manager) run(ctx context.Context) error {
	if m.program == "apt-get" {
		if err := os.MkdirAll(filepath.Dir(noCluster), 0o755); err != nil { //nolint:gosec // as the package makes it
			return err
		}
		if err := os.WriteFile(noCluster, []byte("create_main_cluster = false\n"), 0o644); err != nil { //nolint:gosec // settings of the system
			return err
		}
		defer os.Remove(noCluster) //nolint:errcheck // it changes later installations only
	}
	err := m.call(ctx, m.install)
	if err == nil || m.refresh == nil {
		return err
	}
	if err := m.call(ctx, m.refresh); err != nil {
		return err
	}
	return m.call(ctx, m.install)
}

func (m manager) call(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(ctx, m.program, args...) //nolint:gosec // one of the list above
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		const most = 500
		return fmt.Errorf("%s %s: %w: %s", m.program, args[0], err, strings.TrimSpace(string(out[max(0, len(out)-most):])))
	}
	return nil
}

// download gets the programs that embedded-postgres publishes. The archive is
// kept in the user's cache, the programs are unpacked into the stack's folder.
func (f *finder) download(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = f.dir
	}
	f.note("PostgreSQL: fetching the programs of embedded-postgres")
	programs, data := filepath.Join(f.dir, "programs"), filepath.Join(f.dir, "not-data")
	version := embeddedpostgres.V17
	// The library starts servers, and only as it likes. A folder that looks like
	// data, and is none, makes it stop after unpacking.
	major, _, _ := strings.Cut(string(version), ".")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
		return "", err
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return "", err
	}
	port, err := portOf(address)
	if err != nil {
		return "", err
	}
	var log strings.Builder
	library := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().Version(version).Port(port).Logger(&log).BinaryRepositoryURL(f.repository).
		CachePath(filepath.Join(cache, "lockstep", "postgresql")).
		BinariesPath(programs).RuntimePath(filepath.Join(f.dir, "runtime")).DataPath(data))
	done := make(chan error, 1)
	go func() { done <- library.Start() }()
	select {
	case err = <-done:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	binDir := filepath.Join(programs, "bin")
	if _, missing := os.Stat(filepath.Join(binDir, "postgres")); missing != nil {
		return "", fmt.Errorf("fetch the programs of embedded-postgres: %w", err)
	}
	return binDir, os.RemoveAll(data)
}

// hasLibrary looks where packages put the server's libraries, seen from its programs.
func hasLibrary(binDir, name string) bool {
	for _, dir := range []string{"lib", filepath.Join("lib", "postgresql"), "lib64"} {
		if _, err := os.Stat(filepath.Join(binDir, "..", dir, name+".so")); err == nil {
			return true
		}
	}
	return false
}
