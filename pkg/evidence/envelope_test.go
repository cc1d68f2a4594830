package evidence_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"pgregory.net/rapid"

	"lockstep.dev/pkg/evidence"
)

const statement = "application/vnd.lockstep.example"

// keyPair makes the key pair of a seed of one repeated byte.
func keyPair(id string, seed byte) (*evidence.Signer, evidence.Key) {
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	return evidence.NewSigner(id, private), evidence.Key{ID: id, Public: private.Public().(ed25519.PublicKey)}
}

func TestPAEIsThatOfTheSpecification(t *testing.T) {
	got := evidence.PAE("http://example.com/HelloWorld", []byte("hello world"))
	if string(got) != "DSSEv1 29 http://example.com/HelloWorld 11 hello world" {
		t.Errorf("%q", got)
	}
	if got := evidence.PAE("", nil); string(got) != "DSSEv1 0  0 " {
		t.Errorf("of nothing: %q", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		payloadType, payload := rapid.String().Draw(t, "type"), rapid.SliceOf(rapid.Byte()).Draw(t, "payload")
		if got, want := evidence.PAE(payloadType, payload), dsse.PAE(payloadType, payload); !bytes.Equal(got, want) {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

func TestVerify(t *testing.T) {
	old, oldKey := keyPair("old", 1)
	current, currentKey := keyPair("current", 2)
	_, strangerKey := keyPair("old", 3) // another's key under the same id
	keys := []evidence.Key{strangerKey, oldKey, currentKey}
	payload := []byte(`{"n":1}`)

	t.Run("gives the payload and the key that signed", func(t *testing.T) {
		for _, signer := range []*evidence.Signer{old, current} {
			got, id, err := evidence.Verify(signer.Sign(statement, payload), statement, keys)
			if err != nil || id != signer.KeyID() || !bytes.Equal(got, payload) {
				t.Errorf("%s: %q by %q, %v", signer.KeyID(), got, id, err)
			}
		}
	})
	t.Run("takes the key id as a hint only", func(t *testing.T) {
		for _, hint := range []string{"", "old", "unknown"} {
			env := current.Sign(statement, payload)
			env.Signatures[0].KeyID = hint
			if _, id, err := evidence.Verify(env, statement, keys); err != nil || id != "current" {
				t.Errorf("hint %q: by %q, %v", hint, id, err)
			}
		}
	})
	t.Run("needs one signature that verifies", func(t *testing.T) {
		env := current.Sign(statement, payload)
		env.Signatures = append([]evidence.Signature{{KeyID: "old", Sig: []byte("short")}, {}}, env.Signatures...)
		if _, id, err := evidence.Verify(env, statement, keys); err != nil || id != "current" {
			t.Errorf("by %q, %v", id, err)
		}
	})
	for name, c := range map[string]struct {
		tamper func(*evidence.Envelope)
		keys   []evidence.Key
		want   error
	}{
		"another type":               {func(e *evidence.Envelope) { e.PayloadType += "2" }, keys, evidence.ErrDocumentType},
		"another type and no keys":   {func(e *evidence.Envelope) { e.PayloadType = ""; e.Signatures = nil }, nil, evidence.ErrDocumentType},
		"a byte of the payload":      {func(e *evidence.Envelope) { e.Payload = []byte(`{"n":2}`) }, keys, evidence.ErrSignature},
		"a space in the payload":     {func(e *evidence.Envelope) { e.Payload = []byte(`{"n": 1}`) }, keys, evidence.ErrSignature},
		"no payload":                 {func(e *evidence.Envelope) { e.Payload = nil }, keys, evidence.ErrSignature},
		"a bit of the signature":     {func(e *evidence.Envelope) { e.Signatures[0].Sig[9] ^= 1 }, keys, evidence.ErrSignature},
		"half a signature":           {func(e *evidence.Envelope) { e.Signatures[0].Sig = e.Signatures[0].Sig[:32] }, keys, evidence.ErrSignature},
		"no signature":               {func(e *evidence.Envelope) { e.Signatures = nil }, keys, evidence.ErrSignature},
		"no key":                     {func(*evidence.Envelope) {}, nil, evidence.ErrSignature},
		"only another's key":         {func(*evidence.Envelope) {}, []evidence.Key{strangerKey, oldKey}, evidence.ErrSignature},
		"a key of the wrong length":  {func(*evidence.Envelope) {}, []evidence.Key{{ID: "current", Public: currentKey.Public[:31]}, {}}, evidence.ErrSignature},
		"five signatures, one right": {func(e *evidence.Envelope) { e.Signatures = slices.Repeat(e.Signatures, 5) }, keys, evidence.ErrSignature},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			env := current.Sign(statement, payload)
			c.tamper(&env)
			if got, id, err := evidence.Verify(env, statement, c.keys); !errors.Is(err, c.want) || got != nil || id != "" {
				t.Errorf("%q by %q, %v, want %v", got, id, err, c.want)
			}
		})
	}
}

func TestASignatureForOneTypeIsNoneForAnother(t *testing.T) {
	signer, key := keyPair("k", 1)
	env := signer.Sign("statement/a", []byte("x"))
	env.PayloadType = "statement/b" // the type is relabelled, so the first check passes
	if _, _, err := evidence.Verify(env, "statement/b", []evidence.Key{key}); !errors.Is(err, evidence.ErrSignature) {
		t.Errorf("%v, want ErrSignature", err)
	}
}

func TestNewSignerPanicsWithoutAKey(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a signer without a key was made")
		}
	}()
	evidence.NewSigner("k", nil)
}

func TestEnvelopeJSON(t *testing.T) {
	const text = `{"payloadType":"application/vnd.lockstep.example","payload":"eyJuIjoxfQ==","signatures":[{"keyid":"k1","sig":"+/8="},{"sig":""}]}`
	env := evidence.Envelope{
		PayloadType: statement, Payload: []byte(`{"n":1}`),
		Signatures: []evidence.Signature{{KeyID: "k1", Sig: []byte{0xfb, 0xff}}, {Sig: []byte{}}},
	}
	got, err := json.Marshal(env)
	if err != nil || string(got) != text {
		t.Errorf("written\n%s, %v, want\n%s", got, err, text)
	}
	for name, spelled := range map[string]string{
		"as written":         text,
		"with URL-safe text": `{"payloadType":"application/vnd.lockstep.example","payload":"eyJuIjoxfQ==","signatures":[{"keyid":"k1","sig":"-_8="},{"sig":""}]}`,
		"with more members":  `{"later":[1],"payloadType":"application/vnd.lockstep.example","payload":"eyJuIjoxfQ==","signatures":[{"keyid":"k1","sig":"+/8=","later":1},{"sig":""}]}`,
	} {
		var back evidence.Envelope
		if err := json.Unmarshal([]byte(spelled), &back); err != nil || !equalEnvelopes(back, env) {
			t.Errorf("read %s: %+v, %v", name, back, err)
		}
	}
	for name, bad := range map[string]string{
		"no payload":             `{"payloadType":"t","signatures":[]}`,
		"no type":                `{"payload":"","signatures":[]}`,
		"no signatures":          `{"payloadType":"t","payload":""}`,
		"a signature without":    `{"payloadType":"t","payload":"","signatures":[{"keyid":"k"}]}`,
		"payload not base64":     `{"payloadType":"t","payload":"*","signatures":[]}`,
		"base64 without padding": `{"payloadType":"t","payload":"eyJuIjoxfQ","signatures":[]}`,
		"signature not base64":   `{"payloadType":"t","payload":"","signatures":[{"sig":"*"}]}`,
		"a number as payload":    `{"payloadType":"t","payload":1,"signatures":[]}`,
		"five signatures":        `{"payloadType":"t","payload":"","signatures":[{"sig":""},{"sig":""},{"sig":""},{"sig":""},{"sig":""}]}`,
	} {
		kept := evidence.Envelope{PayloadType: "kept"}
		if err := json.Unmarshal([]byte(bad), &kept); !errors.Is(err, evidence.ErrEnvelope) || kept.PayloadType != "kept" {
			t.Errorf("%s: %+v, %v, want ErrEnvelope", name, kept, err)
		}
	}
}

func equalEnvelopes(a, b evidence.Envelope) bool {
	return a.PayloadType == b.PayloadType && bytes.Equal(a.Payload, b.Payload) &&
		slices.EqualFunc(a.Signatures, b.Signatures, func(x, y evidence.Signature) bool {
			return x.KeyID == y.KeyID && bytes.Equal(x.Sig, y.Sig)
		})
}

// peer is Ed25519 for securesystemslib.
type peer struct {
	id      string
	private ed25519.PrivateKey
}

func (p peer) KeyID() (string, error)   { return p.id, nil }
func (p peer) Public() crypto.PublicKey { return p.private.Public() }
func (p peer) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(p.private, data), nil
}

func (p peer) Verify(_ context.Context, data, sig []byte) error {
	if !ed25519.Verify(p.private.Public().(ed25519.PublicKey), data, sig) {
		return errors.New("no")
	}
	return nil
}

func TestEnvelopesPassBetweenThisAndSecuresystemslib(t *testing.T) {
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	signer := evidence.NewSigner("k7", private)
	keys := []evidence.Key{{ID: "k7", Public: private.Public().(ed25519.PublicKey)}}
	theirSigner, err := dsse.NewEnvelopeSigner(peer{"k7", private})
	if err != nil {
		t.Fatal(err)
	}
	theirVerifier, err := dsse.NewEnvelopeVerifier(peer{"k7", private})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		payloadType, payload := rapid.String().Draw(t, "type"), rapid.SliceOf(rapid.Byte()).Draw(t, "payload")
		ours, err := json.Marshal(signer.Sign(payloadType, payload))
		if err != nil {
			t.Fatal(err)
		}
		var theirs dsse.Envelope
		if err := json.Unmarshal(ours, &theirs); err != nil {
			t.Fatal(err)
		}
		if _, err := theirVerifier.Verify(t.Context(), &theirs); err != nil {
			t.Fatalf("they refuse ours: %v", err)
		}
		signed, err := theirSigner.SignPayload(t.Context(), payloadType, payload)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(signed)
		if err != nil {
			t.Fatal(err)
		}
		var env evidence.Envelope
		if err := json.Unmarshal(text, &env); err != nil {
			t.Fatal(err)
		}
		got, id, err := evidence.Verify(env, payloadType, keys)
		if err != nil || id != "k7" || !bytes.Equal(got, payload) {
			t.Fatalf("we refuse theirs: %v", err)
		}
	})
}

func TestSignaturesAreTheOnesWrittenDown(t *testing.T) {
	seed := unhex(t, "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	signer := evidence.NewSigner("k1", ed25519.NewKeyFromSeed(seed))
	env := signer.Sign(statement, []byte(`{"n":1}`))
	if got := hex.EncodeToString(env.Signatures[0].Sig); got != exampleSignature {
		t.Errorf("%s, want %s", got, exampleSignature)
	}
	key := evidence.Key{ID: "k1", Public: unhex(t, examplePublicKey)}
	if _, _, err := evidence.Verify(env, statement, []evidence.Key{key}); err != nil {
		t.Error(err)
	}
}
