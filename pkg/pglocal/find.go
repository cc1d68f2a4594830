package pglocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// MinVersion is the oldest PostgreSQL that has all Lockstep uses.
const MinVersion = 15

// ErrNotFound: no PostgreSQL of a sufficient version is installed.
var ErrNotFound = errors.New("no PostgreSQL found")

// places are where packages put the server's programs, beside PATH.
var places = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // PGDG on Red Hat
	"/usr/libexec/postgresql*",  // Alpine
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/usr/local/pgsql/bin",
	"/usr/bin",
}

// Find returns the folder of the newest installed server programs.
func Find(ctx context.Context) (binDir string, err error) {
	candidates := []string{}
	if program, err := exec.LookPath("postgres"); err == nil {
		if resolved, err := filepath.EvalSymlinks(program); err == nil {
			candidates = append(candidates, filepath.Dir(resolved))
		}
	}
	for _, place := range places {
		matches, err := filepath.Glob(place)
		if err != nil {
			return "", fmt.Errorf("look for PostgreSQL in %s: %w", place, err)
		}
		candidates = append(candidates, matches...)
	}
	best := 0
	for _, candidate := range candidates {
		if version := versionIn(ctx, candidate); version > best {
			best, binDir = version, candidate
		}
	}
	if best < MinVersion {
		return "", fmt.Errorf("%w: version %d or newer is needed; looked in PATH and %v", ErrNotFound, MinVersion, places)
	}
	return binDir, nil
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// versionIn returns the major version of a folder that holds both programs a cluster needs, else 0.
func versionIn(ctx context.Context, binDir string) int {
	if _, err := os.Stat(filepath.Join(binDir, "initdb")); err != nil {
		return 0
	}
	out, err := exec.CommandContext(ctx, filepath.Join(binDir, "postgres"), "--version").Output() //nolint:gosec // a fixed program in a folder of the list above
	if err != nil {
		return 0
	}
	found := versionText.FindSubmatch(out)
	if found == nil {
		return 0
	}
	version, err := strconv.Atoi(string(found[1]))
	if err != nil {
		return 0
	}
	return version
}
