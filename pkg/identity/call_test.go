package identity

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"lockstep.dev/pkg/fault"
)

func payload(text string) *pb.SimpleRequest {
	return &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte(text)}}
}

func TestASignedCallIsAdmittedAsItsSigner(t *testing.T) {
	large := strings.Repeat("content ", 100_000)
	for name, test := range map[string]struct {
		request *pb.SimpleRequest
		options []grpc.CallOption
	}{
		"plain":      {payload("hello"), nil},
		"empty":      {&pb.SimpleRequest{}, nil},
		"large":      {payload(large), nil},
		"compressed": {payload(large), []grpc.CallOption{grpc.UseCompressor(gzip.Name)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			client := w.dial(t, caller(t, w.hall, testNow).DialOptions()...)
			answer, err := client.UnaryCall(t.Context(), test.request, test.options...)
			if err != nil {
				t.Fatal(err)
			}
			if answer.GetUsername() != "hall" {
				t.Errorf("the caller is %q, want hall", answer.GetUsername())
			}
			if got, want := len(answer.GetPayload().GetBody()), len(test.request.GetPayload().GetBody()); got != want {
				t.Errorf("%d bytes came through, want %d", got, want)
			}
		})
	}
}

func TestASignedStreamIsAdmittedAsItsSigner(t *testing.T) {
	w := setup(t)
	client := w.dial(t, caller(t, w.hall, testNow).DialOptions()...)
	stream, err := client.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{ResponseParameters: make([]*pb.ResponseParameters, 3)})
	if err != nil {
		t.Fatal(err)
	}
	answers := 0
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := string(answer.GetPayload().GetBody()); got != "hall" {
			t.Errorf("the caller is %q, want hall", got)
		}
		answers++
	}
	if answers != 3 {
		t.Errorf("%d answers, want 3", answers)
	}
}

func TestEveryTryHasATokenOfItsOwn(t *testing.T) {
	w := setup(t)
	seen := map[string]bool{}
	watch := func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		sent, _ := metadata.FromOutgoingContext(ctx)
		seen[sent.Get(CallTokenKey)[0]] = true
		return invoke(ctx, method, request, reply, conn, options...)
	}
	client := w.dial(t, append(caller(t, w.hall, testNow).DialOptions(), grpc.WithChainUnaryInterceptor(watch))...)
	for range 3 {
		if _, err := client.UnaryCall(t.Context(), payload("same")); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d tokens for three tries", len(seen))
	}
}

// forged is a call token made by hand. The zero value of mutate is a good one.
type forged struct {
	key    *KeyFile
	mutate func(*claims)
	kid    string
	typ    string
}

func (f forged) token(t *testing.T, method string, body []byte) string {
	t.Helper()
	sum := sha256.Sum256(body)
	c := claims{
		Claims: jwt.Claims{
			Issuer: f.key.AppKey, Audience: jwt.Audience{"center"}, ID: "nonce",
			IssuedAt: jwt.NewNumericDate(testNow), NotBefore: jwt.NewNumericDate(testNow.Add(-clockWindow)), Expiry: jwt.NewNumericDate(testNow.Add(clockWindow)),
		},
		Method: method, Body: hex.EncodeToString(sum[:]),
	}
	if f.mutate != nil {
		f.mutate(&c)
	}
	kid, typ := f.kid, f.typ
	if kid == "" {
		kid = f.key.KeyID
	}
	if typ == "" {
		typ = tokenType
	}
	return sign(t, jose.SigningKey{Algorithm: jose.EdDSA, Key: f.key.private()}, c, kid, typ)
}

func sign(t *testing.T, key jose.SigningKey, c claims, kid, typ string) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithHeader("kid", kid)
	if typ != "none" {
		options = options.WithType(jose.ContentType(typ))
	}
	signer, err := jose.NewSigner(key, options)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(c).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// unsigned is a token with "alg": "none".
func unsigned(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	return "eyJhbGciOiJub25lIiwia2lkIjoiaGFsbC0xIiwidHlwIjoibG9ja3N0ZXAtY2FsbCtqd3QifQ." + parts[1] + "."
}

// mustFail is one call that must be refused, and how.
type mustFail struct {
	name string
	// tokens returns what is in the metadata; prepare may change the world first.
	tokens  func(t *testing.T, w *world, method string, body []byte) []string
	prepare func(t *testing.T, w *world)
	code    codes.Code
	reason  fault.Reason
	what    string
}

func only(token string) []string { return []string{token} }

// changed is a good token but for what mutate does.
func changed(mutate func(*claims)) func(*testing.T, *world, string, []byte) []string {
	return func(t *testing.T, w *world, method string, body []byte) []string {
		return only(forged{key: w.hall, mutate: mutate}.token(t, method, body))
	}
}

func good(t *testing.T, w *world, method string, body []byte) []string {
	t.Helper()
	return changed(nil)(t, w, method, body)
}

// withTrust lets the center believe a changed record of the caller's key.
func withTrust(mutate func(*TrustKey)) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		key := w.hall.Public()
		mutate(&key)
		w.trust(t, key)
	}
}

func refusals() []mustFail {
	const unauthenticated = codes.Unauthenticated
	at := func(d time.Duration) *jwt.NumericDate { return jwt.NewNumericDate(testNow.Add(d)) }
	revoked, soon := testNow.Add(-time.Second), testNow.Add(time.Second)
	return []mustFail{
		{"no_token", func(*testing.T, *world, string, []byte) []string { return nil }, nil, unauthenticated, fault.PermissionDenied, ""},
		{"an_empty_token", func(*testing.T, *world, string, []byte) []string { return only("") }, nil, unauthenticated, fault.PermissionDenied, ""},
		{"two_tokens", func(t *testing.T, w *world, m string, b []byte) []string {
			return append(good(t, w, m, b), good(t, w, m, b)...)
		}, nil, unauthenticated, fault.PermissionDenied, ""},
		{"garbage", func(*testing.T, *world, string, []byte) []string { return only("a.b.c") }, nil, unauthenticated, fault.SignatureInvalid, "algorithm"},
		{"an_endless_token", func(*testing.T, *world, string, []byte) []string { return only(strings.Repeat("a", 5000)) }, nil, unauthenticated, fault.SignatureInvalid, "size"},
		{"no_signature", func(t *testing.T, w *world, m string, b []byte) []string {
			return only(unsigned(t, good(t, w, m, b)[0]))
		}, nil, unauthenticated, fault.SignatureInvalid, "algorithm"},
		{"HMAC_with_the_public_key", hmacWithPublicKey, nil, unauthenticated, fault.SignatureInvalid, "algorithm"},
		{"RSA", withRSA, nil, unauthenticated, fault.SignatureInvalid, "algorithm"},
		{"a_JWT_of_another_type", func(t *testing.T, w *world, m string, b []byte) []string {
			return only(forged{key: w.hall, typ: "JWT"}.token(t, m, b))
		}, nil, unauthenticated, fault.SignatureInvalid, "type"},
		{"a_JWT_of_no_type", func(t *testing.T, w *world, m string, b []byte) []string {
			return only(forged{key: w.hall, typ: "none"}.token(t, m, b))
		}, nil, unauthenticated, fault.SignatureInvalid, "type"},
		{"another_service's_signature", func(t *testing.T, _ *world, m string, b []byte) []string {
			return only(forged{key: newKey(t, "hall", "hall-1", UseRequest)}.token(t, m, b))
		}, nil, unauthenticated, fault.SignatureInvalid, "signature"},
		{"a_changed_signature", flipped, nil, unauthenticated, fault.SignatureInvalid, "signature"},
		{"an_unknown_issuer", func(t *testing.T, _ *world, m string, b []byte) []string {
			return only(forged{key: newKey(t, "stranger", "hall-1", UseRequest)}.token(t, m, b))
		}, nil, unauthenticated, fault.PermissionDenied, ""},
		{"no_issuer", changed(func(c *claims) { c.Issuer = "" }), nil, unauthenticated, fault.PermissionDenied, ""},
		{"the_center_itself", func(t *testing.T, w *world, m string, b []byte) []string {
			key := newKey(t, "center", "center-1", UseRequest)
			w.trust(t, key.Public())
			return only(forged{key: key}.token(t, m, b))
		}, nil, unauthenticated, fault.PermissionDenied, ""},
		{"an_unknown_key_id", func(t *testing.T, w *world, m string, b []byte) []string {
			return only(forged{key: w.hall, kid: "hall-2"}.token(t, m, b))
		}, nil, unauthenticated, fault.SignatureInvalid, "key"},
		{"a_revoked_key", good, withTrust(func(k *TrustKey) { k.RevokedAt = &revoked }), unauthenticated, fault.SignatureInvalid, "key"},
		{"a_key_of_yesterday", good, withTrust(func(k *TrustKey) { k.NotAfter = testNow }), unauthenticated, fault.SignatureInvalid, "key"},
		{"a_key_of_tomorrow", good, withTrust(func(k *TrustKey) { k.NotBefore = soon }), unauthenticated, fault.SignatureInvalid, "key"},
		{"a_key_for_statements", good, withTrust(func(k *TrustKey) { k.Use = []Use{UseStatement} }), unauthenticated, fault.SignatureInvalid, "key"},
		{"another_audience", changed(func(c *claims) { c.Audience = jwt.Audience{"hall"} }), nil, unauthenticated, fault.AudienceMismatch, ""},
		{"two_audiences", changed(func(c *claims) { c.Audience = jwt.Audience{"center", "hall"} }), nil, unauthenticated, fault.AudienceMismatch, ""},
		{"no_audience", changed(func(c *claims) { c.Audience = nil }), nil, unauthenticated, fault.AudienceMismatch, ""},
		{"another_method", changed(func(c *claims) { c.Method = otherMethod }), nil, unauthenticated, fault.SignatureInvalid, "method"},
		{"no_method", changed(func(c *claims) { c.Method = "" }), nil, unauthenticated, fault.SignatureInvalid, "method"},
		{"another_body", changed(func(c *claims) { c.Body = strings.Repeat("0", 64) }), nil, unauthenticated, fault.SignatureInvalid, "body"},
		{"no_body", changed(func(c *claims) { c.Body = "" }), nil, unauthenticated, fault.SignatureInvalid, "body"},
		{"an_expired_token", changed(func(c *claims) { c.Expiry = at(-time.Second) }), nil, unauthenticated, fault.SignatureInvalid, "time"},
		{"a_token_of_tomorrow", changed(func(c *claims) { c.NotBefore = at(time.Second) }), nil, unauthenticated, fault.SignatureInvalid, "time"},
		{"issued_long_ago_for_long", changed(func(c *claims) { c.IssuedAt, c.Expiry = at(-121*time.Second), at(time.Hour) }), nil, unauthenticated, fault.SignatureInvalid, "time"},
		{"issued_in_the_future", changed(func(c *claims) { c.IssuedAt = at(121 * time.Second) }), nil, unauthenticated, fault.SignatureInvalid, "time"},
		{"without_a_time", changed(func(c *claims) { c.IssuedAt = nil }), nil, unauthenticated, fault.SignatureInvalid, "claims"},
		{"without_an_end", changed(func(c *claims) { c.Expiry = nil }), nil, unauthenticated, fault.SignatureInvalid, "claims"},
		{"without_a_nonce", changed(func(c *claims) { c.ID = "" }), nil, unauthenticated, fault.SignatureInvalid, "claims"},
	}
}

func hmacWithPublicKey(t *testing.T, w *world, _ string, _ []byte) []string {
	t.Helper()
	return only(sign(t, jose.SigningKey{Algorithm: jose.HS256, Key: w.hall.Public().PublicKey}, claims{}, "hall-1", tokenType))
}

func withRSA(t *testing.T, _ *world, _ string, _ []byte) []string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return only(sign(t, jose.SigningKey{Algorithm: jose.RS256, Key: key}, claims{}, "hall-1", tokenType))
}

func flipped(t *testing.T, w *world, method string, body []byte) []string {
	t.Helper()
	token := good(t, w, method, body)[0]
	at := strings.LastIndex(token, ".") + 5
	other := byte('A')
	if token[at] == other {
		other = 'B'
	}
	return only(token[:at] + string(other) + token[at+1:])
}

func TestUnaryCallsThatMustBeRefused(t *testing.T) {
	for _, test := range refusals() {
		t.Run(test.name, func(t *testing.T) {
			w := setup(t)
			if test.prepare != nil {
				test.prepare(t, w)
			}
			request := payload("hello")
			bytes, err := serialise(request)
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			for _, token := range test.tokens(t, w, unaryMethod, bytes) {
				ctx = metadata.AppendToOutgoingContext(ctx, CallTokenKey, token)
			}
			_, err = w.dial(t).UnaryCall(ctx, request)
			test.check(t, w, err)
		})
	}
}

func TestStreamsThatMustBeRefused(t *testing.T) {
	for _, test := range refusals() {
		t.Run(test.name, func(t *testing.T) {
			w := setup(t)
			if test.prepare != nil {
				test.prepare(t, w)
			}
			request := &pb.StreamingOutputCallRequest{ResponseParameters: make([]*pb.ResponseParameters, 1)}
			bytes, err := serialise(request)
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			for _, token := range test.tokens(t, w, streamMethod, bytes) {
				ctx = metadata.AppendToOutgoingContext(ctx, CallTokenKey, token)
			}
			stream, err := w.dial(t).StreamingOutputCall(ctx, request)
			if err == nil {
				_, err = stream.Recv()
			}
			test.check(t, w, err)
		})
	}
}

func (m *mustFail) check(t *testing.T, w *world, err error) {
	t.Helper()
	if code, reason := status.Code(err), fault.ReasonOf(err); code != m.code || reason != m.reason {
		t.Errorf("refused with %s %q (%v), want %s %q", code, reason, err, m.code, m.reason)
	}
	if what := fault.MetaOf(err)["what"]; what != m.what {
		t.Errorf("what does not hold is %q, want %q", what, m.what)
	}
	if m.what == "time" {
		if got := fault.MetaOf(err)["server_time"]; got != "2026-06-01T12:00:00Z" {
			t.Errorf("server_time %q", got)
		}
	}
	if w.service.calls != 0 {
		t.Error("the handler ran")
	}
}

// TestWhatAManInTheMiddleChanges tampers with calls that were signed in order.
func TestWhatAManInTheMiddleChanges(t *testing.T) {
	for name, test := range map[string]struct {
		method string
		body   func(ready) ready
	}{
		"the_body":           {unaryMethod, func(b ready) ready { return append(ready{}, append(b[:len(b):len(b)], 0x18, 1)...) }},
		"a_byte_of_the_body": {unaryMethod, func(b ready) ready { b[len(b)-1] ^= 1; return b }},
		"no_body":            {unaryMethod, func(ready) ready { return nil }},
		"the_method":         {otherMethod, func(b ready) ready { return b }},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			tamper := func(ctx context.Context, _ string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
				bytes, ok := request.(ready)
				if !ok {
					t.Fatalf("the request is a %T", request)
				}
				return invoke(ctx, test.method, test.body(bytes), reply, conn, options...)
			}
			client := w.dial(t, append(caller(t, w.hall, testNow).DialOptions(), grpc.WithChainUnaryInterceptor(tamper))...)
			_, err := client.UnaryCall(t.Context(), payload("hello"))
			if status.Code(err) != codes.Unauthenticated || fault.ReasonOf(err) != fault.SignatureInvalid || w.service.calls != 0 {
				t.Errorf("got %v after %d calls", err, w.service.calls)
			}
		})
	}
}

func TestClocksMayBeTwoMinutesApart(t *testing.T) {
	for offset, admitted := range map[time.Duration]bool{
		-121 * time.Second: false, -119 * time.Second: true, 119 * time.Second: true, 121 * time.Second: false,
	} {
		w := setup(t)
		client := w.dial(t, caller(t, w.hall, testNow.Add(offset)).DialOptions()...)
		if _, err := client.UnaryCall(t.Context(), payload("hello")); (err == nil) != admitted {
			t.Errorf("a clock %s apart: %v", offset, err)
		}
	}
}

func TestACallerRefusesWhatItCannotSign(t *testing.T) {
	w := setup(t)
	if _, err := NewCaller(newKey(t, "hall", "s", UseStatement), "center"); err == nil {
		t.Error("a statement key signs calls")
	}
	if _, err := NewCaller(w.hall, ""); err == nil {
		t.Error("calls are signed for nobody")
	}
	client := w.dial(t, caller(t, w.hall, testNow).DialOptions()...)
	if _, err := client.FullDuplexCall(t.Context()); err == nil {
		t.Error("a stream of requests was signed")
	}
	late := w.dial(t, caller(t, w.hall, testNow.Add(25*time.Hour)).DialOptions()...)
	if _, err := late.UnaryCall(t.Context(), payload("hello")); err == nil || !strings.Contains(err.Error(), "hall-1") {
		t.Errorf("a key outside its window signs: %v", err)
	}
}

func TestRotationOverlaps(t *testing.T) {
	w := setup(t)
	next := newKey(t, "hall", "hall-2", UseRequest)
	w.trust(t, w.hall.Public(), next.Public())
	for _, key := range []*KeyFile{w.hall, next} {
		client := w.dial(t, caller(t, key, testNow).DialOptions()...)
		if _, err := client.UnaryCall(t.Context(), payload("hello")); err != nil {
			t.Errorf("key %s: %v", key.KeyID, err)
		}
	}
}
