package delivery

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what delivery does. A nil one counts nothing.
type Metrics struct {
	changes    prometheus.Counter
	deliveries *prometheus.CounterVec
}

// NewMetrics registers the counters.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		changes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_outbox_changes_total", Help: "Changes read from the host's outbox.",
		}),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_deliveries_total", Help: "Ended attempts to deliver a record, by consumer, state and stable code.",
		}, []string{"consumer", "state", "code"}),
	}
	for _, collector := range []prometheus.Collector{m.changes, m.deliveries} {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) read(changes int) {
	if m != nil {
		m.changes.Add(float64(changes))
	}
}

func (m *Metrics) ended(consumer, state, code string) {
	if m != nil {
		m.deliveries.WithLabelValues(consumer, state, code).Inc()
	}
}
