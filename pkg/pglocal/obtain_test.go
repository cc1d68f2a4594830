package pglocal_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"lockstep.dev/pkg/pglocal"
)

func TestWhatIsInstalledIsUsedAndNothingIsFetched(t *testing.T) {
	cache := t.TempDir()
	binDir, err := pglocal.Obtain(t.Context(), cache, func(what string) { t.Errorf("it told %q", what) })
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(binDir, program)); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 0 {
		t.Errorf("the cache holds %v, error %v", left, err)
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
