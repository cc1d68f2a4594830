package console

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"lockstep.dev/pkg/identity"
)

const (
	sessionAge = 12 * time.Hour // a working day
	noticeAge  = time.Minute
	maxToken   = 3 << 10 // a browser keeps a cookie of 4 KiB
	maxNotice  = 1 << 10
)

// cookie makes one of the console's cookies. Cookies know no port: services on
// one host tell theirs apart by name.
func (c *Console) cookie(kind, value string, age time.Duration) *http.Cookie {
	cookie := &http.Cookie{
		Name: c.cookieName(kind), Value: value, Path: "/", MaxAge: int(age / time.Second),
		Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
	if value == "" {
		cookie.MaxAge = -1
	}
	return cookie
}

func (c *Console) cookieName(kind string) string {
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, strings.ToLower(c.App))
	return "__Host-lockstep-" + c.Service + "-" + plain + "-" + kind
}

// tokenOf returns the token of the one session cookie.
func (c *Console) tokenOf(r *http.Request) (string, bool) {
	found := r.CookiesNamed(c.cookieName("session"))
	if len(found) != 1 || !wellFormed(found[0].Value) {
		return "", false
	}
	return found[0].Value, true
}

// wellFormed: what metadata and a cookie hold without any escaping.
func wellFormed(token string) bool {
	if token == "" || len(token) > maxToken {
		return false
	}
	return !strings.ContainsFunc(token, func(r rune) bool {
		return r <= ' ' || r > '~' || r == '"' || r == ',' || r == ';' || r == '\\'
	})
}

// as makes calls carry an operator's token.
func as(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, identity.OperatorTokenKey, token)
}

// signedIn admits requests with a token in their cookie that the service knows,
// and sends others to sign in.
func (c *Console) signedIn(next func(http.ResponseWriter, *Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := c.tokenOf(r)
		if !ok {
			c.toSignIn(w, r)
			return
		}
		err := r.ParseForm()
		if err != nil {
			c.fail(w, &Request{HTTP: r, token: token}, errForm(err))
			return
		}
		// The request is read. What a page or a download takes is bounded by its own
		// time: with a read deadline over HTTP/1.1 they would end at it.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a writer without deadlines is as patient
		request := &Request{HTTP: r, token: token, now: c.Now}
		if request.Who, err = c.whoIs(as(r.Context(), token)); err != nil {
			c.fail(w, request, err)
			return
		}
		next(w, request)
	})
}

// toSignIn sends a reader to sign in and, after it, to where he was.
func (c *Console) toSignIn(w http.ResponseWriter, r *http.Request) {
	to := Root + "sign-in"
	if r.Method == http.MethodGet && r.URL.Path != Root {
		to += "?" + url.Values{"next": {here(r)}}.Encode()
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// nextOf is where to go after signing in: a page of the console, whatever is asked for.
func nextOf(asked string) string {
	to, err := url.Parse(asked)
	if err != nil || to.Scheme != "" || to.Host != "" || to.Opaque != "" || !strings.HasPrefix(to.Path, Root) || strings.Contains(to.Path, `\`) ||
		strings.Contains(to.Path, "..") || strings.Contains(to.Path, "//") {
		return Root
	}
	return (&url.URL{Path: to.Path, RawQuery: to.RawQuery}).String()
}

type signIn struct {
	Next  string
	Wrong string
}

func (c *Console) showSignIn(w http.ResponseWriter, r *http.Request) {
	c.write(w, &Request{HTTP: r}, http.StatusOK, c.signIn, View{Title: "Sign in", Data: signIn{Next: nextOf(r.FormValue("next"))}})
}

func (c *Console) doSignIn(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		c.fail(w, &Request{HTTP: r}, errForm(err))
		return
	}
	// Of the body alone: a token in a URL ends up in histories and logs.
	token, next := strings.TrimSpace(r.PostForm.Get("token")), nextOf(r.PostForm.Get("next"))
	again := func(code int, wrong string) {
		c.write(w, &Request{HTTP: r}, code, c.signIn, View{Title: "Sign in", Data: signIn{Next: next, Wrong: wrong}})
	}
	if !wellFormed(token) {
		again(http.StatusUnprocessableEntity, "This is no operator's token.")
		return
	}
	if _, err := c.whoIs(as(r.Context(), token)); err != nil {
		if unknown(err) {
			again(http.StatusForbidden, "The token is not known here.")
			return
		}
		c.fail(w, &Request{HTTP: r}, err)
		return
	}
	http.SetCookie(w, c.cookie("session", token, sessionAge))
	http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // nextOf lets only the console's own paths pass
}

func (c *Console) doSignOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, c.cookie("session", "", 0))
	http.Redirect(w, r, Root+"sign-in", http.StatusSeeOther)
}

// unknown: the service does not know the token, or not any more.
func unknown(err error) bool { return status.Code(err) == codes.Unauthenticated }

// leaveNotice lets the next page say what was done.
func (c *Console) leaveNotice(w http.ResponseWriter, text string) {
	if text != "" {
		text = base64.RawURLEncoding.EncodeToString([]byte(text[:min(len(text), maxNotice)]))
		http.SetCookie(w, c.cookie("notice", text, noticeAge))
	}
}

// takeNotice says it once.
func (c *Console) takeNotice(w http.ResponseWriter, r *http.Request) string {
	left, err := r.Cookie(c.cookieName("notice"))
	if err != nil {
		return ""
	}
	http.SetCookie(w, c.cookie("notice", "", 0))
	text, err := base64.RawURLEncoding.DecodeString(left.Value)
	if err != nil || len(text) > maxNotice {
		return ""
	}
	return strings.ToValidUTF8(string(text), "")
}
