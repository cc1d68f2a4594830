package bench

import (
	"encoding/json"
	"strings"
	"testing"
)

func right() Options {
	return Options{What: []string{WhatReconcile}, Rows: 20_000, Diff: 100, Scopes: 1000, Differences: 100, Large: 50_000, Repeat: 3}
}

func TestOptions(t *testing.T) {
	ok := right()
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"--what: give":      func(o *Options) { o.What = nil },
		`--what: "all"`:     func(o *Options) { o.What = []string{"all"} },
		`--peers: "rsync"`:  func(o *Options) { o.Peers = []string{"rsync"} },
		"--rows: 999":       func(o *Options) { o.Rows, o.Diff = 999, 0 },
		"--diff: 6667":      func(o *Options) { o.Diff = 6667 },
		"--diff: -1":        func(o *Options) { o.Diff = -1 },
		"--scopes and":      func(o *Options) { o.Scopes = 0 },
		"--large: -1":       func(o *Options) { o.Large = -1 },
		"--repeat: 0":       func(o *Options) { o.Repeat = 0 },
		"--repeat: 26":      func(o *Options) { o.Repeat = 26 },
		"10000000 differen": func(o *Options) { o.Differences = 10_001 },
	} {
		t.Run(name, func(t *testing.T) {
			o := right()
			change(&o)
			if err := o.Validate(); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{2}, 2}, {[]float64{3, 1, 2}, 2}, {[]float64{9, 1}, 9}} {
		if got := median(c.values); got != c.want {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
	}
}

// measured is a whole result, with a peer that is not there.
func measured() *Result {
	statements := 11.14
	return &Result{
		On: Machine{System: "linux/amd64", CPUs: 2, Load: "0.10 0.20 0.30", Postgres: map[string]string{"server_version": "15.18", "shared_buffers": "2GB", "huge_pages": "off"}},
		Reconcile: &Reconcile{
			Rows: 1_000_000, Diff: 1000, MaterialiseSeconds: 4, EqualSeconds: 1.25, EqualWireBytes: 400_000, ContentSeconds: 8, ContentWireBytes: 400_000, ScatteredSeconds: 2.5, ScatteredRows: 20_000, FindSeconds: 2, FindWireBytes: 42_000_000,
			RepairSeconds: 4, RepairWireBytes: 58_000_000, CenterRSSBytes: 80_000_000, ConsumerRSSBytes: 40_000_000,
			Found: map[string]int64{"MISSING": 200}, Repaired: 800, Retired: 200, Repeat: 3,
		},
		Peers: map[string]Peer{
			PeerFDW:        {EqualSeconds: 2.5, ContentSeconds: 16, FindSeconds: 2.5, RepairSeconds: 10},
			PeerComparator: {Skipped: "it is not installed"},
		},
		Refresh: &Refresh{
			Scopes: 1000, Differences: 100_000, Seconds: 4, DifferencesPerSecond: 25_000, StatementsPerScope: &statements,
			StatementsBy: "pg_stat_statements", RSSBytes: 33_000_000, Repeat: 3,
			LargeScope: &LargeScope{Differences: 50_000, Seconds: 6, LeaseSeconds: 10, LeastLeaseSeconds: 6.6, LeaseKept: true, RSSBytes: 33_000_000},
		},
	}
}

func TestWrite(t *testing.T) {
	var out strings.Builder
	if err := Write(&out, measured()); err != nil {
		t.Fatal(err)
	}
	want := `1000000 rows, 1000 differences, median of 3

               seconds  rows/s  over the wire  fdw s  ratio
  materialise     4.00    250k              ·      ·      ·
        equal     1.25    800k         400 kB   2.50   0.50
    scattered     2.50    400k              ·   2.50   1.00
      content     8.00    125k         400 kB  16.00   0.50
         find     2.00    500k          42 MB   2.50   0.80
       repair     4.00    250k          58 MB  10.00   0.40

800 repaired, 200 repairs/s; 200 retired, 0 reported. Most memory: center 80 MB, consumer 40 MB.
pg_comparator was skipped: it is not installed.
Each task but its manifest, from the manifest's freezing to the acceptance of the report; content with its manifest.
scattered: equal sets after writes to 20000 rows that no VACUUM followed. content: equal sets, content hashed on both sides.

refresh               1000 scopes, 100000 differences, median of 3
seconds               4.00
differences a second  25000
statements a scope    11.14, by pg_stat_statements
most memory           33 MB
one scope of 50000    6.00 s; its lease of 10 s was kept, at least 6.6 s were left; 33 MB of memory

On linux/amd64, 2 CPUs, load average 0.10 0.20 0.30 when it began; PostgreSQL 15.18, nothing flushed (fsync off), 2GB of shared buffers, huge pages off.
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestResultAsJSON(t *testing.T) {
	text, err := json.Marshal(measured())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"reconcile":{"rows":1000000,"diff":1000,"materialise_seconds":4,"equal_seconds":1.25,"equal_wire_bytes":400000,"content_seconds":8,"content_wire_bytes":400000,"scattered_seconds":2.5,"scattered_rows":20000,"find_seconds":2,` +
			`"find_wire_bytes":42000000,"repair_seconds":4,"repair_wire_bytes":58000000,"center_rss_bytes":80000000,"consumer_rss_bytes":40000000,`,
		`"peers":{"fdw":{"equal_seconds":2.5,"content_seconds":16,"find_seconds":2.5,"repair_seconds":10},"pg_comparator":{"equal_seconds":0,"content_seconds":0,"find_seconds":0,"repair_seconds":0,"skipped":"it is not installed"}}`,
		`"refresh":{"scopes":1000,"differences":100000,"seconds":4,"differences_per_second":25000,"statements_per_scope":11.14,"statements_counted_by":"pg_stat_statements","rss_bytes":33000000,`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s\nlacks\n%s", text, want)
		}
	}
}
