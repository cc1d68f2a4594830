package main

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/internal/auditlog"
	"lockstep.dev/services/internal/metrics"
	"lockstep.dev/services/internal/tracing"
)

// Metrics bounds what the metrics cost and show.
type Metrics struct {
	// MaxScopes is how many scopes are named, the longest unproven first.
	MaxScopes int `koanf:"max_scopes"`
	// Interval at which figures are read from the database, at least 5 s.
	Interval time.Duration `koanf:"interval"`
}

const (
	defaultScopes   = 200
	mostScopes      = 5000 // each is a time series
	figuresInterval = 10 * time.Second
	figuresTimeout  = 3 * time.Second
	sealEvery       = time.Second
)

func metricsDefaults() Metrics {
	return Metrics{MaxScopes: defaultScopes, Interval: figuresInterval}
}

func (c *Config) checkObserved(p *config.Problems) {
	p.Check(c.Metrics.MaxScopes >= 1 && c.Metrics.MaxScopes <= mostScopes, "metrics.max_scopes is 1 to %d, not %d", mostScopes, c.Metrics.MaxScopes)
	p.Check(c.Metrics.Interval >= metrics.ShortestInterval, "metrics.interval is at least %s", metrics.ShortestInterval)
	p.Add("tracing", c.Tracing.Validate())
}

// taskStates are shown even where no task is in them.
var taskStates = []protocol.State{
	protocol.Queued, protocol.Dispatched, protocol.Running, protocol.Completed, protocol.Partial, protocol.Failed, protocol.Cancelled,
}

// observed is how the service is watched and accounts for itself.
type observed struct {
	audit    *auditlog.Server
	refusals *auditlog.Refusals
	loops    []func(context.Context) error
}

// observe registers the metrics and makes the audit log's own parts.
func (s *system) observe(ctx context.Context, registry prometheus.Registerer) (*observed, error) {
	pools := map[string]*pgxpool.Pool{"store": s.storePool, "source": s.sourcePool}
	if err := metrics.RegisterProcess(registry, pools, store.MaterialiseSite, store.DispatchSite, store.DeliverySite, auditlog.Site); err != nil {
		return nil, err
	}
	if err := metrics.Register(ctx, registry, s.reading()); err != nil {
		return nil, err
	}
	err := pg.Await(ctx, waiting(s.log), func() error { return auditlog.NoteKeys(ctx, s.storePool, s.key, s.cfg.TrustFile) })
	if err != nil {
		return nil, err
	}
	sealer := &auditlog.Sealer{
		Pool: s.storePool, AppKey: s.cfg.AppKey, Signer: s.signer, Worker: workerName(), Every: sealEvery, Now: s.now, Log: s.log,
	}
	refusals := &auditlog.Refusals{Pool: s.storePool, Now: s.now, Log: s.log}
	return &observed{
		audit: &auditlog.Server{Pool: s.storePool}, refusals: refusals,
		loops: []func(context.Context) error{sealer.Run, refusals.Run},
	}, nil
}

// reading says which figures of the center's database are shown.
func (s *system) reading() metrics.Reading {
	return metrics.Reading{
		Figures: []metrics.Figure{
			{Name: "lockstep_tasks", Help: "Tasks by state.", Labels: []string{"state"}},
			{Name: "lockstep_task_oldest_waiting_seconds", Help: "Age of the oldest task that nobody works yet."},
			{Name: "lockstep_scopes", Help: "Scopes with an effective grant."},
			{Name: "lockstep_scopes_never_proven", Help: "Scopes that no task ever found equal."},
			{
				Name: "lockstep_scope_proven_seconds", Labels: []string{"consumer", "tenant", "collection"},
				Help: "Seconds since a scope was last proven equal, or since its grant was set; at most metrics.max_scopes, the worst first.",
			},
			{Name: "lockstep_audit_unsealed_rows", Help: "Rows of the audit log that no seal covers yet."},
			{Name: "lockstep_audit_unsealed_seconds", Help: "Age of the oldest row of the audit log that no seal covers yet."},
		},
		Read: s.readFigures, Interval: s.cfg.Metrics.Interval, Timeout: figuresTimeout, Now: s.now, Log: s.log,
	}
}

func (s *system) readFigures(ctx context.Context, emit metrics.Emit) error {
	f, err := s.store.Figures(ctx, s.cfg.Metrics.MaxScopes)
	if err != nil {
		return err
	}
	for _, state := range taskStates {
		emit("lockstep_tasks", float64(f.Tasks[state]), string(state))
	}
	emit("lockstep_task_oldest_waiting_seconds", f.OldestWaiting)
	emit("lockstep_scopes", float64(f.Scopes))
	emit("lockstep_scopes_never_proven", float64(f.NeverProven))
	for _, scope := range f.Worst {
		emit("lockstep_scope_proven_seconds", scope.Seconds, scope.Consumer, strconv.FormatInt(scope.TenantID, 10), scope.CollectionID)
	}
	tail, err := auditlog.Unsealed(ctx, s.storePool)
	if err != nil {
		return err
	}
	emit("lockstep_audit_unsealed_rows", float64(tail.Rows))
	emit("lockstep_audit_unsealed_seconds", tail.Oldest.Seconds())
	return nil
}

// openTracing makes the spans' provider; close it when the service has ended.
func openTracing(ctx context.Context, cfg *Config, log *zap.Logger) (*tracing.Provider, func(), error) {
	provider, err := tracing.Open(ctx, cfg.Tracing, "lockstep-center", cfg.AppKey, log)
	if err != nil {
		return nil, nil, err
	}
	return provider, func() {
		if err := provider.Close(ctx); err != nil {
			log.Warn("the last spans were lost", zap.Error(err))
		}
	}, nil
}
