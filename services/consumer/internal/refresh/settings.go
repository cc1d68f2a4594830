package refresh

import (
	"time"

	"lockstep.dev/pkg/config"
)

// Settings are the figures of the engine.
type Settings struct {
	// Enabled runs the scan and the kicks; off, requests are kept and wait.
	Enabled bool `koanf:"enabled"`
	// Lease of a claim, renewed about each third of it.
	Lease time.Duration `koanf:"lease"`
	// Stall is how long a run may finish no scope before its lease is no longer
	// renewed; a scope must fit into it.
	Stall time.Duration `koanf:"stall"`
	// PageScopes is how many scopes one claim works off.
	PageScopes int `koanf:"page_scopes"`
	// ScopesAtOnce is how many of them run at the same time, each on a connection.
	ScopesAtOnce int `koanf:"scopes_at_once"`
	// ClaimsPerRun bounds one run of the scan; it starts again at once if it was reached.
	ClaimsPerRun int `koanf:"claims_per_run"`
	// Retries in a row before automatic tries end.
	Retries     int             `koanf:"retries"`
	RetryDelays []time.Duration `koanf:"retry_delays"` // by the retries before; the last one stays
	// Scan is how often the tables are looked at without a wake-up.
	Scan time.Duration `koanf:"scan"`
	Kick KickSettings  `koanf:"kick"`
}

// KickSettings are the figures of the wake-ups.
type KickSettings struct {
	// Enabled is the master switch of the wake-ups.
	Enabled bool `koanf:"enabled"`
	// Admission lets new wake-ups in; off, those that wait still run.
	Admission bool `koanf:"admission"`
	// Workers that take wake-ups.
	Workers int `koanf:"workers"`
	// Queue is how many buckets may wait for a worker.
	Queue int `koanf:"queue"`
	// Bucket is how many tasks fit into one bucket.
	Bucket int `koanf:"bucket"`
	// RoundBudget is looked at before the next task is taken; it never interrupts one.
	RoundBudget time.Duration `koanf:"round_budget"`
	// Stages by projection; one that is not named is off.
	Stages map[string]Stage `koanf:"stages"`
}

// Stage lets the wake-ups of one projection through.
type Stage struct {
	// Enabled lets the projection's wake-ups through.
	Enabled bool `koanf:"enabled"`
	// Grey is the percentage of tasks let through, by a stable hash of their id.
	Grey int `koanf:"grey"`
}

// Bounds, and why.
const (
	maxPageScopes   = 500 // a page's list is in memory, and a claim ends with it
	maxClaimsPerRun = 500
	maxScopesAtOnce = 16 // each holds a connection
	maxKickWorkers  = 4
)

// Defaults gives the settings of a service that says nothing.
func Defaults() Settings {
	return Settings{
		Enabled: true, Lease: 10 * time.Minute, Stall: 10 * time.Minute,
		PageScopes: 100, ScopesAtOnce: 3, ClaimsPerRun: 100,
		Retries: 3, RetryDelays: []time.Duration{5 * time.Minute, 10 * time.Minute, 15 * time.Minute},
		Scan: 30 * time.Second,
		Kick: KickSettings{Enabled: true, Admission: true, Workers: 2, Queue: 128, Bucket: 64, RoundBudget: 5 * time.Second},
	}
}

// Validate tells everything that is wrong.
func (s *Settings) Validate() error {
	var p config.Problems
	p.Check(s.Lease >= 10*time.Second, "lease must be at least 10s")
	p.Check(s.Stall >= time.Second, "stall must be at least 1s")
	within(&p, "page_scopes", s.PageScopes, maxPageScopes)
	within(&p, "scopes_at_once", s.ScopesAtOnce, maxScopesAtOnce)
	within(&p, "claims_per_run", s.ClaimsPerRun, maxClaimsPerRun)
	within(&p, "retries", s.Retries, 100)
	p.Check(len(s.RetryDelays) > 0, "retry_delays is empty")
	for _, delay := range s.RetryDelays {
		p.Check(delay > 0, "retry_delays: %s is not positive", delay)
	}
	p.Check(s.Scan > 0, "scan must be positive")
	within(&p, "kick.workers", s.Kick.Workers, maxKickWorkers)
	within(&p, "kick.queue", s.Kick.Queue, 1<<16)
	within(&p, "kick.bucket", s.Kick.Bucket, 1<<16)
	p.Check(s.Kick.RoundBudget > 0, "kick.round_budget must be positive")
	for name, stage := range s.Kick.Stages {
		p.Check(stage.Grey >= 0 && stage.Grey <= 100, "kick.stages.%s.grey must be 0 to 100", name)
	}
	return p.Err()
}

func within(p *config.Problems, name string, value, most int) {
	p.Check(value >= 1 && value <= most, "%s must be 1 to %d", name, most)
}
