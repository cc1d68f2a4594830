package console

import (
	"bytes"
	"context"
	"html/template"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/pkg/identity"
)

// Page is a page: one function and one template.
type Page struct {
	Path  string // below Root, with wildcards as net/http has them; "" is the first page
	Nav   string // its label in the navigation; "" for a page that is not in it
	Under string // the Path of the navigation's entry that it belongs to, if it has none
	Needs string // the full name of the API's method that it is about; "" where every role may see it
	// AllTenants: its API answers only operators that see every tenant, so that the
	// navigation does not offer it to others.
	AllTenants bool
	Template   string
	Show       func(ctx context.Context, r *Request) (View, error)
	// Live, if set, is how often the block "live" is drawn anew while a page is open.
	Live time.Duration
	// Watch, if set, calls changed when it is to be drawn at once. It runs until ctx
	// ends or it fails, and is then called again after Live.
	Watch func(ctx context.Context, r *Request, changed func()) error
}

// View is what a page shows.
type View struct {
	Title string
	Trail []Link // what lies above the page
	Data  any    // the template's dot
	// Still: nothing will move here any more, so nothing is streamed.
	Still bool
}

// Page adds a page. The navigation has them in the order they come.
func (c *Console) Page(p Page) {
	c.page(p, c.Templates)
}

// page adds a page whose template is among files.
func (c *Console) page(p Page, files fs.FS) {
	tmpl, err := c.parse(files, p.Template)
	if err != nil {
		c.broken = append(c.broken, err)
		return
	}
	if p.Needs != "" {
		c.need(p.Path, p.Needs)
	}
	if p.Nav != "" {
		c.nav, p.Under = append(c.nav, navEntry{Link: Link{Label: p.Nav, Path: p.Path}, allTenants: p.AllTenants}), p.Path
	}
	c.mux.Handle(pattern("GET", Root, p.Path), c.signedIn(c.admit(p.Path, func(w http.ResponseWriter, r *Request) {
		ctx, cancel := context.WithTimeout(as(r.HTTP.Context(), r.token), callTimeout)
		defer cancel()
		view, err := p.Show(ctx, r)
		if err != nil {
			c.fail(w, r, err)
			return
		}
		f := c.frame(w, r, view)
		f.under(p.Under)
		if p.Live > 0 && !view.Still {
			f.Live = Root + "live/" + strings.TrimPrefix(here(r.HTTP), Root)
		}
		c.execute(w, http.StatusOK, tmpl, f)
	})))
	if p.Live > 0 {
		c.mux.HandleFunc(pattern("GET", Root+"live/", p.Path), c.stream(p, tmpl))
	}
}

// frame is what the layout draws around a page.
type frame struct {
	*Console

	Title    string
	Trail    []Link
	Nav      []navEntry
	Notice   string
	Live     string // where the page's stream is; "" for none
	SignedIn bool
	Who      Who // nobody where the service could not say
	Data     any
}

type navEntry struct {
	Link

	Current    bool
	allTenants bool
}

func (f *frame) under(path string) {
	for i, entry := range f.Nav {
		f.Nav[i].Current = entry.Path == path
	}
}

func (c *Console) frame(w http.ResponseWriter, r *Request, view View) *frame {
	f := &frame{Console: c, Title: view.Title, Trail: view.Trail, SignedIn: r.token != "", Who: r.Who, Data: view.Data, Notice: c.takeNotice(w, r.HTTP)}
	for _, entry := range c.nav {
		if rule, ok := c.needs[entry.Path]; ok && rule.Refuse(identity.Role(r.Who.Role)) != nil {
			continue
		}
		if entry.allTenants && len(r.Who.told.GetTenantIds()) > 0 {
			continue
		}
		f.Nav = append(f.Nav, entry)
	}
	return f
}

// write draws a page outside the navigation.
func (c *Console) write(w http.ResponseWriter, r *Request, code int, tmpl *template.Template, view View) {
	c.execute(w, code, tmpl, c.frame(w, r, view))
}

// execute draws the whole page before the first byte of it is sent.
func (c *Console) execute(w http.ResponseWriter, code int, tmpl *template.Template, f *frame) {
	var page bytes.Buffer
	if err := tmpl.ExecuteTemplate(&page, "layout", f); err != nil {
		c.Log.Error("console page failed", zap.String("template", tmpl.Name()), zap.Error(err))
		http.Error(w, "INTERNAL: something broke inside; the log has it", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(page.Bytes()) // the client may be gone; nothing is left to tell it
}

// here is the path and query of a request, as they came.
func here(r *http.Request) string {
	at := r.URL.EscapedPath()
	if r.URL.RawQuery != "" {
		at += "?" + r.URL.RawQuery
	}
	return at
}
