// Package metrics is what both services show beside their gRPC calls: figures
// read from a database, connection pools, and fences.
//
// It promises that scraping can't load a database: figures are read at most
// once an interval, whoever asks how often. No label holds content, a key or a
// token, and every label is bounded by the settings or by a closed set of words.
package metrics

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// ShortestInterval between two reads of the figures.
const ShortestInterval = 5 * time.Second

// Figure is a gauge read from a database.
type Figure struct {
	Name, Help string
	Labels     []string
}

// Emit gives a figure's value for its labels.
type Emit func(figure string, value float64, labels ...string)

// Reading is where figures come from.
type Reading struct {
	Figures []Figure
	// Read reads them all, in a few cheap statements.
	Read     func(ctx context.Context, emit Emit) error
	Interval time.Duration // at least ShortestInterval
	Timeout  time.Duration
	Now      func() time.Time
	Log      *zap.Logger
}

// gauges is the collector of a Reading.
type gauges struct {
	Reading

	ctx   context.Context // the service's
	descs map[string]*prometheus.Desc
	ok    *prometheus.Desc

	mu      sync.Mutex
	read    time.Time
	failing bool
	last    []prometheus.Metric
}

// Register shows the figures. ctx ends with the service.
func Register(ctx context.Context, registry prometheus.Registerer, r Reading) error {
	g := &gauges{
		Reading: r, ctx: ctx, descs: map[string]*prometheus.Desc{},
		ok: prometheus.NewDesc("lockstep_figures_ok", "1 where the figures could be read from the database, 0 where they are missing.", nil, nil),
	}
	g.Interval = max(g.Interval, ShortestInterval)
	for _, f := range r.Figures {
		g.descs[f.Name] = prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
	}
	if err := registry.Register(g); err != nil {
		return fmt.Errorf("register figures: %w", err)
	}
	return nil
}

// Describe is part of prometheus.Collector.
func (g *gauges) Describe(to chan<- *prometheus.Desc) {
	to <- g.ok
	for _, desc := range g.descs {
		to <- desc
	}
}

// Collect is part of prometheus.Collector. Old figures are never shown in place
// of ones that can't be read: a gauge that stands still tells lies.
func (g *gauges) Collect(to chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.Now(); g.read.IsZero() || now.Sub(g.read) >= g.Interval {
		g.refresh()
		g.read = now
	}
	ok := 1.0
	if g.failing {
		ok = 0
	}
	to <- prometheus.MustNewConstMetric(g.ok, prometheus.GaugeValue, ok)
	for _, metric := range g.last {
		to <- metric
	}
}

func (g *gauges) refresh() {
	ctx, cancel := context.WithTimeout(g.ctx, g.Timeout)
	defer cancel()
	var fresh []prometheus.Metric
	err := g.Read(ctx, func(figure string, value float64, labels ...string) {
		fresh = append(fresh, prometheus.MustNewConstMetric(g.descs[figure], prometheus.GaugeValue, value, labels...))
	})
	if err != nil {
		if !g.failing && g.ctx.Err() == nil {
			g.Log.Warn("the figures for the metrics can't be read; they are missing until they can", zap.Error(err))
		}
		fresh = nil
	}
	g.failing, g.last = err != nil, fresh
}
