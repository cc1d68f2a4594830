package main

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"lockstep.dev/pkg/config"
	"lockstep.dev/services/center/internal/delivery"
	"lockstep.dev/services/center/internal/loop"
	"lockstep.dev/services/center/internal/store"
)

// Delivery sends records that changed, as the outbox of the dataset names them.
type Delivery struct {
	// Enabled sends the changes that dataset.outbox names.
	Enabled bool `koanf:"enabled"`
	// Timeout of one attempt.
	Timeout time.Duration `koanf:"timeout"`
	// MaxAttempts before a delivery has failed and waits for an operator.
	MaxAttempts int     `koanf:"max_attempts"`
	Backoff     Backoff `koanf:"backoff"`
	// Workers that send at the same time.
	Workers int `koanf:"workers"`
	// Retention of deliveries that ended well; 0 keeps them. Failed ones stay.
	Retention time.Duration `koanf:"retention"`
}

func deliveryDefaults() Delivery {
	return Delivery{
		Timeout: 5 * time.Second, MaxAttempts: 10, Backoff: Backoff{Base: 15 * time.Second, Cap: time.Hour},
		Workers: 4, Retention: 7 * 24 * time.Hour,
	}
}

// maxWorkers: each holds a connection and a record while it sends.
const maxWorkers = 64

func (c *Config) checkDelivery(p *config.Problems) {
	d := c.Delivery
	p.Check(!d.Enabled || c.Dataset.Outbox.Mapped(), "delivery.enabled needs dataset.outbox: without it no change is known")
	p.Check(d.MaxAttempts >= 1 && d.MaxAttempts <= maxAttempts, "delivery.max_attempts is 1 to %d, not %d", maxAttempts, d.MaxAttempts)
	p.Check(d.Workers >= 1 && d.Workers <= maxWorkers, "delivery.workers is 1 to %d, not %d", maxWorkers, d.Workers)
	p.Check(d.Timeout > 0 && d.Backoff.Base > 0, "delivery.timeout and delivery.backoff.base are times above 0")
	p.Check(d.Backoff.Base <= d.Backoff.Cap, "delivery.backoff.base %s is above delivery.backoff.cap %s", d.Backoff.Base, d.Backoff.Cap)
	// Twice: the attempt itself and its conclusion.
	p.Check(2*d.Timeout < c.ClaimLease, "delivery.timeout %s, taken twice, does not fit into claim_lease %s", d.Timeout, c.ClaimLease)
	p.Check(d.Retention >= 0, "delivery.retention is not negative; 0 keeps everything")
}

// deliveryLoops are ordinary delivery, as far as it is switched on.
func (s *system) deliveryLoops(registry *prometheus.Registry) ([]func(context.Context) error, error) {
	set := s.cfg.Delivery
	if !set.Enabled {
		return nil, nil
	}
	metrics, err := delivery.NewMetrics(registry)
	if err != nil {
		return nil, err
	}
	policy := store.DeliveryPolicy{
		ClaimLease: s.cfg.ClaimLease, MaxAttempts: set.MaxAttempts, BackoffBase: set.Backoff.Base, BackoffCap: set.Backoff.Cap,
	}
	reader := &delivery.Reader{Store: s.store, Source: s.source, Metrics: metrics, Wake: s.kicks.deliver.Wake, Log: s.log}
	sender := &delivery.Sender{
		Store: s.store, Source: s.source, AppKey: s.cfg.AppKey, Signer: s.signer, Targets: s.targets, Policy: policy,
		Timeout: set.Timeout, Worker: workerName(), Metrics: metrics, Log: s.log, Now: s.now, NewID: uuid.New,
	}
	sweeper := &delivery.Sweeper{Store: s.store, Policy: policy, Retention: set.Retention, Wake: s.kicks.deliver.Wake, Log: s.log}
	loops := []*loop.Loop{
		{Name: "outbox", Step: reader.ReadOnce, Interval: min(s.cfg.ScanInterval, outboxInterval)},
		{Name: "delivery sweep", Step: sweeper.SweepOnce, Interval: s.cfg.ScanInterval},
	}
	for range set.Workers {
		loops = append(loops, &loop.Loop{Name: "delivery", Step: sender.SendOnce, Interval: s.cfg.ScanInterval, Kick: s.kicks.deliver})
	}
	runs := make([]func(context.Context) error, len(loops))
	for i, l := range loops {
		l.First, l.Log = s.cfg.ScanInitialDelay, s.log
		runs[i] = func(ctx context.Context) error { l.Run(ctx); return nil }
	}
	return runs, nil
}

// outboxInterval between two looks at the outbox, which nothing announces.
const outboxInterval = time.Second
