package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/refresh"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/internal/auditlog"
	"lockstep.dev/services/internal/metrics"
	"lockstep.dev/services/internal/tracing"
)

// Metrics bounds what the metrics cost.
type Metrics struct {
	// Interval at which figures are read from the database, at least 5 s.
	Interval time.Duration `koanf:"interval"`
}

const (
	figuresInterval = 10 * time.Second
	figuresTimeout  = 3 * time.Second
	sealEvery       = time.Second
)

func (c *Config) checkObserved(p *config.Problems) {
	p.Check(c.Metrics.Interval >= metrics.ShortestInterval, "metrics.interval is at least %s", metrics.ShortestInterval)
	p.Add("tracing", c.Tracing.Validate())
}

// counters are what the worker does, as it does it.
type counters struct {
	found, outcomes, withheld *prometheus.CounterVec
}

func newCounters(registry prometheus.Registerer) (*counters, error) {
	vector := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	c := &counters{
		found:    vector("lockstep_differences_total", "Differences found, by the class first found.", "class"),
		outcomes: vector("lockstep_outcomes_total", "What became of differences, by outcome: repaired, retired, quarantined and so on.", "outcome"),
		withheld: vector("lockstep_retirements_withheld_total", "Runs whose retirements were not made, by code.", "code"),
	}
	for _, collector := range []prometheus.Collector{c.found, c.outcomes, c.withheld} {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	// All are there from the start, at zero: an alert on a rise must see one.
	for _, class := range protocol.Classes() {
		c.found.WithLabelValues(string(class))
	}
	for _, outcome := range []protocol.Outcome{
		protocol.Repaired, protocol.Settled, protocol.Retired, protocol.Reported, protocol.Deferred, protocol.Exhausted, protocol.Quarantined,
	} {
		c.outcomes.WithLabelValues(string(outcome))
	}
	for _, code := range []fault.Reason{fault.RetireBreaker, fault.ExtrasLimit, fault.RollbackDetected} {
		c.withheld.WithLabelValues(string(code))
	}
	return c, nil
}

func (c *counters) tally() store.Tally {
	return store.Tally{
		Found:   func(class protocol.Class, n int) { c.found.WithLabelValues(string(class)).Add(float64(n)) },
		Outcome: func(outcome protocol.Outcome, n int) { c.outcomes.WithLabelValues(string(outcome)).Add(float64(n)) },
	}
}

func (c *counters) withholding(code fault.Reason) { c.withheld.WithLabelValues(string(code)).Inc() }

// observed is how the service is watched and accounts for itself.
type observed struct {
	audit    *auditlog.Server
	refusals *auditlog.Refusals
	loops    []func(context.Context) error
}

// watching is what the parts of observe read.
type watching struct {
	cfg       *Config
	log       *zap.Logger
	key       *identity.KeyFile
	signer    *evidence.Signer
	store     *store.Store
	pool      *pgxpool.Pool
	pools     map[string]*pgxpool.Pool
	refreshes *refresh.Engine
	now       func() time.Time
}

// observe registers the metrics and makes the audit log's own parts.
func observe(ctx context.Context, registry prometheus.Registerer, w watching) (*observed, error) {
	if err := metrics.RegisterProcess(registry, w.pools, store.Site, refresh.Site, auditlog.Site); err != nil {
		return nil, err
	}
	if err := metrics.Register(ctx, registry, w.reading()); err != nil {
		return nil, err
	}
	err := pg.Await(ctx, waiting(w.log), func() error { return auditlog.NoteKeys(ctx, w.pool, w.key, w.cfg.TrustFile) })
	if err != nil {
		return nil, err
	}
	sealer := &auditlog.Sealer{
		Pool: w.pool, AppKey: w.cfg.AppKey, Signer: w.signer, Worker: workerName(), Every: sealEvery, Now: w.now, Log: w.log,
	}
	refusals := &auditlog.Refusals{Pool: w.pool, Now: w.now, Log: w.log}
	return &observed{
		audit: &auditlog.Server{Pool: w.pool}, refusals: refusals,
		loops: []func(context.Context) error{sealer.Run, refusals.Run},
	}, nil
}

// reading says which figures of the consumer's database are shown.
func (w watching) reading() metrics.Reading {
	return metrics.Reading{
		Figures: []metrics.Figure{
			{Name: "lockstep_work", Help: "Accepted tasks by state.", Labels: []string{"state"}},
			{Name: "lockstep_work_paused", Help: "Queued tasks that an operator paused."},
			{Name: "lockstep_work_oldest_due_seconds", Help: "How long the oldest queued task has been due."},
			{Name: "lockstep_refresh_tasks", Help: "Refresh tasks by state.", Labels: []string{"state"}},
			{Name: "lockstep_refresh_exhausted", Help: "Refresh tasks that failed as often as they may."},
			{Name: "lockstep_refresh_lag_seconds", Help: "How long the longest waiting refresh task has been due."},
			{Name: "lockstep_audit_unsealed_rows", Help: "Rows of the audit log that no seal covers yet."},
			{Name: "lockstep_audit_unsealed_seconds", Help: "Age of the oldest row of the audit log that no seal covers yet."},
		},
		Read: w.readFigures, Interval: w.cfg.Metrics.Interval, Timeout: figuresTimeout, Now: w.now, Log: w.log,
	}
}

func (w watching) readFigures(ctx context.Context, emit metrics.Emit) error {
	f, err := w.store.Figures(ctx)
	if err != nil {
		return err
	}
	for _, state := range work.States() {
		emit("lockstep_work", float64(f.Work[state]), string(state))
	}
	emit("lockstep_work_paused", float64(f.Paused))
	emit("lockstep_work_oldest_due_seconds", f.OldestDue)
	r, err := w.refreshes.Figures(ctx)
	if err != nil {
		return err
	}
	for _, state := range []refresh.State{refresh.Pending, refresh.Running, refresh.Success, refresh.Failed, refresh.Cancelled} {
		emit("lockstep_refresh_tasks", float64(r.Tasks[state]), string(state))
	}
	emit("lockstep_refresh_exhausted", float64(r.Exhausted))
	emit("lockstep_refresh_lag_seconds", r.Lag)
	tail, err := auditlog.Unsealed(ctx, w.pool)
	if err != nil {
		return err
	}
	emit("lockstep_audit_unsealed_rows", float64(tail.Rows))
	emit("lockstep_audit_unsealed_seconds", tail.Oldest.Seconds())
	return nil
}

// openTracing makes the spans' provider; close it when the service has ended.
func openTracing(ctx context.Context, cfg *Config, log *zap.Logger) (*tracing.Provider, func(), error) {
	provider, err := tracing.Open(ctx, cfg.Tracing, "lockstep-consumer", cfg.AppKey, log)
	if err != nil {
		return nil, nil, err
	}
	return provider, func() {
		if err := provider.Close(ctx); err != nil {
			log.Warn("the last spans were lost", zap.Error(err))
		}
	}, nil
}
