package dev

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep.dev/pkg/pglocal"
)

// bench is a finder on a machine that has no PostgreSQL.
type bench struct {
	*finder
	notes []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{}
	b.finder = &finder{
		dir:        t.TempDir(),
		note:       func(format string, args ...any) { b.notes = append(b.notes, fmt.Sprintf(format, args...)) },
		find:       func(context.Context) (string, error) { return "", pglocal.ErrNotFound },
		repository: "http://127.0.0.1:1",
	}
	t.Setenv("PATH", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	return b
}

func TestInstalledProgramsComeFirst(t *testing.T) {
	b := newBench(t)
	b.find = func(context.Context) (string, error) { return "/opt/pg/bin", nil }
	if got, err := b.programs(t.Context()); err != nil || got != "/opt/pg/bin" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestRootInstallsThePackage(t *testing.T) {
	b := newBench(t)
	b.root = true
	marker := filepath.Join(t.TempDir(), "installed")
	fake(t, "dnf", `[ "$1 $2 $3" = "install -y postgresql-server" ] && : > `+marker)
	b.find = func(context.Context) (string, error) {
		if _, err := os.Stat(marker); err != nil {
			return "", pglocal.ErrNotFound
		}
		return "/usr/pgsql-17/bin", nil
	}
	if got, err := b.programs(t.Context()); err != nil || got != "/usr/pgsql-17/bin" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestListsAreFetchedOnlyWhenInstallingFails(t *testing.T) {
	b := newBench(t)
	b.root = true
	calls := filepath.Join(t.TempDir(), "calls")
	fake(t, "apk", `echo "$@" >> `+calls+`; [ "$(wc -l < `+calls+`)" -gt 1 ]`)
	link(t, "wc")
	found := false
	b.find = func(context.Context) (string, error) {
		if !found {
			found = true
			return "", pglocal.ErrNotFound
		}
		return "/usr/libexec/postgresql17", nil
	}
	if _, err := b.programs(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	if want := "add postgresql\nupdate\nadd postgresql\n"; string(text) != want {
		t.Errorf("got %q, want %q", text, want)
	}
}

// fake puts a shell script into PATH.
func fake(t *testing.T, name, script string) {
	t.Helper()
	path := filepath.Join(os.Getenv("PATH"), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, name string) {
	t.Helper()
	for _, dir := range []string{"/usr/bin", "/bin"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			if err := os.Symlink(filepath.Join(dir, name), filepath.Join(os.Getenv("PATH"), name)); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no program %s", name)
}

func TestProgramsAreDownloaded(t *testing.T) {
	b := newBench(t)
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if !strings.HasSuffix(r.URL.Path, ".jar") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		http.ServeFile(w, r, "testdata/programs.jar")
	}))
	t.Cleanup(server.Close)
	b.repository = server.URL
	got, err := b.programs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(got, "postgres")); err != nil {
		t.Error(err)
	}
	before := asked
	b.dir = t.TempDir()
	if _, err := b.programs(t.Context()); err != nil {
		t.Fatal(err)
	}
	if asked != before {
		t.Error("the archive was fetched twice")
	}
}

func TestWithoutAnyWayItSaysWhatToInstall(t *testing.T) {
	b := newBench(t)
	_, err := b.programs(t.Context())
	if !errors.Is(err, pglocal.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{"apt-get install postgresql", "--center-dsn", "only root may install", "embedded-postgres"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
}
