package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"lockstep.dev/pkg/fault"
)

func TestSigningIn(t *testing.T) {
	w := setup(t)
	t.Run("puts_the_token_into_a_cookie_that_only_this_host_gets_and_no_script", func(t *testing.T) {
		got := w.ask("/console/sign-in", url.Values{"token": {" " + annsToken + "\n"}, "next": {"/console/live/a?b=c"}}, nil)
		got.wantTo(t, "/console/live/a?b=c")
		if len(got.cookies) != 1 {
			t.Fatalf("cookies %v", got.cookies)
		}
		const want = "__Host-lockstep-center-form_center-session=" + annsToken + "; Path=/; Max-Age=43200; HttpOnly; Secure; SameSite=Strict"
		if cookie := got.cookies[0].String(); cookie != want {
			t.Errorf("the cookie is %s, want %s", cookie, want)
		}
		if strings.Contains(got.body+got.header.Get("Location"), annsToken) {
			t.Error("the token is in the answer's body or address")
		}
	})
	for name, test := range map[string]struct {
		form  url.Values
		query string
		code  int
		text  string
	}{
		"with_a_token_that_is_not_known": {url.Values{"token": {"another"}}, "", 403, "The token is not known here."},
		"with_none":                      {url.Values{"token": {""}}, "", 422, "This is no operator"},
		"with_the_token_in_the_address":  {url.Values{}, "?token=" + annsToken, 422, "This is no operator"},
		"with_what_no_cookie_holds":      {url.Values{"token": {"a;b"}}, "", 422, "This is no operator"},
		"with_a_line_break":              {url.Values{"token": {"a\nb"}}, "", 422, "This is no operator"},
		"with_far_too_much":              {url.Values{"token": {strings.Repeat("a", maxToken+1)}}, "", 422, "This is no operator"},
		"with_more_than_a_form_holds":    {url.Values{"token": {strings.Repeat("a", maxForm)}}, "", 429, "RESOURCE_LIMIT"},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.ask("/console/sign-in"+test.query, test.form, nil)
			got.want(t, test.code, test.text)
			if len(got.cookies) != 0 || strings.Contains(got.body, annsToken) {
				t.Errorf("cookies %v, body %s", got.cookies, got.body)
			}
		})
	}
	t.Run("while_the_service_can't_answer", func(t *testing.T) {
		w.set(func() { w.verify = fault.ToStatus(fault.New(fault.Unavailable, "try later")) })
		got := w.ask("/console/sign-in", url.Values{"token": {annsToken}}, nil)
		got.want(t, 503, "UNAVAILABLE", "try later")
		if len(got.cookies) != 0 {
			t.Errorf("cookies %v", got.cookies)
		}
	})
}

func TestAfterSigningInOnlyTheConsoleComesNext(t *testing.T) {
	for asked, want := range map[string]string{
		"":                             "/console/",
		"/console/tasks?state=FAILED":  "/console/tasks?state=FAILED",
		"https://evil.example/":        "/console/",
		"//evil.example/console/":      "/console/",
		`/\evil.example`:               "/console/",
		"/console/../v1/tasks":         "/console/",
		"/console/%2e%2e/v1":           "/console/",
		"/console//evil.example":       "/console/",
		"javascript:alert(1)":          "/console/",
		"/v1/tasks":                    "/console/",
		"/console/tasks\r\nSet-Cookie": "/console/",
	} {
		if got := nextOf(asked); got != want {
			t.Errorf("%q leads to %q, want %q", asked, got, want)
		}
	}
}

func TestWhoIsNotSignedInIsSentToSignIn(t *testing.T) {
	w := setup(t)
	w.ask("/console/", nil, nil).wantTo(t, "/console/sign-in")
	w.ask("/console/live/a?b=c", nil, nil).wantTo(t, "/console/sign-in?next=%2Fconsole%2Flive%2Fa%3Fb%3Dc")
	w.ask("/console/open/7", url.Values{"reason": {"x"}}, nil).wantTo(t, "/console/sign-in")
	w.ask("/console/file/whole", nil, nil).wantTo(t, "/console/sign-in?next=%2Fconsole%2Ffile%2Fwhole")
	w.ask("/console/nothing", nil, nil).wantTo(t, "/console/sign-in?next=%2Fconsole%2Fnothing")
	for _, cookie := range []string{
		"__Host-lockstep-center-form_center-session=", "__Host-lockstep-consumer-form_center-session=" + annsToken,
		"__Host-lockstep-center-form_center-session=a; __Host-lockstep-center-form_center-session=b",
	} {
		w.ask("/console/", nil, http.Header{"Cookie": {cookie}}).wantTo(t, "/console/sign-in")
	}
	if len(w.done) != 0 {
		t.Errorf("done: %v", w.done)
	}
	t.Run("a_token_that_is_not_known_any_more_is_forgotten", func(t *testing.T) {
		got := w.ask("/console/refused/unknown", nil, ann())
		got.wantTo(t, "/console/sign-in?next=%2Fconsole%2Frefused%2Funknown")
		if len(got.cookies) != 1 || got.cookies[0].MaxAge != -1 {
			t.Errorf("cookies %v", got.cookies)
		}
	})
}

func TestSigningOutForgetsTheToken(t *testing.T) {
	w := setup(t)
	got := w.ask("/console/sign-out", url.Values{}, ann())
	got.wantTo(t, "/console/sign-in")
	const want = "__Host-lockstep-center-form_center-session=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Strict"
	if len(got.cookies) != 1 || got.cookies[0].String() != want {
		t.Errorf("cookies %v, want %s", got.cookies, want)
	}
	w.ask("/console/sign-out", nil, ann()).want(t, 404) // a link signs nobody out
}

func TestAnswersHaveTheSafeHeaders(t *testing.T) {
	w := setup(t)
	for _, path := range []string{"/console/", "/console/sign-in", "/console/nothing", "/console/open/7", "/console/file/whole", "/console/static/0/console.css"} {
		header := w.ask(path, nil, ann()).header
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			"X-Content-Type-Options":  "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %s: %q, want %q", path, name, got, want)
			}
		}
	}
}

func TestAnotherSiteChangesNothing(t *testing.T) {
	w := setup(t)
	form := url.Values{"reason": {"because"}}
	for name, header := range map[string][]string{
		"by_its_origin":             {"Origin", "https://evil.example"},
		"by_an_origin_of_nobody":    {"Origin", "null"},
		"as_the_browser_says":       {"Sec-Fetch-Site", "cross-site"},
		"of_the_same_site":          {"Sec-Fetch-Site", "same-site"},
		"with_an_origin_that_lies":  {"Sec-Fetch-Site", "cross-site", "Origin", w.server.URL},
		"of_another_port_by_origin": {"Origin", "http://127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			w.ask("/console/open/7", form, ann(header...)).want(t, 403, "PERMISSION_DENIED", "another site")
			w.ask("/console/sign-in", url.Values{"token": {annsToken}}, http.Header{header[0]: {header[1]}}).want(t, 403)
		})
	}
	if len(w.done) != 0 {
		t.Errorf("done: %v", w.done)
	}
	w.ask("/console/open/7", form, ann("Sec-Fetch-Site", "same-origin", "Origin", w.server.URL)).wantTo(t, "/console/?what=opened")
}

func TestNoTokenIsLoggedOrShown(t *testing.T) {
	w := setup(t)
	bodies := ""
	w.ask("/console/sign-in", url.Values{"token": {annsToken}}, nil)
	w.ask("/console/sign-in", url.Values{"token": {annsToken + "-wrong"}}, nil)
	for _, path := range []string{"/console/", "/console/refused/broken", "/console/refused/gone", "/console/open/7", "/console/file/broken", "/console/sign-in?token=" + annsToken} {
		bodies += w.ask(path, nil, ann()).body
	}
	w.ask("/console/open/7", url.Values{"token": {annsToken}}, ann())
	for _, entry := range w.logs.All() {
		text, err := json.Marshal(entry.ContextMap())
		w.must(err)
		bodies += entry.Message + string(text)
	}
	if strings.Contains(bodies, annsToken) {
		t.Errorf("the token is there: %s", bodies)
	}
	if !strings.Contains(bodies, "a secret of the inside") {
		t.Error("the log does not tell why a page failed")
	}
}
