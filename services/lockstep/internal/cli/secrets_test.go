package cli

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/services/lockstep/internal/dev"
)

func TestSecrets(t *testing.T) {
	w := setup(t, nil)
	dir := filepath.Join(t.TempDir(), "secrets")
	if code := w.run(t, "secrets", "--out", dir); code != exitDone {
		t.Fatalf("exit code %d: %s", code, w.err.String())
	}
	modes := map[string]os.FileMode{
		"demo-center.key.json": 0o600, "demo-hall.key.json": 0o600, "trust.json": 0o600,
		"ca.crt": 0o644, "center.crt": 0o644, "center.key": 0o600, "consumer.crt": 0o644, "consumer.key": 0o600,
		"collector.crt": 0o644, "collector.key": 0o600, "grafana.password": 0o644,
		"center-superuser.password": 0o644, "center-owner.password": 0o644, "center-service.password": 0o644, "center-source.password": 0o644,
		"consumer-superuser.password": 0o644, "consumer-owner.password": 0o644, "consumer-service.password": 0o644,
		"center-owner.pgpass": 0o600, "center.pgpass": 0o600, "consumer-owner.pgpass": 0o600, "consumer.pgpass": 0o600,
		"operator.token": 0o600, "center-operator.env": 0o600, "consumer-operator.env": 0o600, "against.json": 0o600,
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		if want, ok := modes[entry.Name()]; !ok || info.Mode().Perm() != want {
			t.Errorf("%s has mode %04o, want %04o", entry.Name(), info.Mode().Perm(), want)
		}
	}
	if len(entries) != len(modes) {
		t.Errorf("%d files, want %d", len(entries), len(modes))
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info.Mode(), err)
	}
	t.Run("the_parts_fit", func(t *testing.T) {
		file := func(name string) string { return filepath.Join(dir, name) }
		trust, err := identity.LoadTrust(file("trust.json"))
		if err != nil || !trust.Knows(dev.CenterApp) || !trust.Knows(dev.ConsumerApp) {
			t.Errorf("the trust store: %v", err)
		}
		if key, err := identity.LoadKeyFile(file("demo-hall.key.json")); err != nil || key.AppKey != dev.ConsumerApp {
			t.Errorf("the consumer's key: %v", err)
		}
		token, err := os.ReadFile(file("operator.token"))
		if err != nil {
			t.Fatal(err)
		}
		env, err := os.ReadFile(file("center-operator.env"))
		if err != nil || !strings.Contains(string(env), "TOKEN_SHA256="+identity.HashOperatorToken(strings.TrimSpace(string(token)))) {
			t.Errorf("the operator's hash is not the token's: %v", err)
		}
		if _, err := dev.ReadReach(file("against.json")); err != nil {
			t.Error(err)
		}
		w.servesWith(t, file("center.crt"), file("center.key"))
		if code := w.run(t, "task", "list", "--ca-file", file("ca.crt")); code != exitDone {
			t.Errorf("a service with the certificate is not reached: %s", w.err.String())
		}
		if code := w.run(t, "task", "list"); code != exitError || !strings.Contains(w.err.String(), "certificate") {
			t.Errorf("a service with an unknown certificate: exit code %d, %s", code, w.err.String())
		}
		if code := w.run(t, "task", "list", "--ca-file", file("operator.token")); code != exitError || !strings.Contains(w.err.String(), "holds no certificate") {
			t.Errorf("a file without certificates: exit code %d, %s", code, w.err.String())
		}
	})
	t.Run("a_copy_is_the_owners_alone", func(t *testing.T) {
		mounted, own := filepath.Join(t.TempDir(), "key.json"), filepath.Join(t.TempDir(), "key.json")
		text, err := os.ReadFile(filepath.Join(dir, "demo-hall.key.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(mounted, text, 0o440); err != nil {
			t.Fatal(err)
		}
		if _, err := identity.LoadKeyFile(mounted); err == nil {
			t.Error("a key that a group can read was taken")
		}
		for range 2 { // a start that is tried again
			if code := w.run(t, "secrets", "copy", mounted, own); code != exitDone {
				t.Fatalf("exit code %d: %s", code, w.err.String())
			}
		}
		if _, err := identity.LoadKeyFile(own); err != nil {
			t.Error(err)
		}
	})
	t.Run("nothing_is_written_over", func(t *testing.T) {
		if code := w.run(t, "secrets", "--out", dir); code != exitError || !strings.Contains(w.err.String(), "is not empty") {
			t.Errorf("exit code %d: %s", code, w.err.String())
		}
	})
	t.Run("an_owner_is_two_numbers", func(t *testing.T) {
		if code := w.run(t, "secrets", "--out", filepath.Join(t.TempDir(), "x"), "--owner", "ada"); code != exitError || !strings.Contains(w.err.String(), "not UID:GID") {
			t.Errorf("exit code %d: %s", code, w.err.String())
		}
	})
}

// servesWith answers `task list` over TLS from here on.
func (w *world) servesWith(t *testing.T, certFile, keyFile string) {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { _, _ = out.Write([]byte(`{}`)) }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
	server.StartTLS()
	t.Cleanup(server.Close)
	w.env[envCenter] = server.URL
}

func TestDemoAgainst(t *testing.T) {
	w := setup(t, nil)
	file := filepath.Join(t.TempDir(), "against.json")
	for name, test := range map[string]struct{ text, want string }{
		"no_JSON":          {`center`, "invalid character"},
		"a_part_missing":   {`{"consumer":"demo-hall","center_rest":"x","consumer_rest":"x","operator_token":"x","center_dsn":"x"}`, "consumer_dsn is missing"},
		"another_consumer": {`{"consumer":"svc","center_rest":"x","consumer_rest":"x","operator_token":"x","center_dsn":"x","consumer_dsn":"y"}`, `the example's consumer is demo-hall, not "svc"`},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if code := w.run(t, "demo", "--against", file); code != exitError || !strings.Contains(w.err.String(), test.want) {
				t.Errorf("exit code %d: %s", code, w.err.String())
			}
		})
	}
	t.Run("with_databases_of_its_own", func(t *testing.T) {
		if code := w.run(t, "demo", "--against", file, "--center-dsn", "x"); code != exitError || !strings.Contains(w.err.String(), "none of the others can be") {
			t.Errorf("exit code %d: %s", code, w.err.String())
		}
	})
}
