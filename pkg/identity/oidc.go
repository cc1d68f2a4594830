package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"lockstep.dev/pkg/fault"
)

// OIDCConfig says whose tokens stand for operators, beside those of the
// settings. The zero value trusts no issuer.
type OIDCConfig struct {
	// Issuer has to be the token's iss, letter by letter. Without it only the tokens of operators
	// are taken.
	Issuer string `koanf:"issuer"`
	// Audience has to be in the token's aud.
	Audience string `koanf:"audience"`
	// JWKSURL is where the issuer's public keys are; https, or http on this machine.
	JWKSURL string `koanf:"jwks_url"`
	// JWKSFile holds the issuer's public keys instead.
	JWKSFile string `koanf:"jwks_file"`
	// CAFile verifies the host of jwks_url; without it the system's roots do.
	CAFile string `koanf:"ca_file"`
	// Refresh is how often the keys are read again.
	Refresh time.Duration `koanf:"refresh"`
	// Interval bounds how often a token with an unknown key makes them be read.
	Interval time.Duration `koanf:"interval"`
	// IDClaim is the claim that names the operator. A claim is a member of the token's payload,
	// or a path of members parted by dots.
	IDClaim string `koanf:"id_claim"`
	// RoleClaim is the claim that holds a word or several.
	RoleClaim string `koanf:"role_claim"`
	// Roles says which role each word stands for; the highest counts. A token without one is
	// refused.
	Roles map[string]Role `koanf:"roles"`
	// TenantsClaim is the claim that holds tenant ids, or "*" for all; a token without it is
	// refused. Where it is not set, every token sees all tenants.
	TenantsClaim string `koanf:"tenants_claim"`
}

// OIDCDefaults are what is set where nothing is said.
func OIDCDefaults() OIDCConfig {
	return OIDCConfig{Refresh: 10 * time.Minute, Interval: 30 * time.Second, IDClaim: "sub", RoleClaim: "roles"}
}

// Enabled says whether any issuer is trusted.
func (c *OIDCConfig) Enabled() bool { return c.Issuer != "" }

// Validate tells everything that is wrong.
func (c *OIDCConfig) Validate() error {
	if !c.Enabled() {
		if c.JWKSURL != "" || c.JWKSFile != "" || c.Audience != "" || len(c.Roles) > 0 {
			return errors.New("issuer is missing")
		}
		return nil
	}
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(c.Audience != "", "audience is missing: a token for another service must not be taken")
	check((c.JWKSURL != "") != (c.JWKSFile != ""), "one of jwks_url and jwks_file is needed")
	if c.JWKSURL != "" {
		problems = append(problems, checkKeysURL(c.JWKSURL))
	}
	check(c.CAFile == "" || c.JWKSURL != "", "ca_file goes with jwks_url")
	check(c.Refresh >= time.Minute && c.Refresh <= maxStale, "refresh is 1m to %s", maxStale)
	check(c.Interval >= time.Second && c.Interval <= c.Refresh, "interval is 1s to refresh")
	check(c.IDClaim != "" && c.RoleClaim != "", "id_claim and role_claim are needed")
	check(len(c.Roles) > 0, "roles is missing: it says which words of %s are which role", c.RoleClaim)
	for word, role := range c.Roles {
		check(word != "" && ranks[role] > 0, "roles: %q stands for the unknown role %q", word, role)
	}
	return errors.Join(problems...)
}

// checkKeysURL: keys that decide who is an operator come over TLS, or from this machine.
func checkKeysURL(text string) error {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" {
		return errors.New("jwks_url is no URL")
	}
	ip := net.ParseIP(parsed.Hostname())
	local := parsed.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if parsed.Scheme != "https" && !(parsed.Scheme == "http" && local) {
		return errors.New("jwks_url is https; http is for this machine alone")
	}
	return nil
}

const (
	maxOperatorToken = 12 << 10 // below what a header may hold
	maxIDBytes       = 200
	maxTenants       = 10_000
	leeway           = 30 * time.Second // of the issuer's clock
)

// signedBy are the algorithms that an issuer may use: none with a shared secret.
var signedBy = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// issuer verifies the tokens of one issuer.
type issuer struct {
	config OIDCConfig
	keys   *keySet
}

// TrustIssuer lets the tokens of an issuer stand for operators, beside those of
// the settings. A file of keys is read here; a URL when a token needs it. failed
// is told why the keys could not be read, at most once an interval; the callers
// only hear that their token is not known.
func (g *Guard) TrustIssuer(config OIDCConfig, failed func(error)) error {
	if err := config.Validate(); err != nil {
		return fmt.Errorf("oidc: %w", err)
	}
	if !config.Enabled() {
		return nil
	}
	keys, err := newKeySet(config, g.now(), failed)
	if err != nil {
		return fmt.Errorf("oidc: %w", err)
	}
	g.issuer = &issuer{config: config, keys: keys}
	return nil
}

// looksSigned tells a JWT from a bearer token of the settings, which has no dots.
func looksSigned(token string) bool { return strings.Count(token, ".") == 2 }

// verify gives the operator that a token stands for. A refusal
// tells no more of the token than what it lacks.
func (i *issuer) verify(ctx context.Context, token string, now time.Time) (Operator, error) {
	if len(token) > maxOperatorToken {
		return Operator{}, unknownCaller("the operator's token is too long")
	}
	parsed, err := jwt.ParseSigned(token, signedBy)
	if err != nil || len(parsed.Headers) != 1 {
		return Operator{}, unknownCaller("the operator's token is no JWT that may be believed")
	}
	if kind, _ := parsed.Headers[0].ExtraHeaders[jose.HeaderType].(string); !slices.Contains([]string{"", "jwt", "at+jwt", "application/at+jwt"}, strings.ToLower(kind)) {
		return Operator{}, unknownCaller("the token is of a type that stands for no operator")
	}
	var standard jwt.Claims
	var all members
	if err := i.open(ctx, parsed, now, &standard, &all); err != nil {
		return Operator{}, err
	}
	if err := i.check(&standard, now); err != nil {
		return Operator{}, err
	}
	operator, err := i.operator(all)
	operator.Until = standard.Expiry.Time()
	return operator, err
}

// members are those of a token's payload, with its numbers as they were written.
type members map[string]any

// UnmarshalJSON reads a payload.
func (p *members) UnmarshalJSON(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode((*map[string]any)(p))
}

// open verifies the signature under the key that the token names.
func (i *issuer) open(ctx context.Context, token *jwt.JSONWebToken, now time.Time, claims ...any) error {
	for _, key := range i.keys.find(ctx, token.Headers[0].KeyID, now) {
		if key.Algorithm != "" && key.Algorithm != token.Headers[0].Algorithm {
			continue
		}
		if token.Claims(key.Key, claims...) == nil {
			return nil
		}
	}
	return unknownCaller("no key of the issuer signed the operator's token")
}

func (i *issuer) check(c *jwt.Claims, now time.Time) error {
	switch {
	case c.Issuer != i.config.Issuer:
		return unknownCaller("the operator's token is of another issuer")
	case !c.Audience.Contains(i.config.Audience):
		return unknownCaller("the operator's token is for another service")
	case c.Expiry == nil:
		return unknownCaller("the operator's token has no end")
	case !now.Before(c.Expiry.Time().Add(leeway)):
		return unknownCaller("the operator's token has expired")
	case c.NotBefore != nil && now.Add(leeway).Before(c.NotBefore.Time()), c.IssuedAt != nil && now.Add(leeway).Before(c.IssuedAt.Time()):
		return unknownCaller("the operator's token is not valid yet")
	}
	return nil
}

// operator reads who it is and what they may do.
func (i *issuer) operator(claims map[string]any) (Operator, error) {
	id, _ := claimOf(claims, i.config.IDClaim).(string)
	if id == "" || len(id) > maxIDBytes || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return Operator{}, unknownCaller("the operator's token does not say who it is")
	}
	operator := Operator{ID: "oidc:" + id, Issued: true}
	for _, word := range wordsOf(claimOf(claims, i.config.RoleClaim)) {
		if role := i.config.Roles[word]; ranks[role] > ranks[operator.Role] {
			operator.Role = role
		}
	}
	if operator.Role == "" {
		return Operator{}, fault.New(fault.PermissionDenied, "the operator's token gives no role here")
	}
	if i.config.TenantsClaim == "" {
		return operator, nil
	}
	tenants, all, ok := tenantsOf(claimOf(claims, i.config.TenantsClaim))
	if !ok {
		return Operator{}, fault.New(fault.PermissionDenied, "the operator's token gives no tenants here")
	}
	if !all {
		operator.Tenants = tenants
	}
	return operator, nil
}

// claimOf finds a member by its whole name, or by a path of names.
func claimOf(claims map[string]any, name string) any {
	if value, ok := claims[name]; ok {
		return value
	}
	first, rest, found := strings.Cut(name, ".")
	inner, ok := claims[first].(map[string]any)
	if !found || !ok {
		return nil
	}
	return claimOf(inner, rest)
}

// wordsOf reads one word, words parted by blanks, or a list.
func wordsOf(claim any) []string {
	switch claim := claim.(type) {
	case string:
		return strings.Fields(claim)
	case []any:
		var words []string
		for _, one := range claim {
			if word, ok := one.(string); ok {
				words = append(words, word)
			}
		}
		return words
	}
	return nil
}

// tenantsOf reads tenant ids as numbers or digits. A claim with anything else
// in it gives none: nobody sees all tenants by mistake.
func tenantsOf(claim any) (tenants []int64, all, ok bool) {
	list, isList := claim.([]any)
	if !isList {
		list = []any{claim}
	}
	for _, one := range list {
		text := fmt.Sprint(one)
		if text == "*" && len(list) == 1 {
			return nil, true, true
		}
		var id int64
		if err := json.Unmarshal([]byte(text), &id); err != nil || id == 0 {
			return nil, false, false
		}
		tenants = append(tenants, id)
	}
	return tenants, false, len(tenants) > 0 && len(tenants) <= maxTenants
}
