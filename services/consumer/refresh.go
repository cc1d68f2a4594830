package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"lockstep.dev/migrations"
	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/serve"
	"lockstep.dev/services/consumer/internal/bills"
	"lockstep.dev/services/consumer/internal/refresh"
	"lockstep.dev/services/consumer/internal/refreshapi"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/scores"
	"lockstep.dev/services/consumer/internal/store"
)

// Refresh is the second worker's settings.
type Refresh struct {
	refresh.Settings `koanf:",squash"`

	// Projections that are kept here, bills and scores; none by default. Their
	// tables stand in schemas of their own, which migrate makes.
	Projections []string `koanf:"projections"`
	// PartialPayment: a success beside an open or failed part, or less paid than
	// planned, is "partly paid" instead of "paid".
	PartialPayment bool `koanf:"partial_payment"`
	// Dependents are the scopes that depend on reconciled records.
	Dependents []refresh.Dependent `koanf:"dependents"`
	// MaxConns of the refresh's own pool; a scope holds one for its transaction.
	MaxConns int32 `koanf:"max_conns"`
}

func refreshDefaults() Refresh { return Refresh{Settings: refresh.Defaults(), MaxConns: 8} }

const (
	// A scope of 50 000 differences is one transaction of seconds, whose guard
	// another task may wait for; both stay far below the lease.
	scopeStatement = 2 * time.Minute
	scopeLock      = time.Minute
	minScopeConns  = 2 // one scope, one conclusion
)

// Validate tells everything that is wrong.
func (c *Refresh) Validate() error {
	var p config.Problems
	p.Add("settings", c.Settings.Validate())
	p.Check(c.MaxConns >= minScopeConns, "max_conns is at least %d", minScopeConns)
	for _, name := range c.Projections {
		p.Check(name == bills.Name || name == scores.Name, "projections: there is no projection %q", name)
	}
	for stage := range c.Kick.Stages {
		p.Check(c.keeps(stage), "kick.stages.%s: projections does not name it", stage)
	}
	for i := range c.Dependents {
		p.Add(fmt.Sprintf("dependents[%d]", i), c.Dependents[i].Validate())
		p.Check(c.keeps(c.Dependents[i].Projection), "dependents[%d]: projections does not name %q", i, c.Dependents[i].Projection)
	}
	return p.Err()
}

func (c *Refresh) keeps(projection string) bool { return slices.Contains(c.Projections, projection) }

// migrate makes the tables of the projections that are kept here.
func (c *Refresh) migrate(ctx context.Context, dsn string) error {
	if c.keeps(bills.Name) {
		if err := pg.Migrate(ctx, dsn, migrations.Bills, "bills", "migrations_bills"); err != nil {
			return err
		}
	}
	if c.keeps(scores.Name) {
		return pg.Migrate(ctx, dsn, migrations.Scores, "scores", "migrations_scores")
	}
	return nil
}

// refresher is the second worker, put together.
type refresher struct {
	log        *zap.Logger
	engine     *refresh.Engine
	server     *refreshapi.Server
	dependents []refresh.Dependent
	pools      []*pgxpool.Pool
}

func (r *refresher) close() {
	for _, pool := range r.pools {
		pool.Close()
	}
}

// run works until ctx ends.
func (r *refresher) run(ctx context.Context) error {
	r.engine.Run(ctx)
	return nil
}

// openRefresh wires the second worker: pools of its own, so that neither worker
// waits for the other's connections.
func openRefresh(ctx context.Context, cfg *Config, log *zap.Logger) (r *refresher, err error) {
	r = &refresher{log: log}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	open := func(c pg.PoolConfig) (*pgxpool.Pool, error) {
		c.DSN = cfg.Store.DSN
		pool, err := pg.Open(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("refresh: %w", err)
		}
		r.pools = append(r.pools, pool)
		return pool, nil
	}
	pool, err := open(pg.PoolConfig{
		MaxConns: cfg.Refresh.MaxConns, StatementTimeout: scopeStatement, LockTimeout: scopeLock, AppName: "lockstep-consumer-refresh",
	})
	if err != nil {
		return nil, err
	}
	leases, err := open(pg.PoolConfig{MaxConns: leaseConns, StatementTimeout: leaseTimeout, AppName: "lockstep-consumer-refresh-leases"})
	if err != nil {
		return nil, err
	}
	options := refresh.Options{Pool: pool, Leases: leases, Worker: workerName(), Settings: cfg.Refresh.Settings, Log: log}
	r.server = &refreshapi.Server{ClaimsPerRun: cfg.Refresh.ClaimsPerRun}
	if cfg.Refresh.keeps(bills.Name) {
		options.Projections = append(options.Projections, bills.New(bills.Options{PartialPayment: cfg.Refresh.PartialPayment}))
		r.server.Bills = bills.NewReader(pool)
	}
	if cfg.Refresh.keeps(scores.Name) {
		options.Projections = append(options.Projections, scores.Projection{})
		r.server.Scores = scores.NewReader(pool)
	}
	if r.engine, err = refresh.New(options); err != nil {
		return nil, err
	}
	r.server.Engine = r.engine
	for _, d := range cfg.Refresh.Dependents {
		d.Payload = payloads[d.Projection]
		r.dependents = append(r.dependents, d)
	}
	return r, nil
}

// changed requests the refresh of what depends on repaired and retired records,
// in their transaction; nil where nothing does.
func (r *refresher) changed() repair.Changed {
	if len(r.dependents) == 0 {
		return nil
	}
	return func(ctx context.Context, e *store.Effect, contents [][]byte) error {
		requests, err := r.engine.RequestDependent(ctx, e.Tx, r.dependents, contents)
		if err != nil {
			return err
		}
		e.OnCommit(func() {
			r.engine.Committed(requests...)
			for _, request := range requests {
				if request.Outcome == refresh.Refused {
					r.log.Warn("a refresh of what depends on reconciled records was refused",
						zap.Stringer("task", request.TaskID), zap.String("code", string(request.Code)))
				}
			}
		})
		return nil
	}
}

// refreshOnce is one run, for a scheduler: of what is due, or of what a selector
// names. Its error, and so the exit code, says whether something failed. A
// selector that names nothing or does not parse runs nothing.
func refreshOnce(ctx context.Context, cfg *Config, selector []string, out io.Writer) error {
	var only refresh.Selector
	if len(selector) > 0 {
		var err error
		if only, err = refresh.ParseSelector([]byte(selector[0])); err != nil {
			return err
		}
	}
	log, err := serve.Logger(cfg.Log.Level, cfg.Log.Encoding)
	if err != nil {
		return err
	}
	r, err := openRefresh(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer r.close()
	var result refresh.RunResult
	if len(selector) > 0 {
		result, err = r.engine.RunSelected(ctx, "scheduler", only, cfg.Refresh.ClaimsPerRun)
	} else {
		result, err = r.engine.RunDue(ctx, cfg.Refresh.ClaimsPerRun)
	}
	_, printErr := fmt.Fprintf(out, "claims=%d succeeded=%d continued=%d failed=%d fenced=%d scopes=%d scopes_failed=%d\n",
		result.Claims, result.Succeeded, result.Continued, result.Failed, result.Fenced, result.Scopes, result.FailedScopes)
	return errors.Join(err, result.Err(), printErr)
}

// payloads ask a projection for scopes, in its own JSON.
var payloads = map[string]func([]refresh.Scope) ([]byte, error){bills.Name: billScopes, scores.Name: scores.ForScopes}

func billScopes(scopes []refresh.Scope) ([]byte, error) {
	type scope struct {
		StationID int64  `json:"station_id"`
		Month     string `json:"bill_month"`
	}
	request := struct {
		Trigger string  `json:"trigger"`
		Scopes  []scope `json:"scopes"`
	}{Trigger: refresh.ReconcileTrigger}
	for _, s := range scopes {
		request.Scopes = append(request.Scopes, scope{StationID: s.ID, Month: fmt.Sprintf("%06d", s.Month)})
	}
	raw, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("write a bills request: %w", err)
	}
	return raw, nil
}
