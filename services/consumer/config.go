package main

import (
	"time"

	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/serve"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/worker"
	"lockstep.dev/services/internal/load"
	"lockstep.dev/services/internal/tracing"
)

// Config is every setting of the consumer.
type Config struct {
	serve.Config `koanf:",squash"`

	Log serve.Log `koanf:"log"`

	// AppKey is the consumer's own identity.
	AppKey string `koanf:"app_key"`
	// KeyFile holds its private key, of mode 0600; made by `lockstep keygen`.
	KeyFile string `koanf:"key_file"`
	// TrustFile holds the public keys of its center.
	TrustFile string `koanf:"trust_file"`
	// SourceAppKey is the one center whose instructions are accepted and whose
	// words are believed.
	SourceAppKey string                    `koanf:"source_app_key"`
	Operators    []identity.OperatorConfig `koanf:"operators"`
	// OIDC lets tokens of an identity provider stand for operators, too.
	OIDC identity.OIDCConfig `koanf:"oidc"`

	Center Center   `koanf:"center"`
	Store  Database `koanf:"store"`
	// Migrate applies the migrations at the start; else `consumer migrate` does.
	Migrate bool           `koanf:"migrate"`
	Dataset dataset.Config `koanf:"dataset"`

	Execution Execution `koanf:"execution"`
	Limits    Limits    `koanf:"limits"`
	// LoadGuard looks at the store before and while a task is worked; one that finds it busy
	// gives the task back at its next checkpoint, and slows it down until then.
	LoadGuard load.Config `koanf:"load_guard"`

	Delivery Delivery `koanf:"delivery"`
	Refresh  Refresh  `koanf:"refresh"`

	Metrics Metrics        `koanf:"metrics"`
	Tracing tracing.Config `koanf:"tracing"`

	// Lease of a claim on work, renewed about each third of it.
	Lease time.Duration `koanf:"lease"`
	// StallLimit is how long a worker may make no progress before its claim is no longer
	// renewed.
	StallLimit time.Duration `koanf:"stall_limit"`
	// MaxRepairRetries of a row that changes while it is mended; then RETRIES_EXHAUSTED.
	MaxRepairRetries int `koanf:"max_repair_retries"`
	// MaxPendingExtras: with more rows to retire, of those that only the consumer has, none
	// is (EXTRAS_LIMIT). Each holds a few KB until all are retired in one transaction.
	MaxPendingExtras int `koanf:"max_pending_extras"`
	// MaxRetirePercent of the image; beyond it none is retired (RETIRE_BREAKER).
	MaxRetirePercent int `koanf:"max_retire_percent"`
	// SnapshotMaxAge of a signed record or absence proof when it is applied.
	SnapshotMaxAge time.Duration `koanf:"snapshot_max_age"`
	// MaxErrorItems that a report names.
	MaxErrorItems int `koanf:"max_error_items"`
	// MaxErrorChars of all items of a report together.
	MaxErrorChars int `koanf:"max_error_chars"`
	// MaxWorkPerScan is how many tasks one look for work takes on.
	MaxWorkPerScan int `koanf:"max_work_per_scan"`
	// ProgressReportRounds of at most 64 pages between two progress reports.
	ProgressReportRounds int     `koanf:"progress_report_rounds"`
	Backoff              Backoff `koanf:"backoff"`
	// MaxRetries of a round that failed; then the work is parked until a newer attempt.
	MaxRetries int `koanf:"max_retries"`
	// ScanInterval between two looks for work that nothing announced.
	ScanInterval time.Duration `koanf:"scan_interval"`
	// ScanInitialDelay before the first look, so that a start is not also a burst.
	ScanInitialDelay time.Duration `koanf:"scan_initial_delay"`
	// VerifyContent hashes the stored content anew instead of believing content_hash: it finds
	// content that was changed behind its hash, and costs a read of all of it. Where a
	// large set is a quarter of the table or more, it is read before the scan, and no row counts
	// as scanned yet.
	VerifyContent bool `koanf:"verify_content"`
	// Walk is pages, where pages with an equal digest are not fetched, or rows, where every row
	// of both sides is. Both find the same.
	Walk string `koanf:"walk"`
	// Retention of the outcomes of ended work; 0 keeps them for ever.
	Retention time.Duration `koanf:"retention"`
}

// Center is where the source answers.
type Center struct {
	// Address is host:port of the center's gRPC side.
	Address string `koanf:"address"`
}

// Database is the host's: the projection and Lockstep's own tables beside it,
// because a repair and its ledger row are one transaction.
type Database struct {
	// DSN is a connection string or URL as libpq takes it; passfile=… keeps the password out
	// of it.
	DSN string `koanf:"dsn"`
	// MigrateDSN is used to apply migrations, by a role that may; DSN where empty.
	MigrateDSN string `koanf:"migrate_dsn"`
	// MaxConns is the most connections of the reconciling side of one process.
	MaxConns int32 `koanf:"max_conns"`
}

// Execution switches the work on accepted instructions.
type Execution struct {
	// Enabled works on accepted instructions. Off by default: they are accepted and wait.
	Enabled bool `koanf:"enabled"`
}

// Limits of what is done in a second.
type Limits struct {
	identity.Rates `koanf:",squash"`

	// RepairsPerSecond of one process at most, over its whole scan; 0 for no limit.
	RepairsPerSecond int `koanf:"repairs_per_second"`
}

// Backoff of failed rounds and unacknowledged reports.
type Backoff struct {
	// Base is the wait after the first failure; it doubles, with jitter.
	Base time.Duration `koanf:"base"`
	// Cap is the longest wait.
	Cap time.Duration `koanf:"cap"`
}

// The ways of a scan.
const (
	walkPages = "pages"
	walkRows  = "rows"
)

func defaults() *Config {
	return &Config{
		Store: Database{MaxConns: 10},
		Lease: 900 * time.Second, StallLimit: 2 * time.Minute,
		MaxRepairRetries: 3, MaxPendingExtras: 500, MaxRetirePercent: 10, SnapshotMaxAge: 60 * time.Second,
		MaxErrorItems: 50, MaxErrorChars: 8000, MaxWorkPerScan: 1, ProgressReportRounds: 10,
		Backoff: Backoff{Base: 60 * time.Second, Cap: 30 * time.Minute}, MaxRetries: 6,
		ScanInterval: 30 * time.Second, ScanInitialDelay: 20 * time.Second,
		Walk: walkPages, Retention: 90 * 24 * time.Hour,
		Limits:    Limits{Rates: identity.DefaultRates()},
		LoadGuard: load.Defaults(),
		Refresh:   refreshDefaults(),
		OIDC:      identity.OIDCDefaults(),
		Metrics:   Metrics{Interval: figuresInterval},
		Tracing:   tracing.Defaults(),
	}
}

// Bounds with the reason: beyond them one transaction or report grows too large.
const (
	maxExtras     = 10000 // they are retired in one transaction, their proofs held until then
	maxItems      = 1000  // a report is one message
	maxChars      = 64000 // far below what a call receives
	maxRetries    = 100
	maxPerScan    = 1000
	maxRounds     = 10000
	maxRate       = 1_000_000 // far above what one process repairs
	minConns      = 4         // two read images; asking ahead, writing and answering share the others
	leaseConns    = 2         // renewals have a pool of their own
	shortestLease = time.Second
)

// Validate tells everything that is wrong or impossible.
func (c *Config) Validate() error {
	var p config.Problems
	p.Add("serve", c.Config.Validate())
	p.Check(c.AppKey != "", "app_key is missing")
	p.Check(c.KeyFile != "", "key_file is missing")
	p.Check(c.TrustFile != "", "trust_file is missing")
	p.Check(c.SourceAppKey != "", "source_app_key is missing: without it every instruction is refused")
	p.Check(c.SourceAppKey == "" || c.SourceAppKey != c.AppKey, "source_app_key is the consumer's own app_key")
	p.Check(c.Center.Address != "", "center.address is missing")
	p.Check(c.Store.DSN != "", "store.dsn is missing")
	p.Check(c.Store.MaxConns >= minConns, "store.max_conns is at least %d", minConns)
	p.Add("oidc", c.OIDC.Validate())
	p.Add("dataset", c.Dataset.Validate(dataset.Consumer))
	p.Check(c.Walk == walkPages || c.Walk == walkRows, "walk is %s or %s, not %q", walkPages, walkRows, c.Walk)
	p.Add("limits", c.Limits.Validate())
	p.Add("load_guard", c.LoadGuard.Validate())
	p.Add("refresh", c.Refresh.Validate())
	c.checkSizes(&p)
	c.checkTimes(&p)
	c.checkObserved(&p)
	return p.Err()
}

func (c *Config) checkSizes(p *config.Problems) {
	within := func(name string, value, least, most int) {
		p.Check(value >= least && value <= most, "%s is %d to %d, not %d", name, least, most, value)
	}
	within("limits.repairs_per_second", c.Limits.RepairsPerSecond, 0, maxRate)
	within("max_repair_retries", c.MaxRepairRetries, 0, maxRetries)
	within("max_pending_extras", c.MaxPendingExtras, 0, maxExtras)
	within("max_retire_percent", c.MaxRetirePercent, 0, 100)
	within("max_error_items", c.MaxErrorItems, 0, maxItems)
	within("max_error_chars", c.MaxErrorChars, 0, maxChars)
	within("max_work_per_scan", c.MaxWorkPerScan, 1, maxPerScan)
	within("progress_report_rounds", c.ProgressReportRounds, 1, maxRounds)
	within("max_retries", c.MaxRetries, 0, maxRetries)
}

func (c *Config) checkTimes(p *config.Problems) {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"stall_limit", c.StallLimit},
		{"snapshot_max_age", c.SnapshotMaxAge},
		{"backoff.base", c.Backoff.Base},
		{"backoff.cap", c.Backoff.Cap},
		{"scan_interval", c.ScanInterval},
	} {
		p.Check(d.value > 0, "%s is a time above 0", d.name)
	}
	p.Check(c.Lease >= shortestLease, "lease is at least %s", shortestLease)
	p.Check(c.StallLimit < c.Lease, "stall_limit %s is not below lease %s", c.StallLimit, c.Lease)
	p.Check(c.ScanInterval < c.Lease/3, "scan_interval %s is not below a third of lease %s: a waiting row has to be reported in time", c.ScanInterval, c.Lease)
	p.Check(c.Backoff.Base <= c.Backoff.Cap, "backoff.base %s is above backoff.cap %s", c.Backoff.Base, c.Backoff.Cap)
	p.Check(c.ScanInitialDelay >= 0, "scan_initial_delay is not negative")
	p.Check(c.Retention >= 0, "retention is not negative; 0 keeps everything")
}

func (c *Config) storeSettings() store.Settings {
	return store.Settings{Lease: c.Lease, MaxRetries: c.MaxRetries, BackoffBase: c.Backoff.Base, BackoffCap: c.Backoff.Cap, Content: c.VerifyContent}
}

func (c *Config) workerSettings() worker.Settings {
	return worker.Settings{
		Enabled: c.Execution.Enabled, Lease: c.Lease, StallLimit: c.StallLimit, ScanInterval: c.ScanInterval,
		InitialDelay: c.ScanInitialDelay, MaxPerScan: c.MaxWorkPerScan, ReportRounds: c.ProgressReportRounds,
		MaxItems: c.MaxErrorItems, MaxTries: c.MaxRetries, Retention: c.Retention, VerifyContent: c.VerifyContent,
		RowWise: c.Walk == walkRows,
	}
}
