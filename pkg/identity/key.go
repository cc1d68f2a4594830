// Package identity proves who calls: services by a short-lived token that one of
// their keys signed over the call, operators by a bearer token.
//
// A service signs as itself only, and nothing in a request's body says who is
// calling. A method without an access rule stops the start. Keys and tokens
// never reach a log, an error text or the environment.
package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"lockstep.dev/pkg/evidence"
)

// Use is what a key may sign.
type Use string

// The uses.
const (
	UseRequest   Use = "request"
	UseStatement Use = "statement"
	UseCursor    Use = "cursor"
)

func (u Use) known() bool { return u == UseRequest || u == UseStatement || u == UseCursor }

// algorithm is the only one.
const algorithm = "Ed25519"

// maxFile bounds a key file or a trust store: some hundred keys.
const maxFile = 1 << 20

// KeyFile is a service's own key, kept in a file of mode 0600.
type KeyFile struct {
	AppKey     string    `json:"app_key"`
	KeyID      string    `json:"key_id"`
	Algorithm  string    `json:"algorithm"`
	Use        []Use     `json:"use"`
	NotBefore  time.Time `json:"not_before"`
	NotAfter   time.Time `json:"not_after"`
	PrivateKey Secret    `json:"private_key"` // the seed
}

// Secret is bytes that print as nothing.
type Secret []byte

func (Secret) String() string   { return "(secret)" }
func (Secret) GoString() string { return "(secret)" }

// LoadKeyFile reads a key and refuses a file that others can read.
func LoadKeyFile(path string) (*KeyFile, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	if loose := info.Mode().Perm() &^ 0o600; loose != 0 || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("key file %s: mode %04o is refused; it must be a file of mode 0600", path, info.Mode().Perm())
	}
	key := &KeyFile{}
	if err := decodeFile(file, key); err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	if err := key.check(); err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return key, nil
}

func (k *KeyFile) check() error {
	if len(k.PrivateKey) != ed25519.SeedSize {
		return fmt.Errorf("private_key: %d bytes, want a seed of %d", len(k.PrivateKey), ed25519.SeedSize)
	}
	return checkRecord(k.AppKey, k.KeyID, k.Algorithm, k.Use, k.NotBefore, k.NotAfter)
}

func checkRecord(appKey, keyID, alg string, uses []Use, notBefore, notAfter time.Time) error {
	var problems []error
	if appKey == "" {
		problems = append(problems, errors.New("app_key is missing"))
	}
	if keyID == "" {
		problems = append(problems, errors.New("key_id is missing"))
	}
	if alg != algorithm {
		problems = append(problems, fmt.Errorf("algorithm %q, want %s", alg, algorithm))
	}
	if len(uses) == 0 {
		problems = append(problems, errors.New("use is missing"))
	}
	for _, use := range uses {
		if !use.known() {
			problems = append(problems, fmt.Errorf("use %q is unknown", use))
		}
	}
	if notBefore.IsZero() || !notBefore.Before(notAfter) {
		problems = append(problems, errors.New("not_before and not_after are no window"))
	}
	return errors.Join(problems...)
}

// KeyParams say what key to generate.
type KeyParams struct {
	AppKey    string
	KeyID     string
	Use       []Use
	NotBefore time.Time
	NotAfter  time.Time
}

// GenerateKeyFile makes a key and writes it to path, which must not exist yet.
func GenerateKeyFile(path string, params KeyParams) (*KeyFile, error) {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed)
	key := &KeyFile{
		AppKey: params.AppKey, KeyID: params.KeyID, Algorithm: algorithm, Use: params.Use,
		NotBefore: params.NotBefore.UTC(), NotAfter: params.NotAfter.UTC(), PrivateKey: seed,
	}
	if err := key.check(); err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	text, err := json.MarshalIndent(key, "", "  ") //nolint:gosec // this file is where the key belongs
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // the operator names the file
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("generate key: %s exists and is never overwritten", path)
	}
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	_, err = file.Write(append(text, '\n'))
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return key, nil
}

func (k *KeyFile) private() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(k.PrivateKey) }

// Public is the record of this key for the peers' trust stores.
func (k *KeyFile) Public() TrustKey {
	public, ok := k.private().Public().(ed25519.PublicKey)
	if !ok {
		panic("identity: an Ed25519 key has an Ed25519 public key")
	}
	return TrustKey{
		AppKey: k.AppKey, KeyID: k.KeyID, Algorithm: k.Algorithm, Use: slices.Clone(k.Use),
		NotBefore: k.NotBefore, NotAfter: k.NotAfter, PublicKey: public,
	}
}

// Signer signs statements with this key, if that is one of its uses.
func (k *KeyFile) Signer() (*evidence.Signer, error) {
	if !slices.Contains(k.Use, UseStatement) {
		return nil, fmt.Errorf("key %s may not sign statements", k.KeyID)
	}
	return evidence.NewSigner(k.KeyID, k.private()), nil
}
