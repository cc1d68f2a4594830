package evidence

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
)

// maxSignatures bounds the work one envelope can ask for; a statement has one signer, and a second
// one while a key is being replaced.
const maxSignatures = 4

// Envelope is a DSSE envelope: a payload as the exact bytes that were signed.
type Envelope struct {
	PayloadType string
	Payload     []byte
	Signatures  []Signature
}

// Signature is one signature over an envelope. KeyID is a hint that nothing depends on.
type Signature struct {
	KeyID string
	Sig   []byte
}

// PAE is the pre-authentication encoding of DSSE v1: what is signed. Both lengths are in it, so no
// type and payload can be read as another pair.
func PAE(payloadType string, payload []byte) []byte {
	out := make([]byte, 0, len("DSSEv1 ")+len(payloadType)+len(payload)+2*20+3)
	out = append(out, "DSSEv1 "...)
	out = strconv.AppendInt(out, int64(len(payloadType)), 10)
	out = append(out, ' ')
	out = append(out, payloadType...)
	out = append(out, ' ')
	out = strconv.AppendInt(out, int64(len(payload)), 10)
	out = append(out, ' ')
	return append(out, payload...)
}

// Signer signs with one Ed25519 key. It is safe for concurrent use.
type Signer struct {
	keyID string
	key   ed25519.PrivateKey
}

// NewSigner panics if key is not an Ed25519 private key: that is a mistake at the start of a
// program, not an event.
func NewSigner(keyID string, key ed25519.PrivateKey) *Signer {
	if len(key) != ed25519.PrivateKeySize {
		panic("evidence: an Ed25519 private key has " + strconv.Itoa(ed25519.PrivateKeySize) + " bytes")
	}
	return &Signer{keyID: keyID, key: key}
}

// KeyID is the hint that Sign puts into envelopes.
func (s *Signer) KeyID() string { return s.keyID }

// Sign makes an envelope around payload, which it keeps and does not copy.
func (s *Signer) Sign(payloadType string, payload []byte) Envelope {
	sig := ed25519.Sign(s.key, PAE(payloadType, payload))
	return Envelope{PayloadType: payloadType, Payload: payload, Signatures: []Signature{{KeyID: s.keyID, Sig: sig}}}
}

// Key is a public key that may have signed; owner, use and validity were checked by the caller.
type Key struct {
	ID     string
	Public ed25519.PublicKey
}

// Verify returns the payload and the id of the key that signed it. The type is compared before any
// signature is looked at (ErrDocumentType); everything else is ErrSignature. One signature that
// verifies is enough. The keys named by a signature's hint are tried first, then all others.
func Verify(env Envelope, wantType string, keys []Key) (payload []byte, keyID string, err error) {
	if env.PayloadType != wantType {
		return nil, "", ErrDocumentType
	}
	if len(env.Signatures) > maxSignatures {
		return nil, "", fmt.Errorf("%w: more than %d signatures", ErrSignature, maxSignatures)
	}
	message := PAE(env.PayloadType, env.Payload)
	for _, hinted := range []bool{true, false} {
		for _, sig := range env.Signatures {
			for _, key := range keys {
				if (key.ID == sig.KeyID) == hinted && signed(key, message, sig.Sig) {
					return env.Payload, key.ID, nil
				}
			}
		}
	}
	return nil, "", ErrSignature
}

// signed is ed25519.Verify for keys of any length; that function panics on a wrong one.
func signed(key Key, message, sig []byte) bool {
	return len(key.Public) == ed25519.PublicKeySize && ed25519.Verify(key.Public, message, sig)
}

// envelopeJSON is the JSON form of the DSSE specification. Pointers tell an absent member from an
// empty one: the specification requires them to be there.
type envelopeJSON struct {
	PayloadType *string         `json:"payloadType"`
	Payload     *string         `json:"payload"`
	Signatures  []signatureJSON `json:"signatures"`
}

type signatureJSON struct {
	KeyID string  `json:"keyid,omitempty"`
	Sig   *string `json:"sig"`
}

// MarshalJSON writes the standard form, with padded standard base64.
func (e Envelope) MarshalJSON() ([]byte, error) {
	payload := base64.StdEncoding.EncodeToString(e.Payload)
	out := envelopeJSON{PayloadType: &e.PayloadType, Payload: &payload, Signatures: []signatureJSON{}}
	for _, s := range e.Signatures {
		sig := base64.StdEncoding.EncodeToString(s.Sig)
		out.Signatures = append(out.Signatures, signatureJSON{KeyID: s.KeyID, Sig: &sig})
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads the standard form. As the specification asks, standard and URL-safe base64
// are both read and members it does not know are ignored: nothing outside the payload is trusted.
func (e *Envelope) UnmarshalJSON(text []byte) error {
	var in envelopeJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return fmt.Errorf("%w: not the JSON of one", ErrEnvelope)
	}
	if in.PayloadType == nil || in.Payload == nil || in.Signatures == nil {
		return fmt.Errorf("%w: payload, payloadType and signatures are required", ErrEnvelope)
	}
	if len(in.Signatures) > maxSignatures {
		return fmt.Errorf("%w: more than %d signatures", ErrEnvelope, maxSignatures)
	}
	payload, err := decode64(*in.Payload)
	if err != nil {
		return err
	}
	out := Envelope{PayloadType: *in.PayloadType, Payload: payload, Signatures: make([]Signature, len(in.Signatures))}
	for i, s := range in.Signatures {
		if s.Sig == nil {
			return fmt.Errorf("%w: a signature without sig", ErrEnvelope)
		}
		sig, err := decode64(*s.Sig)
		if err != nil {
			return err
		}
		out.Signatures[i] = Signature{KeyID: s.KeyID, Sig: sig}
	}
	*e = out
	return nil
}

func decode64(text string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		b, err = base64.URLEncoding.DecodeString(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: not base64", ErrEnvelope)
	}
	return b, nil
}
