package console

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/identity"
	operatorv1 "lockstep.dev/proto/lockstep/operator/v1"
)

func TestEveryPageSaysWhoIsSignedIn(t *testing.T) {
	w := setup(t)
	const want = `<span class="who" title="signed in with a token of this service&#39;s settings; sees tenants 7 9"><span class="hidden">You are </span><span class="id">ann &lt;3</span> <span class="role">operator</span></span>`
	for _, path := range []string{"/console/", "/console/open/7", "/console/refused/gone", "/console/nothing"} {
		if got := w.ask(path, nil, ann()); !strings.Contains(got.body, want) {
			t.Errorf("%s does not say who is signed in: %s", path, got.body)
		}
	}
	if got := w.ask("/console/sign-in", nil, nil); strings.Contains(got.body, `class="who"`) {
		t.Errorf("somebody is signed in: %s", got.body)
	}
}

func TestHowOneSignedIn(t *testing.T) {
	until := timestamppb.New(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	who := Who{told: &operatorv1.Operator{SignedInWith: operatorv1.SignIn_SIGN_IN_OIDC, Until: until}}
	if got, want := who.How(), "signed in with a token of the identity provider, which expires at 2026-11-30 12:00:00 UTC; sees every tenant"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestWhatARoleMayNotIsNotOffered: neither in the navigation nor on a page, and
// whoever asks for it anyway hears the refusal at once.
func TestWhatARoleMayNotIsNotOffered(t *testing.T) {
	for name, test := range map[string]struct {
		role      operatorv1.Role
		open      int    // the status of the action's form
		tools     string // what the page offers
		fire      bool   // in the navigation
		done      int    // of what was posted
		postState int
	}{
		"a viewer's":    {operatorv1.Role_ROLE_VIEWER, 403, "", false, 0, 403},
		"an operator's": {operatorv1.Role_ROLE_OPERATOR, 200, "may open ", false, 1, 303},
		"an admin's":    {operatorv1.Role_ROLE_ADMIN, 200, "may open may burn", true, 1, 303},
		"an unknown":    {99, 403, "", false, 0, 403},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.role = test.role
			got := w.ask("/console/mine", nil, ann())
			got.want(t, 200, test.tools+"\n<div id=\"live\">")
			for text, offered := range map[string]bool{"may open": test.tools != "", "may burn": test.fire, `href="/console/burn"`: test.fire} {
				if strings.Contains(got.body, text) != offered {
					t.Errorf("%q: %t, want %t", text, !offered, offered)
				}
			}
			form := w.ask("/console/open/7", nil, ann())
			form.want(t, test.open)
			if refused := test.open == 403; strings.Contains(form.body, "the role operator is needed") != refused || strings.Contains(form.body, "textarea") == refused {
				t.Errorf("the form is %s", form.body)
			}
			w.ask("/console/open/7", url.Values{"reason": {"because"}}, ann()).want(t, test.postState)
			if len(w.done) != test.done {
				t.Errorf("done: %v", w.done)
			}
			w.ask("/console/burn", nil, ann()).want(t, map[bool]int{true: 200, false: 403}[test.fire])
		})
	}
}

// What shows every tenant's is in the navigation of those who see every tenant.
func TestWhatIsOfAllTenantsIsNotOfferedToOthers(t *testing.T) {
	for name, test := range map[string]struct {
		tenants []int64
		offered bool
	}{"some tenants": {[]int64{7, 9}, false}, "every tenant": {nil, true}} {
		w := setup(t)
		w.tenants = test.tenants
		got := w.ask("/console/mine", nil, ann())
		got.want(t, 200, `href="/console/"`)
		if offered := strings.Contains(got.body, `href="/console/all"`); offered != test.offered {
			t.Errorf("%s: offered %t", name, offered)
		}
	}
}

func TestWhatHasNoRuleIsNoticed(t *testing.T) {
	t.Run("at_the_start", func(t *testing.T) {
		c, err := New(t.Context(), Config{Templates: fstest.MapFS{}, Log: zap.NewNop(), Rules: map[string]identity.Rule{}})
		if err != nil {
			t.Fatal(err)
		}
		c.Action(Action{Path: "burn", Form: func(context.Context, *Request) (Form, error) { return Form{}, nil }})
		if _, err := c.Handler(); err == nil || !strings.Contains(err.Error(), `"burn" needs "", which has no rule`) {
			t.Errorf("the start says %v", err)
		}
	})
	t.Run("in_a_template", func(t *testing.T) {
		w := setup(t)
		w.ask("/console/wrong", nil, ann()).want(t, 500)
	})
}
