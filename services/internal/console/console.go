package console

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/identity"
	operatorv1 "lockstep.dev/proto/lockstep/operator/v1"
)

// Root is where the console is served.
const Root = "/console/"

const (
	callTimeout = 20 * time.Second // below the server's write time-out
	maxForm     = 64 << 10         // a form holds a few names and a reason
)

// policy lets a page load what this origin serves, and nothing else do anything.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Config is what a service says of itself.
type Config struct {
	Service string // "center" or "consumer"
	App     string // the service's own app key
	Version string
	// Templates are the service's pages.
	Templates fs.FS
	// Operator asks the service whom the token of the call stands for. Signing in
	// succeeds with it.
	Operator func(ctx context.Context) (*operatorv1.Operator, error)
	// Rules are what the service decides by who may call a method.
	Rules map[string]identity.Rule
	Log   *zap.Logger
	Now   func() time.Time
}

// Console collects pages; its handler serves them.
type Console struct {
	Config

	stopping <-chan struct{}
	mux      *http.ServeMux
	files    map[string]asset
	base     *template.Template
	signIn   *template.Template
	problem  *template.Template
	form     *template.Template
	nav      []navEntry
	needs    map[string]identity.Rule // by the path of what needs it
	streams  *streams
	broken   []error
}

// New makes a console without pages. What it streams ends when ctx does.
func New(ctx context.Context, config Config) (*Console, error) {
	c := &Console{Config: config, stopping: ctx.Done(), mux: http.NewServeMux(), needs: map[string]identity.Rule{}, streams: newStreams()}
	var err error
	if c.files, err = assets(); err != nil {
		return nil, err
	}
	if c.base, err = template.New("").Funcs(c.funcs()).ParseFS(shell, "templates/layout.html", "templates/parts.html"); err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if shared, _ := fs.Glob(config.Templates, "_*.html"); len(shared) > 0 {
		if c.base, err = c.base.ParseFS(config.Templates, shared...); err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
	}
	for name, into := range map[string]**template.Template{"signin": &c.signIn, "problem": &c.problem, "form": &c.form} {
		if *into, err = c.parse(shell, "templates/"+name+".html"); err != nil {
			return nil, err
		}
	}
	c.mux.HandleFunc("GET "+Root+"sign-in", c.showSignIn)
	c.mux.HandleFunc("POST "+Root+"sign-in", c.doSignIn)
	c.mux.HandleFunc("POST "+Root+"sign-out", c.doSignOut)
	c.mux.HandleFunc("GET "+Root+"static/{version}/{name}", c.serveAsset)
	c.mux.Handle(Root, c.signedIn(func(w http.ResponseWriter, r *Request) { c.fail(w, r, errNoPage()) }))
	return c, nil
}

//go:embed templates/*.html
var shell embed.FS

// parse reads a page's template over the layout.
func (c *Console) parse(files fs.FS, name string) (*template.Template, error) {
	page, err := c.base.Clone()
	if err == nil {
		page, err = page.ParseFS(files, name)
	}
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return page, nil
}

// Handler serves the console. It fails where a page's template does not parse.
func (c *Console) Handler() (http.Handler, error) {
	if err := errors.Join(c.broken...); err != nil {
		return nil, err
	}
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.fail(w, &Request{HTTP: r}, errOrigin())
	}))
	inner := origin.Handler(c.mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Cache-Control", "no-store")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		// Not no-referrer: with it a browser names no origin of a form, either.
		header.Set("Referrer-Policy", "same-origin")
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		inner.ServeHTTP(w, r)
	}), nil
}

// Link leads to a page. Path is below Root and may have a query.
type Link struct{ Label, Path string }

// Href is the link's address.
func (l Link) Href() string { return Href(l.Path) }

// Href is the address of a page, given its path below Root.
func Href(path string) string { return Root + strings.TrimPrefix(path, "/") }

// Path joins parts to a path below Root; what is in a part stays in it.
func Path(parts ...string) string {
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, "/")
}

// Request is what a page was asked for.
type Request struct {
	HTTP *http.Request
	Who  Who

	token string
	now   func() time.Time
}

// Value gives a wildcard of the path, else a field of the form, else of the query,
// without the space around it.
func (r *Request) Value(name string) string {
	if value := r.HTTP.PathValue(name); value != "" {
		return value
	}
	return strings.TrimSpace(r.HTTP.FormValue(name))
}

// Ago says how long ago a moment is, and when it was; "" for none.
func (r *Request) Ago(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return ago(r.now().Sub(at.AsTime())) + ", at " + exact(at.AsTime())
}

// Checked reports whether a check box was.
func (r *Request) Checked(name string) bool { return r.Value(name) != "" }

// pattern makes a pattern for the multiplexer of a path below a root.
func pattern(method, root, path string) string {
	if path == "" {
		path = "{$}"
	}
	return method + " " + root + path
}
