// Package bench measures Lockstep end to end: both services as real processes
// over a private PostgreSQL, what they do timed by the database's clock, bytes
// counted on the consumer's connection, memory as the system tells it.
//
// It promises that a figure is only told of work that was done right: what a
// task found, repaired and retired is held to what was damaged, and every
// difference between the two is a deviation. Peers run on the same data in the
// same run, so that the ratio to them holds on a noisy machine.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"lockstep.dev/services/lockstep/internal/dev"
	"lockstep.dev/services/lockstep/internal/store"
)

// The parts that can be measured.
const (
	WhatReconcile = "reconcile"
	WhatRefresh   = "refresh"
)

// The peers of a reconciliation.
const (
	PeerFDW        = "fdw"
	PeerComparator = "pg_comparator"
)

// Options of a run.
type Options struct {
	What []string
	// Rows and Diff of a reconciliation: answers of one collection, and how many differ.
	Rows, Diff int
	Peers      []string
	// Scopes of a refresh, and the differences of each.
	Scopes, Differences int
	// Large is the differences of the one large scope; 0 leaves it out.
	Large int
	// Repeat is how often what can be repeated is: the median counts.
	Repeat int

	Dir  string
	Keep bool
	Note func(format string, args ...any)
	Now  func() time.Time
}

// Bounds: below there is nothing to see, above a machine of this kind takes hours.
const (
	minRows  = 1000
	maxRows  = 50_000_000
	maxRefs  = 10_000_000 // differences of a refresh, all scopes together
	maxTimes = 25
)

// Validate says everything that is wrong.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(len(o.What) > 0, "--what: give %s, %s or both", WhatReconcile, WhatRefresh)
	for _, what := range o.What {
		check(what == WhatReconcile || what == WhatRefresh, "--what: %q is neither %s nor %s", what, WhatReconcile, WhatRefresh)
	}
	for _, peer := range o.Peers {
		check(peer == PeerFDW || peer == PeerComparator, "--peers: %q is neither %s nor %s", peer, PeerFDW, PeerComparator)
	}
	check(o.Rows >= minRows && o.Rows <= maxRows, "--rows: %d is not between %d and %d", o.Rows, minRows, maxRows)
	// A fifth of the differences are rows to be retired; above a tenth of all rows that asks for an operator.
	check(o.Diff >= 0 && o.Diff <= o.Rows/3, "--diff: %d is not between 0 and a third of the rows", o.Diff)
	check(o.Scopes >= 1 && o.Differences >= 1 && o.Scopes <= maxRefs/max(o.Differences, 1), "--scopes and --differences: 1 to %d differences in all", maxRefs)
	check(o.Large >= 0 && o.Large <= maxRefs, "--large: %d is not between 0 and %d", o.Large, maxRefs)
	check(o.Repeat >= 1 && o.Repeat <= maxTimes, "--repeat: %d is not between 1 and %d", o.Repeat, maxTimes)
	return errors.Join(errs...)
}

func (o *Options) measures(what string) bool { return slices.Contains(o.What, what) }

// Result is what came out, in the shape of --json.
type Result struct {
	On        Machine         `json:"on"`
	Reconcile *Reconcile      `json:"reconcile,omitempty"`
	Peers     map[string]Peer `json:"peers,omitempty"`
	Refresh   *Refresh        `json:"refresh,omitempty"`
	// Deviations are the counts that are not the expected ones.
	Deviations []string `json:"deviations,omitempty"`
}

// Machine says on what was measured.
type Machine struct {
	System   string            `json:"system"`
	CPUs     int               `json:"cpus"`
	Load     string            `json:"load"` // averages of 1, 5 and 15 minutes when it began
	Postgres map[string]string `json:"postgres"`
}

func (r *Result) expect(what string, want, got any) {
	if want != got {
		r.Deviations = append(r.Deviations, fmt.Sprintf("%s: expected %v, got %v", what, want, got))
	}
}

// Run measures what the options name, one part after the other, each on a
// server of its own.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &Result{On: Machine{System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Load: load()}}
	if o.measures(WhatReconcile) {
		if err := measureReconcile(ctx, &o, r); err != nil {
			return nil, fmt.Errorf("measure a reconciliation: %w", err)
		}
	}
	if o.measures(WhatRefresh) {
		if err := measureRefresh(ctx, &o, r); err != nil {
			return nil, fmt.Errorf("measure a refresh: %w", err)
		}
	}
	return r, nil
}

// load is the system's load averages; "" where it does not tell them.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// sides are the two databases, looked at directly.
type sides struct{ center, consumer store.Pool }

// start starts a stack with an example of ours and opens its databases.
func start(ctx context.Context, o *Options, part string, example *dev.Example, params map[string]string) (*dev.Stack, *sides, error) {
	options := dev.Options{
		Example: example, Params: params, Statements: part == WhatRefresh, Keep: o.Keep, Note: o.Note, Now: o.Now,
	}
	if o.Dir != "" {
		options.Dir = o.Dir + "/" + part
	}
	stack, err := dev.Start(ctx, options)
	if err != nil {
		return nil, nil, err
	}
	s := &sides{}
	if s.center, s.consumer, err = stack.Pools(ctx); err != nil {
		return nil, nil, errors.Join(err, stack.Stop())
	}
	return stack, s, nil
}

// warm makes the first run as good as the others.
func (s *sides) warm(ctx context.Context) error {
	return errors.Join(s.center.Warm(ctx), s.consumer.Warm(ctx))
}

func (s *sides) close() {
	s.center.Close()
	s.consumer.Close()
}

// params are settings of a server that holds the data in memory. Nothing has to
// survive a crash of a server that is thrown away, so nothing is flushed: for
// everybody who is measured.
func params(bytes int64) map[string]string {
	const least, most = 256 << 20, 8 << 30
	return map[string]string{
		"shared_buffers": fmt.Sprintf("%dMB", min(max(bytes, least), most)>>20),
		"work_mem":       "256MB", "maintenance_work_mem": "512MB", // joins and index builds stay in memory
		"max_wal_size": "16GB", "checkpoint_timeout": "1h", // no checkpoint in the middle
		"wal_init_zero": "off", // a server that has run for a while writes into files that it has
		"jit":           "off", // compiling costs more than these statements win
		"fsync":         "off", "full_page_writes": "off",
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2]
}

// seconds to the millisecond.
func seconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond).Milliseconds()) / 1000
}
