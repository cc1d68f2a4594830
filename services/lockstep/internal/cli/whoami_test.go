package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestWhoami(t *testing.T) {
	const ada = `{"operator":{"id":"oidc:ada","role":"ROLE_OPERATOR","signedInWith":"SIGN_IN_OIDC","tenantIds":["7","9"],"until":"2026-11-30T13:00:00Z"}}`
	const tom = `{"operator":{"id":"tom","role":"ROLE_ADMIN","signedInWith":"SIGN_IN_TOKEN","tenantIds":[],"until":null}}`
	center, consumer := setup(t, map[string]string{"GET /v1/operator": ada}), setup(t, map[string]string{"GET /v1/operator": tom})
	w := center
	w.env[envConsumer] = consumer.env[envConsumer]
	t.Run("asks_both_services", func(t *testing.T) {
		code := w.run(t, "whoami")
		const want = `SERVICE   OPERATOR  ROLE      TENANTS  TOKEN              UNTIL
center    oidc:ada  operator  7,9      identity provider  2026-11-30T13:00:00Z
consumer  tom       admin     all      settings           -
`
		if code != exitDone || w.out.String() != want {
			t.Errorf("exit code %d, %q, want %q; %s", code, w.out.String(), want, w.err.String())
		}
	})
	t.Run("gives_their_answers_as_JSON", func(t *testing.T) {
		code := w.run(t, "whoami", "--json")
		var got map[string]map[string]map[string]any
		if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil || code != exitDone {
			t.Fatalf("exit code %d, %v: %s", code, err, w.out.String())
		}
		if got["center"]["operator"]["role"] != "ROLE_OPERATOR" || got["consumer"]["operator"]["id"] != "tom" {
			t.Errorf("%v", got)
		}
	})
	t.Run("tells_who_refuses_and_shows_the_other", func(t *testing.T) {
		consumer.answers["GET /v1/operator"] = `403 {"code":"PERMISSION_DENIED","message":"the operator's token gives no role here"}`
		code := w.run(t, "whoami")
		if code != exitRefused || !strings.Contains(w.out.String(), "center   oidc:ada") || !strings.Contains(w.err.String(), "the consumer: ask who I am: PERMISSION_DENIED") {
			t.Errorf("exit code %d, %s%s", code, w.out.String(), w.err.String())
		}
	})
	t.Run("asks_one_where_one_is_known", func(t *testing.T) {
		delete(w.env, envConsumer)
		if code := w.run(t, "whoami"); code != exitDone || strings.Contains(w.out.String(), "consumer") {
			t.Errorf("exit code %d, %s%s", code, w.out.String(), w.err.String())
		}
		delete(w.env, envCenter)
		if code := w.run(t, "whoami"); code != exitError || !strings.Contains(w.err.String(), "where are the services?") {
			t.Errorf("exit code %d, %s", code, w.err.String())
		}
	})
}
