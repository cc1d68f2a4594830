package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"lockstep.dev/pkg/fault"
)

// provider is an identity provider that answers over HTTP.
type provider struct {
	t      *testing.T
	server *httptest.Server
	asked  atomic.Int64

	mu     sync.Mutex
	keys   map[string]any // private keys by id
	broken bool
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{t: t, keys: map[string]any{}}
	p.server = httptest.NewServer(p)
	t.Cleanup(p.server.Close)
	p.ec("k1")
	return p
}

func (p *provider) ServeHTTP(out http.ResponseWriter, _ *http.Request) {
	p.asked.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken {
		out.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = out.Write(p.set())
}

// set is the public key set.
func (p *provider) set() []byte {
	var set jose.JSONWebKeySet
	for id, key := range p.keys {
		set.Keys = append(set.Keys, (&jose.JSONWebKey{Key: key, KeyID: id, Use: "sig"}).Public())
	}
	text, err := json.Marshal(set)
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

func (p *provider) ec(id string) {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[id] = key
}

func (p *provider) lose(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keys, id)
}

func (p *provider) breaks(broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = broken
}

type fields map[string]any

// token signs claims that are good but for what is changed; nil takes one away.
func (p *provider) token(id string, change fields) string {
	p.t.Helper()
	p.mu.Lock()
	key := p.keys[id]
	p.mu.Unlock()
	algorithm := jose.ES256
	if _, ok := key.(*rsa.PrivateKey); ok {
		algorithm = jose.RS256
	}
	return p.signed(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}}, "JWT", change)
}

func (p *provider) signed(key jose.SigningKey, kind jose.ContentType, change fields) string {
	p.t.Helper()
	claims := fields{
		"iss": "https://id.example.com", "aud": []string{"lockstep", "other"}, "sub": "ada", "iat": testNow.Unix(), "exp": testNow.Add(time.Hour).Unix(),
		"realm_access": fields{"roles": []string{"staff", "lockstep-operators"}}, "tenants": []any{7},
	}
	for name, value := range change {
		if value == nil {
			delete(claims, name)
			continue
		}
		claims[name] = value
	}
	signer, err := jose.NewSigner(key, (&jose.SignerOptions{}).WithType(kind))
	if err != nil {
		p.t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(map[string]any(claims)).Serialize()
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

func (p *provider) config() OIDCConfig {
	c := OIDCDefaults()
	c.Issuer, c.Audience, c.JWKSURL = "https://id.example.com", "lockstep", p.server.URL
	c.RoleClaim, c.TenantsClaim = "realm_access.roles", "tenants"
	c.Roles = map[string]Role{"lockstep-operators": RoleOperator, "lockstep-admins": RoleAdmin, "lockstep-viewers": RoleViewer}
	return c
}

// trusted is a guard that believes the provider.
func (p *provider) trusted(change func(*OIDCConfig)) *Guard {
	p.t.Helper()
	w := setup(p.t)
	c := p.config()
	if change != nil {
		change(&c)
	}
	if err := w.guard.TrustIssuer(c, func(error) {}); err != nil {
		p.t.Fatal(err)
	}
	return w.guard
}

// ask is what the guard does with a call that carries a token.
func ask(g *Guard, token string, atLeast Role) (Operator, error) {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(OperatorTokenKey, token))
	who, err := g.operator(ctx, OperatorWith(atLeast))
	return who.operator, err
}

func TestOIDC(t *testing.T) {
	p := newProvider(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p.keys["k2"] = rsaKey
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	g := p.trusted(nil)
	for name, c := range map[string]struct {
		token   string
		atLeast Role
		tenants []int64
		code    codes.Code
	}{
		"good":                      {p.token("k1", nil), RoleOperator, []int64{7}, codes.OK},
		"by an RSA key":             {p.token("k2", nil), RoleViewer, []int64{7}, codes.OK},
		"of one audience":           {p.token("k1", fields{"aud": "lockstep"}), RoleViewer, []int64{7}, codes.OK},
		"of several tenants":        {p.token("k1", fields{"tenants": []any{7, "8", 9007199254740993}}), RoleViewer, []int64{7, 8, 9007199254740993}, codes.OK},
		"of all tenants":            {p.token("k1", fields{"tenants": "*"}), RoleViewer, nil, codes.OK},
		"the highest role counts":   {p.token("k1", fields{"realm_access": fields{"roles": []string{"lockstep-viewers", "lockstep-admins"}}}), RoleAdmin, []int64{7}, codes.OK},
		"roles in one text":         {p.token("k1", fields{"realm_access": fields{"roles": "staff lockstep-admins"}}), RoleAdmin, []int64{7}, codes.OK},
		"an access token":           {p.signed(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: rsaKey, KeyID: "k2"}}, "at+jwt", nil), RoleViewer, []int64{7}, codes.OK},
		"too low a role":            {p.token("k1", nil), RoleAdmin, nil, codes.PermissionDenied},
		"no role":                   {p.token("k1", fields{"realm_access": fields{"roles": []string{"staff"}}}), RoleViewer, nil, codes.PermissionDenied},
		"no role claim":             {p.token("k1", fields{"realm_access": nil}), RoleViewer, nil, codes.PermissionDenied},
		"no tenants claim":          {p.token("k1", fields{"tenants": nil}), RoleViewer, nil, codes.PermissionDenied},
		"an empty list of tenants":  {p.token("k1", fields{"tenants": []any{}}), RoleViewer, nil, codes.PermissionDenied},
		"a tenant that is none":     {p.token("k1", fields{"tenants": []any{7, "all"}}), RoleViewer, nil, codes.PermissionDenied},
		"all among others":          {p.token("k1", fields{"tenants": []any{"*", 7}}), RoleViewer, nil, codes.PermissionDenied},
		"another issuer":            {p.token("k1", fields{"iss": "https://id.example.com/"}), RoleViewer, nil, codes.Unauthenticated},
		"another audience":          {p.token("k1", fields{"aud": "other"}), RoleViewer, nil, codes.Unauthenticated},
		"no audience":               {p.token("k1", fields{"aud": nil}), RoleViewer, nil, codes.Unauthenticated},
		"expired":                   {p.token("k1", fields{"exp": testNow.Add(-31 * time.Second).Unix()}), RoleViewer, nil, codes.Unauthenticated},
		"expired within the leeway": {p.token("k1", fields{"exp": testNow.Add(-29 * time.Second).Unix()}), RoleViewer, []int64{7}, codes.OK},
		"no end":                    {p.token("k1", fields{"exp": nil}), RoleViewer, nil, codes.Unauthenticated},
		"not valid yet":             {p.token("k1", fields{"nbf": testNow.Add(time.Minute).Unix()}), RoleViewer, nil, codes.Unauthenticated},
		"issued in the future":      {p.token("k1", fields{"iat": testNow.Add(time.Minute).Unix()}), RoleViewer, nil, codes.Unauthenticated},
		"nobody":                    {p.token("k1", fields{"sub": nil}), RoleViewer, nil, codes.Unauthenticated},
		"a name with a line end":    {p.token("k1", fields{"sub": "a\nb"}), RoleViewer, nil, codes.Unauthenticated},
		"a stranger's key":          {p.signed(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: stranger, KeyID: "k1"}}, "JWT", nil), RoleViewer, nil, codes.Unauthenticated},
		"a shared secret":           {p.signed(jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "k1"}}, "JWT", nil), RoleViewer, nil, codes.Unauthenticated},
		"another type":              {p.signed(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: rsaKey, KeyID: "k2"}}, tokenType, nil), RoleViewer, nil, codes.Unauthenticated},
		"no signature":              {withoutSignature(p.token("k1", nil)), RoleViewer, nil, codes.Unauthenticated},
		"a changed payload":         {strings.Replace(p.token("k1", nil), ".e", ".f", 1), RoleViewer, nil, codes.Unauthenticated},
		"too long":                  {p.token("k1", fields{"x": strings.Repeat("x", maxOperatorToken)}), RoleViewer, nil, codes.Unauthenticated},
		"a token of the settings":   {"ann's token", RoleOperator, []int64{7}, codes.OK},
		"none of the settings":      {"nobody's token", RoleViewer, nil, codes.Unauthenticated},
		"dots that are no token":    {"a.b.c", RoleViewer, nil, codes.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ask(g, c.token, c.atLeast)
			if err != nil {
				if code := fault.ToStatus(err); status.Code(code) != c.code || fault.ReasonOf(err) != fault.PermissionDenied || strings.Contains(err.Error(), c.token) {
					t.Errorf("got %v, want %s", err, c.code)
				}
				return
			}
			id := "oidc:ada"
			if c.token == "ann's token" {
				id = "ann"
			}
			if c.code != codes.OK || got.ID != id || !slices.Equal(got.Tenants, c.tenants) {
				t.Errorf("got %+v", got)
			}
		})
	}
	if n := p.asked.Load(); n != 1 {
		t.Errorf("the keys were read %d times", n)
	}
}

// withoutSignature claims the algorithm "none".
func withoutSignature(token string) string {
	parts := strings.Split(token, ".")
	return "eyJhbGciOiJub25lIiwia2lkIjoiazEifQ." + parts[1] + "."
}

func TestIssuersKeysAreReadWithinBounds(t *testing.T) {
	p := newProvider(t)
	g := p.trusted(nil)
	now := testNow
	g.now = func() time.Time { return now }
	good := func(id string) string { return p.token(id, fields{"exp": testNow.Add(100 * time.Hour).Unix()}) }
	want := func(what, token string, ok bool, reads int64) {
		t.Helper()
		if _, err := ask(g, token, RoleViewer); (err == nil) != ok {
			t.Errorf("%s: %v", what, err)
		}
		if n := p.asked.Load(); n != reads {
			t.Errorf("%s: the keys were read %d times, want %d", what, n, reads)
		}
	}
	first := good("k1")
	want("the first token", first, true, 1)
	want("the next one", first, true, 1)
	p.ec("k3")
	third := good("k3")
	want("a key that came anew, at once", third, false, 1)
	now = now.Add(31 * time.Second)
	want("and after the interval", third, true, 2)
	p.ec("k4")
	unknown := good("k4")
	p.lose("k4")
	for range 20 {
		want("an unknown key, again and again", unknown, false, 2)
	}
	now = now.Add(31 * time.Second)
	for range 20 {
		want("once an interval", unknown, false, 3)
	}
	p.lose("k1")
	want("a key that was taken back", first, true, 3)
	now = now.Add(10 * time.Minute)
	want("and the keys are read again", first, false, 4)
	p.breaks(true)
	now = now.Add(10 * time.Minute)
	want("a provider that is away", third, true, 5)
	now = now.Add(23 * time.Hour)
	want("for a day", third, true, 6)
	now = now.Add(2 * time.Hour)
	want("and no longer", third, false, 7)
	p.breaks(false)
	now = now.Add(time.Minute)
	want("until it is back", third, true, 8)
}

func TestManyTokensReadTheKeysOnce(t *testing.T) {
	p := newProvider(t)
	g := p.trusted(nil)
	token := p.token("k1", nil)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			if _, err := ask(g, token, RoleViewer); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := p.asked.Load(); n != 1 {
		t.Errorf("the keys were read %d times", n)
	}
}

func TestIssuersKeysInAFile(t *testing.T) {
	p := newProvider(t)
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(path, p.set(), 0o600); err != nil {
		t.Fatal(err)
	}
	inFile := func(c *OIDCConfig) { c.JWKSURL, c.JWKSFile, c.TenantsClaim = "", path, "" }
	g := p.trusted(inFile)
	if got, err := ask(g, p.token("k1", nil), RoleOperator); err != nil || len(got.Tenants) != 0 || p.asked.Load() != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte(`{"keys":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c := p.config()
	inFile(&c)
	if err := setup(t).guard.TrustIssuer(c, func(error) {}); err == nil || !strings.Contains(err.Error(), "no public key that signs") {
		t.Errorf("a file without keys: %v", err)
	}
}

func TestAStreamEndsWithItsToken(t *testing.T) {
	p := newProvider(t)
	w := setup(t)
	if err := w.guard.TrustIssuer(p.config(), func(error) {}); err != nil {
		t.Fatal(err)
	}
	token := p.token("k1", fields{"exp": testNow.Add(time.Second).Unix(), "realm_access": fields{"roles": []string{"lockstep-admins"}}})
	stream, err := w.dial(t).FullDuplexCall(metadata.AppendToOutgoingContext(t.Context(), OperatorTokenKey, token))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pb.StreamingOutputCallRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
}

func TestOIDCConfig(t *testing.T) {
	p := newProvider(t)
	for name, c := range map[string]struct {
		change func(*OIDCConfig)
		want   string
	}{
		"good":               {func(*OIDCConfig) {}, ""},
		"off":                {func(c *OIDCConfig) { *c = OIDCDefaults() }, ""},
		"half":               {func(c *OIDCConfig) { c.Issuer = "" }, "issuer is missing"},
		"no audience":        {func(c *OIDCConfig) { c.Audience = "" }, "audience is missing"},
		"no keys":            {func(c *OIDCConfig) { c.JWKSURL = "" }, "one of jwks_url and jwks_file"},
		"both":               {func(c *OIDCConfig) { c.JWKSFile = "f" }, "one of jwks_url and jwks_file"},
		"plain text":         {func(c *OIDCConfig) { c.JWKSURL = "http://id.example.com/keys" }, "jwks_url is https"},
		"no URL":             {func(c *OIDCConfig) { c.JWKSURL = "keys" }, "no URL"},
		"too often":          {func(c *OIDCConfig) { c.Interval = 0 }, "interval is"},
		"too seldom":         {func(c *OIDCConfig) { c.Refresh = 25 * time.Hour }, "refresh is"},
		"no roles":           {func(c *OIDCConfig) { c.Roles = nil }, "roles is missing"},
		"a role that is not": {func(c *OIDCConfig) { c.Roles = map[string]Role{"kings": "king"} }, `unknown role "king"`},
		"no id":              {func(c *OIDCConfig) { c.IDClaim = "" }, "id_claim"},
	} {
		t.Run(name, func(t *testing.T) {
			config := p.config()
			c.change(&config)
			err := config.Validate()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
