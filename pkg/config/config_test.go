package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"lockstep.dev/pkg/config"
)

type settings struct {
	AppKey   string            `koanf:"app_key"`
	Dispatch dispatch          `koanf:"dispatch"`
	Targets  map[string]string `koanf:"targets"`
	People   []person          `koanf:"people"`
	Shared   `koanf:",squash"`
}

type dispatch struct {
	Enabled      bool          `koanf:"enabled"`
	ScanInterval time.Duration `koanf:"scan_interval"`
	MaxRows      int           `koanf:"max_rows"`
}

type person struct {
	ID      string  `koanf:"id"`
	Tenants []int64 `koanf:"tenants"`
}

type Shared struct {
	Insecure bool `koanf:"insecure"`
}

func (s *settings) Validate() error {
	var problems config.Problems
	problems.Check(s.AppKey != "", "app_key is missing")
	problems.Check(s.Dispatch.MaxRows > 0, "dispatch.max_rows is %d, want at least 1", s.Dispatch.MaxRows)
	return problems.Err()
}

// load reads text as a file over the defaults.
func load(t *testing.T, text string) (settings, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := settings{AppKey: "center", Dispatch: dispatch{ScanInterval: 15 * time.Second, MaxRows: 20000}}
	err := config.Load(path, "LOCKSTEP_TEST", &got)
	return got, err
}

func TestTheFileOverlaysTheDefaultsAndTheEnvironmentTheFile(t *testing.T) {
	t.Setenv("LOCKSTEP_TEST__DISPATCH__ENABLED", "true")
	t.Setenv("LOCKSTEP_TEST__DISPATCH__MAX_ROWS", "7")
	t.Setenv("LOCKSTEP_TESTING__DISPATCH__MAX_ROWS", "not ours")
	got, err := load(t, `
dispatch: {scan_interval: 90s, max_rows: 5}
targets: {svc.hall: "127.0.0.1:7002", other: "127.0.0.1:7003"}
people: [{id: ann, tenants: [1, 2]}]
insecure: true
`)
	if err != nil {
		t.Fatal(err)
	}
	want := settings{
		AppKey:   "center",
		Dispatch: dispatch{Enabled: true, ScanInterval: 90 * time.Second, MaxRows: 7},
		Targets:  map[string]string{"svc.hall": "127.0.0.1:7002", "other": "127.0.0.1:7003"},
		People:   []person{{ID: "ann", Tenants: []int64{1, 2}}},
		Shared:   Shared{Insecure: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		env  map[string]string
		want []string
	}{
		"an_unknown_setting":                    {text: "dispatch: {enabeld: true}", want: []string{"dispatch", "enabeld"}},
		"an_unknown_setting_of_the_environment": {env: map[string]string{"LOCKSTEP_TEST__DISPATCH__ENABELD": "1"}, want: []string{"enabeld"}},
		"a_duration_without_a_unit":             {text: "dispatch: {scan_interval: 60}", want: []string{"scan_interval", `"60s"`}},
		"a_duration_that_is_none":               {text: "dispatch: {scan_interval: soon}", want: []string{"scan_interval", `"60s"`}},
		"a_number_that_is_none":                 {text: "dispatch: {max_rows: many}", want: []string{"max_rows"}},
		"broken_YAML":                           {text: "dispatch: [", want: []string{"settings.yaml"}},
		"a_key_twice":                           {text: "app_key: a\napp_key: b", want: []string{"app_key"}},
		"all_problems_at_once":                  {text: "app_key: ''\ndispatch: {max_rows: -1}", want: []string{"app_key is missing", "max_rows is -1"}},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range test.env {
				t.Setenv(key, value)
			}
			_, err := load(t, test.text)
			if err == nil {
				t.Fatal("it was accepted")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not tell %q", err, want)
				}
			}
		})
	}
}

func TestAMissingFileIsToldAndNoFileIsFine(t *testing.T) {
	got := settings{AppKey: "center", Dispatch: dispatch{MaxRows: 1}}
	if err := config.Load("", "LOCKSTEP_TEST", &got); err != nil {
		t.Errorf("no file: %v", err)
	}
	if err := config.Load("/nonexistent.yaml", "LOCKSTEP_TEST", &got); err == nil || !strings.Contains(err.Error(), "/nonexistent.yaml") {
		t.Errorf("a missing file gives %v", err)
	}
}
