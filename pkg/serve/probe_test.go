package serve

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

func TestProbe(t *testing.T) {
	ours := newAuthority(t)
	transport := ours.transport(t, "center")
	socket := "unix:" + filepath.Join(t.TempDir(), "web.sock")
	var away atomic.Bool
	check := func(context.Context) error {
		if away.Load() {
			return errors.New("it is away")
		}
		return nil
	}
	at := func(listen string, transport Transport) Config {
		w := setup(t, func(config *Config, parts *Parts) {
			config.Listen.HTTP, config.Transport = listen, transport
			parts.Checks = map[string]Check{"store": check}
		})
		if host, isFree := strings.CutSuffix(listen, ":0"); isFree {
			address := addressOf(w.server.web)
			listen = host + address[strings.LastIndex(address, ":"):]
		}
		return Config{Listen: Listen{HTTP: listen}, Transport: transport}
	}
	plain := at("127.0.0.1:0", Transport{Insecure: true})
	protected := at("127.0.0.1:0", transport)
	for name, test := range map[string]struct {
		config Config
		want   string // "" for ready
	}{
		"plaintext":                        {plain, ""},
		"a_unix_socket":                    {at(socket, Transport{Insecure: true}), ""},
		"its_own_certificate":              {protected, ""},
		"every_interface":                  {at("0.0.0.0:0", transport), ""},
		"another_certificate_than_its_own": {Config{Listen: protected.Listen, Transport: ours.transport(t, "other")}, "another certificate"},
		"plaintext_asked_of_TLS":           {Config{Listen: protected.Listen, Transport: Transport{Insecure: true}}, "400 Bad Request"},
		"no_HTTP_side":                     {Config{Transport: transport}, "listen.http is not set"},
		"nobody_listens":                   {Config{Listen: Listen{HTTP: "127.0.0.1:1"}, Transport: Transport{Insecure: true}}, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Probe(t.Context(), test.config)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	t.Run("not_ready", func(t *testing.T) {
		away.Store(true)
		config := at("127.0.0.1:0", Transport{Insecure: true}) // it has asked nothing yet
		if err := Probe(t.Context(), config); err == nil || err.Error() != "not ready: store" {
			t.Errorf("got %v, want not ready: store", err)
		}
	})
}
