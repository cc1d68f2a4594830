package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/internal/load"
)

// Limits keep the center from pressing on others, and others on it.
type Limits struct {
	identity.Rates `koanf:",squash"`

	// SourceRowsPerSecond are read from the source at most, by manifests and
	// calls together; 0 for no limit, otherwise at least 100. A set that could
	// not be read within ten minutes at it is refused.
	SourceRowsPerSecond int `koanf:"source_rows_per_second"`
}

// Materialise is the making of manifests.
type Materialise struct {
	// Readers of the source for one manifest, in one snapshot; 0 for as many as
	// there are processors, at most 4. Two manifests may be in work, and of
	// source.max_conns two connections are left for calls and one for a load_guard.
	Readers int `koanf:"readers"`
	// SpillDir is a folder on disk for large manifests: a file without a name takes about 73
	// bytes a row there while one is made. Empty is the system's temporary folder; where there
	// is no room on a disk, a manifest takes longer.
	SpillDir string `koanf:"spill_dir"`
}

const (
	mostReaders = 4 // without a setting; beyond it the center's store is what waits
	callConns   = 2 // of the source's pool: reading current rows and the outbox
)

// readers is the setting, or what fits.
func (c *Config) readers() int {
	if c.Materialise.Readers > 0 {
		return c.Materialise.Readers
	}
	return max(1, min(runtime.GOMAXPROCS(0), mostReaders, c.roomForReaders()))
}

// roomForReaders of one manifest in the source's pool.
func (c *Config) roomForReaders() int {
	return (int(c.Source.MaxConns) - c.otherConns()) / materialisers
}

// otherConns of the source's pool are never a manifest's: a guard that found
// none free would take the source to be busy.
func (c *Config) otherConns() int {
	if c.LoadGuard.Enabled() {
		return callConns + 1
	}
	return callConns
}

func (c *Config) checkLimits(p *config.Problems) {
	p.Add("limits", c.Limits.Validate())
	p.Add("limits.source_rows_per_second", load.CheckRate(c.Limits.SourceRowsPerSecond))
	p.Add("load_guard", c.LoadGuard.Validate())
	p.Check(c.Materialise.Readers >= 0, "materialise.readers is not negative; 0 is by the processors")
	least := materialisers + c.otherConns()
	p.Check(int(c.Source.MaxConns) >= least, "source.max_conns is at least %d, not %d: %d manifests read at once, calls need %d connections, and a load_guard one",
		least, c.Source.MaxConns, materialisers, callConns)
	p.Check(c.Materialise.Readers <= max(1, c.roomForReaders()),
		"materialise.readers %d, taken %d times, and %d more do not fit into source.max_conns %d", c.Materialise.Readers, materialisers, c.otherConns(), c.Source.MaxConns)
	p.Check(c.PageBytes >= minPageBytes && c.PageBytes <= manifest.MaxPageBytes, "page_bytes is %d to %d, not %d", minPageBytes, manifest.MaxPageBytes, c.PageBytes)
}

// checkSpillDir says why a folder that is named can't be written to. Other verbs
// than serve may run where it does not exist.
func (c *Config) checkSpillDir() error {
	dir := c.Materialise.SpillDir
	if dir == "" {
		return nil
	}
	file, err := os.CreateTemp(dir, "lockstep-")
	if err == nil {
		err = errors.Join(file.Close(), os.Remove(file.Name()))
	}
	if err != nil {
		return fmt.Errorf("materialise.spill_dir: %w", err)
	}
	return nil
}

// minPageBytes: less would be a call for every page.
const minPageBytes = 64 << 10
