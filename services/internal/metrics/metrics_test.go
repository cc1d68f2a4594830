package metrics_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"lockstep.dev/services/internal/metrics"
)

// TestScrapingReadsAtMostOncePerInterval: whoever scrapes how often, the
// database is asked once in an interval.
func TestScrapingReadsAtMostOncePerInterval(t *testing.T) {
	now, reads := time.Unix(0, 0), 0
	var broken error
	registry := prometheus.NewPedanticRegistry()
	err := metrics.Register(t.Context(), registry, metrics.Reading{
		Figures: []metrics.Figure{{Name: "lockstep_things", Help: "Things.", Labels: []string{"kind"}}},
		Read: func(_ context.Context, emit metrics.Emit) error {
			reads++
			emit("lockstep_things", float64(reads), "a")
			return broken
		},
		Interval: time.Second, // too short: the shortest one holds
		Timeout:  time.Second, Now: func() time.Time { return now }, Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := func(text string, n int) {
		t.Helper()
		if err := testutil.GatherAndCompare(registry, strings.NewReader(text)); err != nil {
			t.Error(err)
		}
		if reads != n {
			t.Errorf("%d reads, want %d", reads, n)
		}
	}
	const ok = "# HELP lockstep_figures_ok 1 where the figures could be read from the database, 0 where they are missing.\n# TYPE lockstep_figures_ok gauge\nlockstep_figures_ok "
	const things = "\n# HELP lockstep_things Things.\n# TYPE lockstep_things gauge\nlockstep_things{kind=\"a\"} "
	want(ok+"1"+things+"1\n", 1)
	now = now.Add(4 * time.Second)
	want(ok+"1"+things+"1\n", 1)
	now = now.Add(time.Second)
	want(ok+"1"+things+"2\n", 2)

	// What can't be read is missing; it is not asked for more often either.
	broken = errors.New("away")
	now = now.Add(5 * time.Second)
	want(ok+"0\n", 3)
	want(ok+"0\n", 3)
	broken = nil
	now = now.Add(5 * time.Second)
	want(ok+"1"+things+"4\n", 4)
}
