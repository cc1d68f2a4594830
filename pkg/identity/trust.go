package identity

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"lockstep.dev/pkg/evidence"
)

// TrustKey is somebody's public key. Several of an app may be valid at once, so
// that a rotation overlaps.
type TrustKey struct {
	AppKey    string     `json:"app_key"`
	KeyID     string     `json:"key_id"`
	Algorithm string     `json:"algorithm"`
	Use       []Use      `json:"use"`
	NotBefore time.Time  `json:"not_before"`
	NotAfter  time.Time  `json:"not_after"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	PublicKey []byte     `json:"public_key"`
}

// validAt reports whether what the key signed at a moment counts.
func (k *TrustKey) validAt(at time.Time) bool {
	return !at.Before(k.NotBefore) && at.Before(k.NotAfter) && (k.RevokedAt == nil || at.Before(*k.RevokedAt))
}

// Trust is the set of keys a service believes.
type Trust struct {
	byApp map[string][]TrustKey
}

type trustFile struct {
	Keys []TrustKey `json:"keys"`
}

// LoadTrust reads a trust store.
func LoadTrust(path string) (*Trust, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("read trust store: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	content := trustFile{}
	if err := decodeFile(file, &content); err != nil {
		return nil, fmt.Errorf("trust store %s: %w", path, err)
	}
	trust, err := NewTrust(content.Keys...)
	if err != nil {
		return nil, fmt.Errorf("trust store %s: %w", path, err)
	}
	return trust, nil
}

// WriteTrust writes a trust store.
func WriteTrust(path string, keys ...TrustKey) error {
	if _, err := NewTrust(keys...); err != nil {
		return fmt.Errorf("write trust store: %w", err)
	}
	text, err := json.MarshalIndent(trustFile{Keys: keys}, "", "  ")
	if err != nil {
		return fmt.Errorf("write trust store: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write trust store: %w", err)
	}
	return nil
}

// NewTrust checks keys and makes them a trust store.
func NewTrust(keys ...TrustKey) (*Trust, error) {
	trust := &Trust{byApp: map[string][]TrustKey{}}
	for _, key := range keys {
		if err := checkRecord(key.AppKey, key.KeyID, key.Algorithm, key.Use, key.NotBefore, key.NotAfter); err != nil {
			return nil, fmt.Errorf("key %q of %q: %w", key.KeyID, key.AppKey, err)
		}
		if len(key.PublicKey) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("key %q of %q: public_key: %d bytes, want %d", key.KeyID, key.AppKey, len(key.PublicKey), ed25519.PublicKeySize)
		}
		if slices.ContainsFunc(trust.byApp[key.AppKey], func(other TrustKey) bool { return other.KeyID == key.KeyID }) {
			return nil, fmt.Errorf("key %q of %q is there twice", key.KeyID, key.AppKey)
		}
		trust.byApp[key.AppKey] = append(trust.byApp[key.AppKey], key)
	}
	return trust, nil
}

// Keys returns the keys of an app for one use whose signatures made at a moment
// count. Online that moment is now; offline it is when the document was signed.
func (t *Trust) Keys(appKey string, use Use, at time.Time) []evidence.Key {
	var keys []evidence.Key
	for _, key := range t.byApp[appKey] {
		if slices.Contains(key.Use, use) && key.validAt(at) {
			keys = append(keys, evidence.Key{ID: key.KeyID, Public: ed25519.PublicKey(key.PublicKey)})
		}
	}
	return keys
}

// AllKeys returns the keys of an app for one use, whenever they were valid: to
// tell who signed apart from whether that counts.
func (t *Trust) AllKeys(appKey string, use Use) []evidence.Key {
	var keys []evidence.Key
	for _, key := range t.byApp[appKey] {
		if slices.Contains(key.Use, use) {
			keys = append(keys, evidence.Key{ID: key.KeyID, Public: ed25519.PublicKey(key.PublicKey)})
		}
	}
	return keys
}

// Knows reports whether any key of the app is in the store, valid or not.
func (t *Trust) Knows(appKey string) bool { return len(t.byApp[appKey]) > 0 }

// decodeFile reads one JSON value and nothing beside it.
func decodeFile(file io.Reader, into any) error {
	decoder := json.NewDecoder(io.LimitReader(file, maxFile))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}
