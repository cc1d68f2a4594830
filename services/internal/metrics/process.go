package metrics

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lockstep.dev/pkg/claim"
)

// RegisterProcess shows the process's pools by name, and its fences: how often
// a worker found that somebody else owns its row. sites are those of the service.
func RegisterProcess(registry prometheus.Registerer, pools map[string]*pgxpool.Pool, sites ...claim.Site) error {
	for _, collector := range []prometheus.Collector{poolCollector(pools), fences(sites)} {
		if err := registry.Register(collector); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

var (
	poolConns   = prometheus.NewDesc("lockstep_pool_connections", "Connections of a pool by what they do: acquired, idle, constructing.", []string{"pool", "state"}, nil)
	poolMost    = prometheus.NewDesc("lockstep_pool_max_connections", "The most connections a pool may hold.", []string{"pool"}, nil)
	poolAcquire = prometheus.NewDesc("lockstep_pool_acquires_total", "Connections taken from a pool.", []string{"pool"}, nil)
	poolWaits   = prometheus.NewDesc("lockstep_pool_waits_total", "Connections that had to be waited for.", []string{"pool"}, nil)
	poolWaited  = prometheus.NewDesc("lockstep_pool_acquire_seconds_total", "Time spent taking connections.", []string{"pool"}, nil)
	poolGivenUp = prometheus.NewDesc("lockstep_pool_canceled_acquires_total", "Waits for a connection that were given up.", []string{"pool"}, nil)
	fenceCount  = prometheus.NewDesc("lockstep_fences_total", "Writes refused because the claim had another owner, by the place of the claim.", []string{"site"}, nil)
)

type poolCollector map[string]*pgxpool.Pool

func (p poolCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{poolConns, poolMost, poolAcquire, poolWaits, poolWaited, poolGivenUp} {
		to <- desc
	}
}

func (p poolCollector) Collect(to chan<- prometheus.Metric) {
	for name, pool := range p {
		stat := pool.Stat()
		send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(desc, kind, value, append([]string{name}, labels...)...)
		}
		send(poolConns, prometheus.GaugeValue, float64(stat.AcquiredConns()), "acquired")
		send(poolConns, prometheus.GaugeValue, float64(stat.IdleConns()), "idle")
		send(poolConns, prometheus.GaugeValue, float64(stat.ConstructingConns()), "constructing")
		send(poolMost, prometheus.GaugeValue, float64(stat.MaxConns()))
		send(poolAcquire, prometheus.CounterValue, float64(stat.AcquireCount()))
		send(poolWaits, prometheus.CounterValue, float64(stat.EmptyAcquireCount()))
		send(poolWaited, prometheus.CounterValue, stat.AcquireDuration().Seconds())
		send(poolGivenUp, prometheus.CounterValue, float64(stat.CanceledAcquireCount()))
	}
}

type fences []claim.Site

func (f fences) Describe(to chan<- *prometheus.Desc) { to <- fenceCount }

func (f fences) Collect(to chan<- prometheus.Metric) {
	for _, site := range f {
		to <- prometheus.MustNewConstMetric(fenceCount, prometheus.CounterValue, float64(site.Fences()), site.Name)
	}
}
