package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	fetchTimeout = 5 * time.Second
	maxKeySet    = 256 << 10
	// maxStale: an issuer that can't be asked for so long may have taken keys back.
	maxStale = 24 * time.Hour
)

// keySet is an issuer's public keys. They are read again when they are older
// than refresh, or a token names a key that is not among them; in either case
// not more often than once an interval, whoever asks and however it went.
type keySet struct {
	read     func(ctx context.Context) ([]byte, error)
	failed   func(error) // told of every reading that failed
	refresh  time.Duration
	interval time.Duration

	reading sync.Mutex // held by the one who reads

	mu    sync.Mutex
	keys  []jose.JSONWebKey
	at    time.Time // when the keys were read
	tried time.Time // when reading them was last begun
}

// newKeySet reads a file at once, so that a wrong path stops the start. A URL
// is read when a token needs it: the service does not depend on the issuer's start.
func newKeySet(c OIDCConfig, now time.Time, failed func(error)) (*keySet, error) {
	k := &keySet{failed: failed, refresh: c.Refresh, interval: c.Interval}
	if c.JWKSFile != "" {
		k.read = func(context.Context) ([]byte, error) { return readKeyFile(c.JWKSFile) }
		text, err := readKeyFile(c.JWKSFile)
		if err != nil {
			return nil, err
		}
		if k.keys, err = parseKeySet(text); err != nil {
			return nil, fmt.Errorf("%s: %w", c.JWKSFile, err)
		}
		k.at, k.tried = now, now
		return k, nil
	}
	client, err := keysClient(c.CAFile)
	if err != nil {
		return nil, err
	}
	k.read = func(ctx context.Context) ([]byte, error) { return fetchKeys(ctx, client, c.JWKSURL) }
	return k, nil
}

// find gives the keys that may have signed a token: those of the id it names.
func (k *keySet) find(ctx context.Context, id string, now time.Time) []jose.JSONWebKey {
	found, due := k.look(id, now)
	switch {
	case len(found) > 0 && !due:
		return found
	case len(found) > 0: // one caller reads, the others go on with what there is
		if !k.reading.TryLock() {
			return found
		}
	default: // wait for who reads, and look again
		k.reading.Lock()
	}
	defer k.reading.Unlock()
	if found, due = k.look(id, now); len(found) > 0 && !due {
		return found
	}
	if k.begin(now) {
		k.again(ctx, now)
	}
	found, _ = k.look(id, now)
	return found
}

// look says what is known, and whether it is time to read the keys again.
func (k *keySet) look(id string, now time.Time) (found []jose.JSONWebKey, due bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	age := now.Sub(k.at)
	if k.at.IsZero() || age > maxStale {
		return nil, true
	}
	for _, key := range k.keys {
		if key.KeyID == id || id == "" && len(k.keys) == 1 {
			found = append(found, key)
		}
	}
	return found, age >= k.refresh && now.Sub(k.tried) >= k.interval
}

// begin says whether the keys may be read now, and notes that they are.
func (k *keySet) begin(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.tried.IsZero() && now.Sub(k.tried) < k.interval {
		return false
	}
	k.tried = now
	return true
}

// again reads the keys; where that fails the old ones stay, until they are too old.
func (k *keySet) again(ctx context.Context, now time.Time) {
	// A caller that goes away does not take the keys from the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer cancel()
	var keys []jose.JSONWebKey
	text, err := k.read(ctx)
	if err == nil {
		keys, err = parseKeySet(text)
	}
	if err != nil {
		k.failed(err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys, k.at = keys, now
}

// parseKeySet takes the public signing keys of a set and leaves the others.
func parseKeySet(text []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, errors.New("no key set in JSON")
	}
	var keys []jose.JSONWebKey
	for _, one := range set.Keys {
		var key jose.JSONWebKey
		if err := json.Unmarshal(one, &key); err != nil { // of a kind that is not known here
			continue
		}
		if key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the key set has no public key that signs")
	}
	return keys, nil
}

func readKeyFile(path string) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("read the issuer's keys: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	return io.ReadAll(io.LimitReader(file, maxKeySet))
}

func keysClient(caFile string) (*http.Client, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12} // the issuer's server may be older than ours
	if caFile != "" {
		text, err := os.ReadFile(caFile) //nolint:gosec // the operator names the file
		if err != nil {
			return nil, fmt.Errorf("read the issuer's CA: %w", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate", caFile)
		}
	}
	return &http.Client{
		Timeout:       fetchTimeout,
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: settings, MaxIdleConns: 1, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("the issuer answered with a redirect") },
	}, nil
}

func fetchKeys(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it was read, or is not wanted
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the issuer's keys: %s", response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxKeySet))
}
