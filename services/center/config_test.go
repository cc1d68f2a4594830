package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep.dev/pkg/config"
)

const good = `
app_key: form-center
key_file: center.key
trust_file: trust.json
listen: {grpc: "127.0.0.1:0", http: "127.0.0.1:0"}
transport: {insecure: true}
store: {dsn: "host=/tmp dbname=center"}
source: {dsn: "host=/tmp dbname=center"}
targets: {svc-hall: "127.0.0.1:7101", svc.with.dots: "127.0.0.1:7102"}
dataset:
  name: answers
  table: answers.answer
  key_kind: uuid
  columns: {key: answer_id, tenant: tenant_id, collection: form_id, revision: revision, deleted: deleted, schema_version: version, sequence: seq_no, content: values}
`

func loadText(t *testing.T, text string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "center.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := defaults()
	return cfg, config.Load(path, envPrefix, cfg)
}

func TestConfigDefaults(t *testing.T) {
	cfg, err := loadText(t, good)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Dispatch.Enabled || cfg.Schedule.Enabled || cfg.Migrate {
		t.Error("something is switched on by default")
	}
	if cfg.Lease != 900*time.Second || cfg.ClaimLease != 60*time.Second || cfg.MaxDispatchAttempts != 4 || cfg.MaxInFlightPerConsumer != 1 ||
		cfg.PageSize != 200 || cfg.MaxRows != 20000 || cfg.MaxPages != 200 || cfg.MaxTasksPerRun != 20 || cfg.DispatchGiveUp != 12*time.Hour ||
		cfg.Backoff.Base != time.Minute || cfg.Backoff.Cap != time.Hour || cfg.ScanInterval != 15*time.Second || cfg.ScanInitialDelay != 45*time.Second ||
		cfg.MaxErrorItems != 50 || cfg.MaxErrorChars != 8000 || cfg.Schedule.Cron != "0 0 2 * * *" || cfg.Schedule.Zone != "Asia/Shanghai" {
		t.Errorf("the defaults are %+v", cfg)
	}
	if cfg.Targets["svc.with.dots"] != "127.0.0.1:7102" {
		t.Errorf("targets %v", cfg.Targets)
	}
}

// Two manifests and the calls share the source's pool.
func TestReadersFitIntoThePool(t *testing.T) {
	for line, want := range map[string]int{
		"source: {dsn: x, max_conns: 4}":                                                          1,
		"source: {dsn: x, max_conns: 5}\nload_guard: {max_active: 9}":                             1,
		"source: {dsn: x, max_conns: 10}\nmaterialise: {readers: 4}":                              4,
		"source: {dsn: x, max_conns: 11}\nmaterialise: {readers: 4}\nload_guard: {max_active: 9}": 4,
	} {
		cfg, err := loadText(t, strings.Replace(good, `source: {dsn: "host=/tmp dbname=center"}`, line, 1))
		if err != nil || cfg.readers() != want {
			t.Errorf("%s: %d readers, %v", line, cfg.readers(), err)
		}
	}
	for line, want := range map[string]string{
		"source: {dsn: x, max_conns: 3}":                                                          "source.max_conns is at least 4, not 3",
		"source: {dsn: x, max_conns: 4}\nload_guard: {max_active: 9}":                             "source.max_conns is at least 5, not 4",
		"source: {dsn: x, max_conns: 10}\nmaterialise: {readers: 4}\nload_guard: {max_active: 9}": "and 3 more do not fit",
	} {
		_, err := loadText(t, strings.Replace(good, `source: {dsn: "host=/tmp dbname=center"}`, line, 1))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
	cfg, err := loadText(t, good)
	if got := cfg.readers(); err != nil || got < 1 || got > 4 {
		t.Errorf("by default: %d readers, %v", got, err)
	}
}

func TestConfigFromTheEnvironment(t *testing.T) {
	t.Setenv("LOCKSTEP_CENTER__DISPATCH__ENABLED", "true")
	t.Setenv("LOCKSTEP_CENTER__SCAN_INTERVAL", "1s")
	cfg, err := loadText(t, good)
	if err != nil || !cfg.Dispatch.Enabled || cfg.ScanInterval != time.Second {
		t.Errorf("dispatch %t, scan interval %s, %v", cfg.Dispatch.Enabled, cfg.ScanInterval, err)
	}
}

func TestConfigRefuses(t *testing.T) {
	for setting, line := range map[string]string{
		"leese":                      "leese: 900s",
		"lease":                      "lease: 900",
		"claim_lease":                "claim_lease: 20m",
		"dispatch.timeout":           "dispatch: {timeout: 30s}",
		"stall_limit":                "stall_limit: 60s",
		"dispatch_give_up":           "dispatch_give_up: 10m",
		"page_rows":                  "page_rows: 100",
		"page_size":                  "page_size: 501",
		"max_rows":                   "max_rows: 0",
		"max_in_flight_per_consumer": "max_in_flight_per_consumer: 0",
		"backoff.base":               "backoff: {base: 2h}",
		"scan_interval":              "scan_interval: 0s",
		"retention":                  "retention: -1h",
		"page_bytes":                 "page_bytes: 4000000",
		"materialise.readers":        "materialise: {readers: 5}",
		"source_rows_per_second":     "limits: {source_rows_per_second: 99}",
		"peer_calls_per_second":      "limits: {peer_calls_per_second: 0}",
		"operator_calls_per_second":  "limits: {operator_calls_per_second: -1}",
		"load_guard":                 "load_guard: {max_active: -1}",
		"interval":                   "load_guard: {interval: 2m}",
		"cron":                       `schedule: {cron: "every day"}`,
		"zone":                       `schedule: {zone: "Nowhere"}`,
	} {
		t.Run(setting, func(t *testing.T) {
			if _, err := loadText(t, good+line+"\n"); err == nil || !strings.Contains(err.Error(), setting) {
				t.Errorf("%s gave %v", line, err)
			}
		})
	}
	t.Run("everything_that_is_wrong_is_told_at_once", func(t *testing.T) {
		_, err := loadText(t, "page_rows: 3\n")
		for _, setting := range []string{"app_key", "key_file", "trust_file", "store.dsn", "source.dsn", "listen.grpc", "transport", "dataset.table", "page_rows"} {
			if err == nil || !strings.Contains(err.Error(), setting) {
				t.Errorf("%s is not told: %v", setting, err)
			}
		}
	})
}
