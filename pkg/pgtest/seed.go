package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"lockstep.dev/pkg/pglocal"
)

// A seed is a cluster's folder with the template databases in it, kept in the
// user's cache: copying it takes a quarter of the time that making it does, and
// some fifty test binaries need one. Its name changes with the server, its user
// and the migrations.

const (
	// seedFormat is raised with what else a seed is made by: pglocal's call of
	// initdb, and what pg.Migrate keeps of its own.
	seedFormat = 1
	seedPrefix = "pgtest-"
	// unusedSeed is removed when another one is made.
	unusedSeed = 7 * 24 * time.Hour
)

// seeded are the parts of a cluster's folder that a seed has.
var seeded = []string{"data", "password"}

// plant puts the data of a cluster into dir, which has none. What keeps a seed
// from being kept makes no difference but to the time it takes.
func plant(ctx context.Context, dir string) error {
	seed, err := seedPath(ctx)
	if err != nil {
		return grow(ctx, dir)
	}
	if _, err := os.Stat(seed); err == nil {
		now := time.Now()
		_ = os.Chtimes(seed, now, now)
		if copyParts(ctx, seed, dir) == nil {
			return nil
		}
		// It can't be read, or not whole: another one takes its place.
		remove(seed)
		for _, part := range seeded {
			if err := os.RemoveAll(filepath.Join(dir, part)); err != nil {
				return err
			}
		}
	}
	if err := grow(ctx, dir); err != nil {
		return err
	}
	_ = keep(ctx, dir, seed)
	return nil
}

// grow makes the data of a cluster, with its templates.
func grow(ctx context.Context, dir string) (err error) {
	cluster, err := pglocal.Start(ctx, pglocal.Options{Dir: dir, Params: fast})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	for _, t := range []template{centerTemplate, consumerTemplate} {
		if err := migrated(ctx, cluster, t.name, t.sets); err != nil {
			return err
		}
	}
	return nil
}

// keep makes the seed appear all at once, on disk, and removes old ones.
func keep(ctx context.Context, dir, seed string) error {
	parent := filepath.Dir(seed)
	if err := os.MkdirAll(parent, 0o755); err != nil { //nolint:gosec // a folder of caches
		return err
	}
	made, err := os.MkdirTemp(parent, "new-"+seedPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(made) //nolint:errcheck // it is gone where it has become the seed
	if err := copyParts(ctx, dir, made); err != nil {
		return err
	}
	syscall.Sync() // a seed that lost something in a crash of the machine would fail every test
	sweepSeeds(parent)
	return os.Rename(made, seed)
}

// sweepSeeds removes what nobody has used for long, and what an interrupted keep left.
func sweepSeeds(parent string) {
	for _, pattern := range []string{seedPrefix, "new-" + seedPrefix} {
		found, err := filepath.Glob(filepath.Join(parent, pattern+"*"))
		if err != nil {
			continue
		}
		for _, old := range found {
			if info, err := os.Stat(old); err == nil && time.Since(info.ModTime()) > unusedSeed {
				remove(old)
			}
		}
	}
}

// remove takes a seed's name away first, so that nobody finds half of it.
func remove(seed string) {
	aside, err := os.MkdirTemp(filepath.Dir(seed), "new-"+seedPrefix)
	if err != nil {
		return
	}
	_ = os.Rename(seed, filepath.Join(aside, "old"))
	_ = os.RemoveAll(aside) // what stays is swept later
}

func copyParts(ctx context.Context, from, to string) error {
	args := []string{"-a"} // with the owner, who is not root
	for _, part := range seeded {
		args = append(args, filepath.Join(from, part))
	}
	//nolint:gosec // folders of this package
	if out, err := exec.CommandContext(ctx, "cp", append(args, to)...).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the seed of a test cluster: %w: %s", err, out)
	}
	return nil
}

// seedPath names the seed by the server's version, its user and every migration.
func seedPath(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	binDir, err := pglocal.Find(ctx)
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, filepath.Join(binDir, "postgres"), "--version").Output() //nolint:gosec // the server that was found
	if err != nil {
		return "", err
	}
	uid, err := pglocal.ServerUID()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%d %s %s %d %d", seedFormat, binDir, version, os.Geteuid(), uid)
	for _, t := range []template{centerTemplate, consumerTemplate} {
		fmt.Fprintf(sum, "\n%s", t.name)
		for _, s := range t.sets {
			if err := addFiles(sum, s); err != nil {
				return "", err
			}
		}
	}
	return filepath.Join(cache, "lockstep", seedPrefix+hex.EncodeToString(sum.Sum(nil)[:12])), nil
}

func addFiles(sum hash.Hash, s set) error {
	return fs.WalkDir(s.files, s.dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := s.files.ReadFile(name)
		fmt.Fprintf(sum, "\n%s %d\n%s", name, len(text), text)
		return err
	})
}
