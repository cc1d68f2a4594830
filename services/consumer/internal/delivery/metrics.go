package delivery

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what came. A nil one counts nothing.
type Metrics struct {
	words *prometheus.CounterVec
}

// NewMetrics registers the counter.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{words: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_delivered_snapshots_total", Help: "Snapshots that the center delivered, by what became of them.",
	}, []string{"outcome"})}
	if err := registry.Register(m.words); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return m, nil
}

func (m *Metrics) received(outcome string) {
	if m != nil {
		m.words.WithLabelValues(outcome).Inc()
	}
}
