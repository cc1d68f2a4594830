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
app_key: hall
source_app_key: center
key_file: hall.key.json
trust_file: trust.json
center: {address: "127.0.0.1:7001"}
store: {dsn: "postgres://localhost/hall"}
listen: {grpc: "127.0.0.1:7002", http: "127.0.0.1:7003"}
transport: {insecure: true}
dataset:
  name: answers
  table: hall.answer_projection
  key_kind: uuid
  columns:
    key: answer_id
    tenant: tenant_id
    collection: form_id
    revision: revision
    deleted: deleted
    schema_version: form_version
    sequence: seq_no
    content: values
    content_hash: content_hash
    projection_version: projection_version
    create_time: created_at
    retired: retired_at
`

func loaded(t *testing.T, text string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "consumer.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := defaults()
	return cfg, config.Load(path, envPrefix, cfg)
}

func TestConfig(t *testing.T) {
	t.Run("the defaults are the delivery form", func(t *testing.T) {
		cfg, err := loaded(t, good)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Execution.Enabled || cfg.Lease != 900*time.Second || cfg.MaxRepairRetries != 3 || cfg.MaxPendingExtras != 500 ||
			cfg.MaxRetirePercent != 10 || cfg.SnapshotMaxAge != time.Minute || cfg.MaxErrorItems != 50 || cfg.MaxWorkPerScan != 1 ||
			cfg.ProgressReportRounds != 10 || cfg.Backoff.Base != time.Minute || cfg.Backoff.Cap != 30*time.Minute || cfg.MaxRetries != 6 ||
			cfg.ScanInterval != 30*time.Second || cfg.ScanInitialDelay != 20*time.Second || cfg.VerifyContent {
			t.Errorf("%+v", cfg)
		}
	})
	t.Run("the environment has the last word", func(t *testing.T) {
		t.Setenv("LOCKSTEP_CONSUMER__EXECUTION__ENABLED", "true")
		cfg, err := loaded(t, good)
		if err != nil || !cfg.Execution.Enabled {
			t.Errorf("%v, %v", cfg.Execution, err)
		}
	})
	t.Run("an unknown setting is refused by its name", func(t *testing.T) {
		if _, err := loaded(t, good+"max_retry: 5\n"); err == nil || !strings.Contains(err.Error(), "max_retry") {
			t.Error(err)
		}
	})
	t.Run("everything that is missing is told at once", func(t *testing.T) {
		_, err := loaded(t, "{}")
		for _, want := range []string{
			"app_key is missing", "source_app_key is missing", "key_file is missing", "trust_file is missing",
			"center.address is missing", "store.dsn is missing", "listen.grpc is missing", "dataset",
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %v", want, err)
			}
		}
	})
	t.Run("everything impossible is told at once", func(t *testing.T) {
		_, err := loaded(t, strings.Replace(good, "source_app_key: center", "source_app_key: hall", 1)+`
lease: 30s
stall_limit: 60s
scan_interval: 10s
scan_initial_delay: -1s
snapshot_max_age: 0s
max_repair_retries: -1
walk: columns
limits: {repairs_per_second: -1, peer_calls_per_second: 0, operator_calls_per_second: 0}
load_guard: {max_active: -1}
max_pending_extras: 10001
max_retire_percent: 101
max_error_items: -1
max_work_per_scan: 0
progress_report_rounds: 0
max_retries: -1
retention: -1s
backoff: {base: 2h, cap: 1h}
`)
		for _, want := range []string{
			"own app_key", "stall_limit 1m0s is not below lease", "scan_interval 10s is not below a third", "scan_initial_delay",
			"snapshot_max_age", "walk is pages or rows", "limits.repairs_per_second", "peer_calls_per_second", "operator_calls_per_second", "load_guard", "max_repair_retries", "max_pending_extras", "max_retire_percent", "max_error_items", "max_work_per_scan",
			"progress_report_rounds", "max_retries", "retention", "backoff.base",
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %v", want, err)
			}
		}
	})
}
