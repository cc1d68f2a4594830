package identity

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep.dev/pkg/evidence"
)

func params(uses ...Use) KeyParams {
	return KeyParams{AppKey: "hall", KeyID: "hall-1", Use: uses, NotBefore: testNow, NotAfter: testNow.Add(time.Hour)}
}

func TestAGeneratedKeyIsReadBackAndSigns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key.json")
	made, err := GenerateKeyFile(path, params(UseRequest, UseStatement))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v; want 0600", info.Mode(), err)
	}
	read, err := LoadKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := read.Signer()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := NewTrust(made.Public())
	if err != nil {
		t.Fatal(err)
	}
	envelope := signer.Sign("type", []byte("payload"))
	if _, keyID, err := evidence.Verify(envelope, "type", trust.Keys("hall", UseStatement, testNow)); err != nil || keyID != "hall-1" {
		t.Errorf("verified by %q, error %v", keyID, err)
	}
	if _, err := GenerateKeyFile(path, params(UseRequest)); err == nil {
		t.Error("a key was overwritten")
	}
}

func TestAKeyNeverPrintsItself(t *testing.T) {
	key := newKey(t, "hall", "hall-1", UseRequest)
	seed := base64.StdEncoding.EncodeToString(key.PrivateKey)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, key); strings.Contains(text, seed) || strings.Contains(text, fmt.Sprintf("%d", []byte(key.PrivateKey))) || !strings.Contains(text, "(secret)") {
			t.Errorf("%s prints %s", verb, text)
		}
	}
}

func TestKeyFilesThatMustBeRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key.json")
	if _, err := GenerateKeyFile(path, params(UseRequest)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	replaced := func(old, with string) string { return strings.Replace(string(text), old, with, 1) }
	for name, test := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"readable_by_the_group": {string(text), 0o640, "0600"},
		"readable_by_everybody": {string(text), 0o604, "0600"},
		"executable":            {string(text), 0o700, "0600"},
		"another_algorithm":     {replaced("Ed25519", "RS256"), 0o600, "algorithm"},
		"an_unknown_use":        {replaced("request", "everything"), 0o600, "use"},
		"an_unknown_field":      {replaced(`"app_key"`, `"app_kye"`), 0o600, "app_kye"},
		"no_app_key":            {replaced(`"hall"`, `""`), 0o600, "app_key"},
		"a_window_of_no_length": {replaced("2026-06-01T13:00:00Z", "2026-06-01T12:00:00Z"), 0o600, "window"},
		"a_seed_too_short":      {`{"app_key":"a","key_id":"b","algorithm":"Ed25519","use":["request"],"not_before":"2026-01-01T00:00:00Z","not_after":"2027-01-01T00:00:00Z","private_key":"AAAA"}`, 0o600, "seed"},
		"something_behind_it":   {string(text) + "{}", 0o600, "follows"},
		"nothing":               {"", 0o600, "key.json"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key.json")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, test.mode); err != nil {
				t.Fatal(err)
			}
			if _, err := LoadKeyFile(path); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestWhichKeysCountWhen(t *testing.T) {
	key := newKey(t, "hall", "hall-1", UseStatement).Public() // valid a day before and after testNow
	revokedAt := testNow.Add(time.Hour)
	revoked := key
	revoked.RevokedAt = &revokedAt
	for name, test := range map[string]struct {
		key   TrustKey
		app   string
		use   Use
		at    time.Time
		count int
	}{
		"inside_its_window":            {key, "hall", UseStatement, testNow, 1},
		"at_its_first_moment":          {key, "hall", UseStatement, key.NotBefore, 1},
		"before_its_window":            {key, "hall", UseStatement, key.NotBefore.Add(-1), 0},
		"at_the_end_of_its_window":     {key, "hall", UseStatement, key.NotAfter, 0},
		"for_another_use":              {key, "hall", UseRequest, testNow, 0},
		"of_another_app":               {key, "center", UseStatement, testNow, 0},
		"signed_before_its_revocation": {revoked, "hall", UseStatement, testNow, 1},
		"signed_after_its_revocation":  {revoked, "hall", UseStatement, revokedAt, 0},
	} {
		t.Run(name, func(t *testing.T) {
			trust, err := NewTrust(test.key)
			if err != nil {
				t.Fatal(err)
			}
			if got := trust.Keys(test.app, test.use, test.at); len(got) != test.count {
				t.Errorf("%d keys, want %d", len(got), test.count)
			}
		})
	}
}

func TestATrustStoreIsReadBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trust.json")
	first, second := newKey(t, "hall", "hall-1", UseStatement).Public(), newKey(t, "hall", "hall-2", UseStatement).Public()
	if err := WriteTrust(path, first, second); err != nil {
		t.Fatal(err)
	}
	trust, err := LoadTrust(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := trust.Keys("hall", UseStatement, testNow); len(got) != 2 || !got[1].Public.Equal(evidence.Key{Public: second.PublicKey}.Public) {
		t.Errorf("keys %v", got)
	}
	if err := WriteTrust(path, first, first); err == nil {
		t.Error("a key was written twice")
	}
	short := first
	short.PublicKey = short.PublicKey[:31]
	if _, err := NewTrust(short); err == nil {
		t.Error("a short public key was accepted")
	}
	if err := os.WriteFile(path, []byte(`{"keys":[],"more":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadTrust(path); err == nil {
		t.Error("an unknown field was accepted")
	}
}
