package pglocal_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pglocal"
)

func TestFindGivesAFolderWithTheProgramsOfACluster(t *testing.T) {
	binDir, err := pglocal.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(binDir, program)); err != nil {
			t.Error(err)
		}
	}
}

func TestAFolderTooDeepForASocketIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a-name-that-is-rather-long-for-a-folder", "another-one-that-is-just-as-long-as-the-first")
	if _, err := pglocal.Start(t.Context(), pglocal.Options{Dir: dir}); err == nil {
		t.Error("it was started")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("a refused start left its folder")
	}
}

func TestAFolderWithDataIsUsedAgain(t *testing.T) {
	// Not t.TempDir: the server's user must be able to reach it.
	dir, err := os.MkdirTemp("", "pglocal-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	start := func() *pglocal.Cluster {
		t.Helper()
		cluster, err := pglocal.Start(t.Context(), pglocal.Options{Dir: dir, TCP: true, Params: map[string]string{"fsync": "off"}})
		if err != nil {
			t.Fatal(err)
		}
		return cluster
	}
	first := start()
	for range 2 { // the second time it is there already
		if err := first.CreateDatabase(t.Context(), "kept"); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	second := start()
	t.Cleanup(func() {
		if err := second.Stop(); err != nil {
			t.Error(err)
		}
	})
	for name, dsn := range map[string]string{"socket": second.DSN("kept"), "loopback": second.TCPDSN("kept")} {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Errorf("by %s: %v", name, err)
			continue
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
