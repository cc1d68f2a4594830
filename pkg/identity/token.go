package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
)

// CallTokenKey is the metadata key of the token that proves a calling service.
const CallTokenKey = "lockstep-call-token"

const (
	tokenType    = "lockstep-call+jwt" //nolint:gosec // a type's name
	clockWindow  = 120 * time.Second   // how far two clocks may be apart
	maxTokenSize = 4096                // a token has about 600 bytes
)

// claims of a call token: who calls whom, which method, with which bytes.
type claims struct {
	jwt.Claims

	Method string `json:"method"`
	Body   string `json:"body"` // hex SHA-256 of the serialised request before compression
}

// mint signs a token for one try of one call.
func mint(key *KeyFile, audience, method string, sum digest, now time.Time) (string, error) {
	if now.Before(key.NotBefore) || !now.Before(key.NotAfter) {
		return "", fmt.Errorf("sign call: key %s is valid from %s to %s", key.KeyID, key.NotBefore.Format(time.RFC3339), key.NotAfter.Format(time.RFC3339))
	}
	options := (&jose.SignerOptions{}).WithType(tokenType).WithHeader("kid", key.KeyID)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key.private()}, options)
	if err != nil {
		return "", fmt.Errorf("sign call: %w", err)
	}
	token, err := jwt.Signed(signer).Claims(claims{
		Claims: jwt.Claims{
			Issuer:    key.AppKey,
			Audience:  jwt.Audience{audience},
			IssuedAt:  jwt.NewNumericDate(now),
			NotBefore: jwt.NewNumericDate(now.Add(-clockWindow)),
			Expiry:    jwt.NewNumericDate(now.Add(clockWindow)),
			ID:        rand.Text(),
		},
		Method: method,
		Body:   hex.EncodeToString(sum[:]),
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign call: %w", err)
	}
	return token, nil
}

// verifyToken checks all of a token but the body's digest, which it returns the claim of.
func (g *Guard) verifyToken(token, method string) (*claims, error) {
	if len(token) > maxTokenSize {
		return nil, badSignature("size", "the call token is too long")
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return nil, badSignature("algorithm", "the call token is not a JWT signed with EdDSA")
	}
	if len(parsed.Headers) != 1 || parsed.Headers[0].ExtraHeaders[jose.HeaderType] != tokenType {
		return nil, badSignature("type", "the token is not a call token")
	}
	stated := claims{}
	if err := parsed.UnsafeClaimsWithoutVerification(&stated); err != nil {
		return nil, badSignature("claims", "the call token's claims can't be read")
	}
	now := g.now()
	public, err := g.requestKey(stated.Issuer, parsed.Headers[0].KeyID, now)
	if err != nil {
		return nil, err
	}
	verified := claims{}
	if err := parsed.Claims(public, &verified); err != nil {
		return nil, badSignature("signature", "the call token's signature does not verify")
	}
	return &verified, g.checkClaims(&verified, method, now)
}

// requestKey is the issuer's key of that id, if it may sign requests now.
func (g *Guard) requestKey(issuer, keyID string, now time.Time) (ed25519.PublicKey, error) {
	if issuer == g.self || !g.trust.Knows(issuer) {
		return nil, unknownCaller("no known service signed this call")
	}
	keys := g.trust.Keys(issuer, UseRequest, now)
	at := slices.IndexFunc(keys, func(key evidence.Key) bool { return key.ID == keyID })
	if at < 0 {
		return nil, badSignature("key", "the call was signed with a key that may not sign requests now")
	}
	return keys[at].Public, nil
}

func (g *Guard) checkClaims(c *claims, method string, now time.Time) error {
	switch {
	case len(c.Audience) != 1 || c.Audience[0] != g.self:
		return fault.New(fault.AudienceMismatch, "the call was signed for another service")
	case c.Method != method:
		return badSignature("method", "the call was signed for another method")
	case c.IssuedAt == nil || c.NotBefore == nil || c.Expiry == nil || c.ID == "":
		return badSignature("claims", "the call token lacks a claim")
	case !within(c, now):
		return badSignature("time", "the call was not signed for now; the server's time is "+now.UTC().Format(time.RFC3339)).
			With("server_time", now.UTC().Format(time.RFC3339))
	}
	return nil
}

// within holds the window on the server's side too: a caller can't sign for longer.
func within(c *claims, now time.Time) bool {
	issued := c.IssuedAt.Time()
	return !now.Before(c.NotBefore.Time()) && !now.After(c.Expiry.Time()) &&
		issued.Sub(now).Abs() <= clockWindow
}

// checkBody compares what was signed with what was received.
func checkBody(c *claims, received body) error {
	if !received.known || c.Body != hex.EncodeToString(received.sum[:]) {
		return badSignature("body", "the call was signed for another body")
	}
	return nil
}

// badSignature names in its metadata what did not hold.
func badSignature(what, message string) *fault.Error {
	return fault.New(fault.SignatureInvalid, "%s", message).With("what", what)
}

func unknownCaller(message string) *fault.Error {
	return fault.New(fault.PermissionDenied, "%s", message).WithCode(codes.Unauthenticated)
}
