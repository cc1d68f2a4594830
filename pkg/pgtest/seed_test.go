package pgtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestSeed makes a seed, plants it, makes another one where it is not whole, and
// does without one where it can't be kept.
func TestSeed(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	for _, when := range []string{"made", "copied", "broken"} {
		if when == "broken" {
			seeds, err := filepath.Glob(filepath.Join(cache, "lockstep", "*", "password"))
			if err != nil || len(seeds) != 1 || os.Remove(seeds[0]) != nil {
				t.Fatal(seeds, err)
			}
		}
		holdsTheTables(t, when)
		seeds, err := filepath.Glob(filepath.Join(cache, "lockstep", "*"))
		if err != nil || len(seeds) != 1 {
			t.Fatalf("%s: the cache holds %q, %v; want one seed", when, seeds, err)
		}
		if when != "made" {
			continue
		}
		// What comes from the copy is seen by this.
		if err := os.WriteFile(filepath.Join(seeds[0], "data", "planted"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "no-folder")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CACHE_HOME", file)
	holdsTheTables(t, "no cache")
}

func holdsTheTables(t *testing.T, when string) {
	t.Helper()
	dir, err := TempDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := plant(t.Context(), dir); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	_, err = os.Stat(filepath.Join(dir, "data", "planted"))
	if copied := err == nil; copied != (when == "copied") {
		t.Errorf("%s: the folder is a copy of the seed: %t", when, copied)
	}
	cluster, err := start(t.Context(), dir, false, nil)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	defer func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for database, table := range map[string]string{centerTemplate.name: "lockstep.task", consumerTemplate.name: "hall.answer_projection"} {
		conn, err := pgx.Connect(t.Context(), cluster.DSN(database))
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		var found bool
		if err := conn.QueryRow(t.Context(), `SELECT to_regclass($1) IS NOT NULL`, table).Scan(&found); err != nil || !found {
			t.Errorf("%s: %s is there: %t, %v", when, table, found, err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
