package e2e

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"lockstep.dev/services/internal/browsertest"
)

// issuer is an identity provider whose keys are in a file.
type issuer struct {
	s   *stack
	key ed25519.PrivateKey
}

func (s *stack) issuer() *issuer {
	s.t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	s.must(err)
	text, err := json.Marshal(settings{"keys": []settings{
		{"kty": "OKP", "crv": "Ed25519", "kid": "k1", "use": "sig", "x": base64.RawURLEncoding.EncodeToString(public)},
	}})
	s.must(err)
	s.must(os.WriteFile(s.file("jwks.json"), text, 0o600))
	return &issuer{s: s, key: key}
}

// trusted are the settings of a service that believes it.
func (i *issuer) trusted() settings {
	return settings{
		"issuer": "https://id.example.com", "audience": "lockstep", "jwks_file": i.s.file("jwks.json"), "tenants_claim": "tenants",
		"roles": settings{"lookers": "viewer", "workers": "operator"},
	}
}

// token is of a person with one role, for an hour.
func (i *issuer) token(person, role string, tenants any) string {
	i.s.t.Helper()
	part := func(value settings) string {
		text, err := json.Marshal(value)
		i.s.must(err)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := part(settings{"alg": "EdDSA", "kid": "k1", "typ": "JWT"}) + "." + part(settings{
		"iss": "https://id.example.com", "aud": "lockstep", "sub": person, "roles": role, "tenants": tenants,
		"exp": time.Now().Add(time.Hour).Unix(),
	})
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(i.key, []byte(signed)))
}

// TestWhoAmI: both services tell an operator who they are, whichever way they
// signed in, over REST, on the command line and in the console's header.
func TestWhoAmI(t *testing.T) {
	t.Parallel()
	s := setup(t)
	provider := s.issuer()
	trusting := settings{"oidc": provider.trusted()}
	center := "http://" + s.startCenter("", trusting).at.HTTP
	consumer := "http://" + s.startConsumer("", trusting).at.HTTP
	olga, otto := provider.token("olga", "lookers", "*"), provider.token("otto", "workers", []int64{tenant})
	for token, want := range map[string]string{
		s.token: "tester admin all settings -",
		olga:    "oidc:olga viewer all identity provider",
		otto:    "oidc:otto operator 7 identity provider",
	} {
		code, out := s.lockstep(token, "whoami", "--center", center, "--consumer", consumer)
		lines := strings.Split(out, "\n")
		if code != 0 || len(lines) != 4 {
			t.Fatalf("exit code %d: %s", code, out)
		}
		for i, service := range []string{"center", "consumer"} {
			if got := strings.Join(strings.Fields(lines[i+1]), " "); !strings.HasPrefix(got, service+" "+want) {
				t.Errorf("%q, want %s %s", got, service, want)
			}
		}
	}
	if code, out := s.lockstep("nobody", "whoami", "--center", center, "--json"); code != 2 || !strings.Contains(out, "PERMISSION_DENIED") {
		t.Errorf("a token that nobody knows: exit code %d, %s", code, out)
	}

	for _, base := range []string{center, consumer} {
		tab := browsertest.Open(t, base)
		tab.SignIn(olga)
		if got := tab.Text(".who"); got != "You are\noidc:olga\nviewer" {
			t.Errorf("%s says %q", base, got)
		}
		if how := browsertest.Evaluate[string](tab, "document.querySelector('.who').title"); !strings.Contains(how, "a token of the identity provider, which expires at ") {
			t.Errorf("%s says %q", base, how)
		}
	}
}
