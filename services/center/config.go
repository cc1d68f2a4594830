package main

import (
	"math/bits"
	"time"

	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/serve"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/schedule"
	"lockstep.dev/services/center/internal/task"
	"lockstep.dev/services/internal/load"
	"lockstep.dev/services/internal/tracing"
)

// Config is every setting of the center.
type Config struct {
	serve.Config `koanf:",squash"`

	Log serve.Log `koanf:"log"`

	// AppKey is the center's own identity.
	AppKey string `koanf:"app_key"`
	// KeyFile holds its private key, of mode 0600; made by `lockstep keygen`.
	KeyFile string `koanf:"key_file"`
	// TrustFile holds the public keys of its consumers.
	TrustFile string                    `koanf:"trust_file"`
	Operators []identity.OperatorConfig `koanf:"operators"`
	// OIDC lets tokens of an identity provider stand for operators, too.
	OIDC identity.OIDCConfig `koanf:"oidc"`
	// Targets are the consumers' addresses by app key.
	Targets map[string]string `koanf:"targets"`

	Store  Database `koanf:"store"`
	Source Database `koanf:"source"`
	// Migrate applies the migrations at the start; else `center migrate` does.
	Migrate bool           `koanf:"migrate"`
	Dataset dataset.Config `koanf:"dataset"`

	Metrics Metrics        `koanf:"metrics"`
	Tracing tracing.Config `koanf:"tracing"`

	Schedule Schedule `koanf:"schedule"`
	Dispatch Dispatch `koanf:"dispatch"`
	Delivery Delivery `koanf:"delivery"`

	// PageSize is the most rows of one answer of the row-wise API.
	PageSize int `koanf:"page_size"`
	// MaxRows of one collection; a task for a larger one fails with RESOURCE_LIMIT.
	MaxRows int `koanf:"max_rows"`
	// MaxPages of page_size rows; the tighter of the two bounds counts.
	MaxPages int `koanf:"max_pages"`
	// PageRows of a manifest's page, a power of two.
	PageRows int `koanf:"page_rows"`
	// PageBytes of packed page bodies in one answer; a body has no content.
	PageBytes int `koanf:"page_bytes"`

	Materialise Materialise `koanf:"materialise"`
	Limits      Limits      `koanf:"limits"`
	// LoadGuard looks at the source before and while a manifest is made.
	LoadGuard load.Config `koanf:"load_guard"`

	// MaxTasksPerRun bounds what one schedule or one request for all makes.
	MaxTasksPerRun int `koanf:"max_tasks_per_run"`
	// Lease of a task at its consumer, renewed by its reports; after it the task is dispatched
	// anew.
	Lease time.Duration `koanf:"lease"`
	// ClaimLease of a worker of this service, renewed about each third of it.
	ClaimLease time.Duration `koanf:"claim_lease"`
	// StallLimit is how long a worker may make no progress before its claim is no longer
	// renewed.
	StallLimit time.Duration `koanf:"stall_limit"`
	// MaxDispatchAttempts is the budget of a task; spent, it fails with DISPATCH_FAILED or
	// LEASE_EXPIRED.
	MaxDispatchAttempts int `koanf:"max_dispatch_attempts"`
	// DispatchGiveUp is how long dispatched work may wait at a consumer that reports itself
	// waiting.
	DispatchGiveUp time.Duration `koanf:"dispatch_give_up"`
	// MaxInFlightPerConsumer is how many tasks a consumer has at once.
	MaxInFlightPerConsumer int     `koanf:"max_in_flight_per_consumer"`
	Backoff                Backoff `koanf:"backoff"`
	// MaxErrorItems of a report that are kept.
	MaxErrorItems int `koanf:"max_error_items"`
	// MaxErrorChars of all items of a report together.
	MaxErrorChars int `koanf:"max_error_chars"`
	// ScanInterval between two looks for work that nothing announced.
	ScanInterval time.Duration `koanf:"scan_interval"`
	// ScanInitialDelay before the first look, so that a start is not also a burst.
	ScanInitialDelay time.Duration `koanf:"scan_initial_delay"`
	// Retention of a manifest's pages after its task ended; 0 keeps them for ever.
	Retention time.Duration `koanf:"retention"`

	// Of an operator's command, no settings.
	reason string
	epoch  int64
}

// Database says where a database is.
type Database struct {
	// DSN is a connection string or URL as libpq takes it; passfile=… keeps the password out
	// of it.
	DSN string `koanf:"dsn"`
	// MigrateDSN is used to apply migrations, by a role that may; DSN where empty.
	MigrateDSN string `koanf:"migrate_dsn"`
	// MaxConns is the most connections of one process.
	MaxConns int32 `koanf:"max_conns"`
}

// Schedule is the daily run.
type Schedule struct {
	// Enabled makes a task for every granted scope at each time of cron.
	Enabled bool `koanf:"enabled"`
	// Cron has six fields, the first one seconds.
	Cron string `koanf:"cron"`
	// Zone is the time zone of cron.
	Zone string `koanf:"zone"`
}

// Dispatch switches materialising, dispatching and the lease sweep.
type Dispatch struct {
	// Enabled switches materialising, dispatching and the lease sweep. Off by default: switch
	// it on in every process that works.
	Enabled bool `koanf:"enabled"`
	// Timeout of one call to a consumer.
	Timeout time.Duration `koanf:"timeout"`
}

// Backoff of dispatches and of materialising.
type Backoff struct {
	// Base is the wait after the first failure; it doubles, with jitter.
	Base time.Duration `koanf:"base"`
	// Cap is the longest wait.
	Cap time.Duration `koanf:"cap"`
}

func defaults() *Config {
	return &Config{
		Schedule: Schedule{Cron: "0 0 2 * * *", Zone: "Asia/Shanghai"},
		// The call and its conclusion fit into the ten seconds that a stop may take.
		Dispatch: Dispatch{Timeout: 5 * time.Second},
		Delivery: deliveryDefaults(),
		OIDC:     identity.OIDCDefaults(),
		Metrics:  metricsDefaults(),
		Tracing:  tracing.Defaults(),
		Store:    Database{MaxConns: 20},
		Source:   Database{MaxConns: 10},
		PageSize: 200, MaxRows: 20_000, MaxPages: 200, PageRows: 128, PageBytes: manifest.MaxPageBytes,
		Limits: Limits{Rates: identity.DefaultRates()}, LoadGuard: load.Defaults(),
		MaxTasksPerRun: 20, Lease: 900 * time.Second, ClaimLease: 60 * time.Second, StallLimit: 45 * time.Second,
		MaxDispatchAttempts: 4, DispatchGiveUp: 12 * time.Hour, MaxInFlightPerConsumer: 1,
		Backoff:       Backoff{Base: 60 * time.Second, Cap: time.Hour},
		MaxErrorItems: 50, MaxErrorChars: 8000,
		ScanInterval: 15 * time.Second, ScanInitialDelay: 45 * time.Second,
		Retention: 30 * 24 * time.Hour,
	}
}

// Validate tells everything that is wrong or impossible.
func (c *Config) Validate() error {
	var p config.Problems
	p.Add("serve", c.Config.Validate())
	p.Check(c.AppKey != "", "app_key is missing")
	p.Check(c.KeyFile != "", "key_file is missing")
	p.Check(c.TrustFile != "", "trust_file is missing")
	p.Check(c.Store.DSN != "", "store.dsn is missing")
	p.Check(c.Source.DSN != "", "source.dsn is missing; it may be the store's database, read by a role that may SELECT")
	p.Check(c.Store.MaxConns >= 2, "store.max_conns is at least 2")
	p.Add("oidc", c.OIDC.Validate())
	p.Add("dataset", c.Dataset.Validate(dataset.Center))
	for appKey, address := range c.Targets {
		p.Check(appKey != "" && address != "", "targets.%s: an app key and its host:port are needed", appKey)
	}
	c.checkSizes(&p)
	c.checkTimes(&p)
	c.checkDelivery(&p)
	c.checkObserved(&p)
	c.checkLimits(&p)
	_, err := schedule.Parse(c.Schedule.Cron, c.Schedule.Zone)
	p.Add("schedule", err)
	return p.Err()
}

// Bounds with the reason: beyond them a single answer or transaction grows too large.
const (
	maxPageSize = 500   // of the row-wise API
	maxPageRows = 4096  // a packed page stays below half a megabyte
	maxSlots    = 1000  // they are counted one by one at every claim
	maxAttempts = 1000  // back-off is capped long before
	maxFanOut   = 10000 // tasks of one scheduled transaction
)

func (c *Config) checkSizes(p *config.Problems) {
	within := func(name string, value, most int) {
		p.Check(value >= 1 && value <= most, "%s is 1 to %d, not %d", name, most, value)
	}
	within("page_size", c.PageSize, maxPageSize)
	within("page_rows", c.PageRows, maxPageRows)
	p.Check(bits.OnesCount(uint(max(c.PageRows, 0))) == 1, "page_rows is a power of two, not %d: a page is a subtree", c.PageRows)
	within("max_tasks_per_run", c.MaxTasksPerRun, maxFanOut)
	within("max_dispatch_attempts", c.MaxDispatchAttempts, maxAttempts)
	within("max_in_flight_per_consumer", c.MaxInFlightPerConsumer, maxSlots)
	p.Check(c.MaxRows >= 1, "max_rows is at least 1")
	p.Check(c.MaxPages >= 1, "max_pages is at least 1")
	p.Check(c.MaxErrorItems >= 0 && c.MaxErrorChars >= 0, "max_error_items and max_error_chars are not negative")
}

func (c *Config) checkTimes(p *config.Problems) {
	for name, d := range map[string]time.Duration{
		"lease": c.Lease, "claim_lease": c.ClaimLease, "stall_limit": c.StallLimit, "dispatch_give_up": c.DispatchGiveUp,
		"backoff.base": c.Backoff.Base, "backoff.cap": c.Backoff.Cap, "scan_interval": c.ScanInterval, "dispatch.timeout": c.Dispatch.Timeout,
	} {
		p.Check(d > 0, "%s is a time above 0", name)
	}
	p.Check(c.ScanInitialDelay >= 0, "scan_initial_delay is not negative")
	p.Check(c.Retention >= 0, "retention is not negative; 0 keeps everything")
	p.Check(c.Backoff.Base <= c.Backoff.Cap, "backoff.base %s is above backoff.cap %s", c.Backoff.Base, c.Backoff.Cap)
	// Twice: the call itself and its conclusion.
	p.Check(2*c.Dispatch.Timeout < c.ClaimLease, "dispatch.timeout %s, taken twice, does not fit into claim_lease %s", c.Dispatch.Timeout, c.ClaimLease)
	p.Check(c.StallLimit < c.ClaimLease, "stall_limit %s is not below claim_lease %s", c.StallLimit, c.ClaimLease)
	p.Check(c.ClaimLease < c.Lease, "claim_lease %s is not below lease %s: a consumer reports more rarely than a worker renews", c.ClaimLease, c.Lease)
	p.Check(c.Lease < c.DispatchGiveUp, "lease %s is not below dispatch_give_up %s", c.Lease, c.DispatchGiveUp)
}

func (c *Config) policy() task.Policy {
	return task.Policy{
		MaxAttempts: c.MaxDispatchAttempts, Slots: c.MaxInFlightPerConsumer, Lease: c.Lease, ClaimLease: c.ClaimLease,
		GiveUp: c.DispatchGiveUp, BackoffBase: c.Backoff.Base, BackoffCap: c.Backoff.Cap,
	}
}

// mostRows is the tighter of max_rows and max_pages, and its name.
func (c *Config) mostRows() (limit int64, name string) {
	if byPages := int64(c.MaxPages) * int64(c.PageSize); byPages < int64(c.MaxRows) {
		return byPages, "max_pages"
	}
	return int64(c.MaxRows), "max_rows"
}
