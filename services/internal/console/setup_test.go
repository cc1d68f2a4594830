package console

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	operatorv1 "lockstep.dev/proto/lockstep/operator/v1"
)

const annsToken = "ANNS-TOKEN-OF-THIS-TEST"

// serverTimeout is long for a request, and shorter than a live part is watched.
const serverTimeout = 2 * time.Second

// world is a console with a few pages over a small service: a box with a lid.
type world struct {
	t       *testing.T
	server  *httptest.Server
	logs    *observer.ObservedLogs
	stop    context.CancelFunc
	changes chan struct{} // makes the watched page look again

	mu      sync.Mutex
	verify  error
	role    operatorv1.Role // of ann
	tenants []int64         // of ann
	shown   string          // what the live part shows
	trouble error           // what the live page fails with
	still   bool
	done    []string // what was done, in order
}

func setup(t *testing.T) *world {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	ctx, stop := context.WithCancel(t.Context())
	w := &world{t: t, logs: logs, stop: stop, role: operatorv1.Role_ROLE_OPERATOR, tenants: []int64{7, 9}, shown: "first", changes: make(chan struct{})}
	c, err := New(ctx, Config{
		Service: "center", App: "Form.Center", Version: "v1", Log: zap.New(core), Now: time.Now, Operator: w.operator,
		Rules: map[string]identity.Rule{"/Boxes/Open": identity.OperatorWith(identity.RoleOperator), "/Boxes/Burn": identity.OperatorWith(identity.RoleAdmin)},
		Templates: fstest.MapFS{
			"box.html":   {Data: []byte(`{{define "content"}}box {{.}}{{end}}{{define "live"}}<p id="shown">{{.}}</p>{{end}}`)},
			"tools.html": {Data: []byte(`{{define "content"}}{{if .May "open/{box}"}}may open {{end}}{{if .May "burn"}}may burn{{end}}{{end}}`)},
			"wrong.html": {Data: []byte(`{{define "content"}}{{if .May "opne/{box}"}}may open{{end}}{{end}}`)},
		},
	})
	w.must(err)
	w.addPages(c)
	handler, err := c.Handler()
	w.must(err)
	// Time-outs that end no stream: they are for requests that end.
	w.server = httptest.NewUnstartedServer(handler)
	w.server.Config.ReadTimeout, w.server.Config.WriteTimeout = serverTimeout, serverTimeout
	w.server.Start()
	t.Cleanup(w.server.Close)
	t.Cleanup(stop)
	return w
}

func (w *world) addPages(c *Console) {
	c.Page(Page{Path: "", Nav: "Boxes", Template: "box.html", Show: func(ctx context.Context, r *Request) (View, error) {
		return View{Title: "Box", Data: r.Value("what")}, as1(ctx)
	}})
	mine := func(_ context.Context, r *Request) (View, error) { return View{Title: "Mine", Data: r.Who}, nil }
	c.Page(Page{Path: "mine", Template: "tools.html", Show: mine})
	c.Page(Page{Path: "wrong", Template: "wrong.html", Show: mine})
	c.Page(Page{Path: "burn", Nav: "Fire", Needs: "/Boxes/Burn", Template: "tools.html", Show: mine})
	c.Page(Page{Path: "all", Nav: "Everything", AllTenants: true, Template: "tools.html", Show: mine})
	c.Page(Page{Path: "live/{box}", Template: "box.html", Live: time.Hour, Show: w.showLive, Watch: w.watch})
	c.Page(Page{Path: "refused/{how}", Template: "box.html", Show: func(_ context.Context, r *Request) (View, error) {
		return View{}, map[string]error{
			"gone":     fault.ToStatus(fault.New(fault.TaskNotFound, "there is no task <b>7</b>").With("task", "7")),
			"role":     fault.ToStatus(fault.New(fault.PermissionDenied, "the role operator is needed")),
			"unknown":  fault.ToStatus(fault.New(fault.PermissionDenied, "the operator's token is not known").WithCode(codes.Unauthenticated)),
			"away":     fault.ToStatus(fault.New(fault.Unavailable, "try later")),
			"conflict": fault.ToStatus(fault.New(fault.TaskTerminal, "the task has ended")),
			"broken":   errors.New("a secret of the inside"),
		}[r.Value("how")]
	}})
	c.Action(Action{
		Path: "open/{box}", Needs: "/Boxes/Open",
		Form: func(_ context.Context, r *Request) (Form, error) {
			return Form{
				Title: "Open the box", Explain: "It is opened.", Button: "Open", Danger: true, Back: "", Facts: []Fact{{"Box", r.Value("box")}},
				Fields: []Field{{Name: "lid", Label: "Lid", Kind: Check}, {Name: "size", Label: "Size", Kind: Number, Value: "3"}, Reason()},
			}, nil
		},
		Do: w.open,
	})
	c.Download(Download{Path: "file/{name}", Open: func(_ context.Context, r *Request) (File, error) {
		if r.Value("name") == "none" {
			return File{}, fault.New(fault.NotFound, "there is no such file")
		}
		return File{Name: "a b.csv", Media: "text/csv", Write: func(out io.Writer) error {
			if _, err := io.WriteString(out, strings.Repeat("line\n", 10_000)); err != nil || r.Value("name") == "whole" {
				return err
			}
			return errors.New("the database is gone")
		}}, nil
	}})
}

// as1 fails where a call would not carry exactly ann's token.
func as1(ctx context.Context) error {
	sent, _ := metadata.FromOutgoingContext(ctx)
	if tokens := sent.Get(identity.OperatorTokenKey); len(tokens) != 1 || tokens[0] != annsToken {
		return errors.New("the call does not carry the token")
	}
	if _, bounded := ctx.Deadline(); !bounded {
		return errors.New("the call has no deadline")
	}
	return nil
}

func (w *world) operator(ctx context.Context) (*operatorv1.Operator, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.verify != nil {
		return nil, w.verify
	}
	if as1(ctx) != nil {
		return nil, fault.ToStatus(fault.New(fault.PermissionDenied, "the operator's token is not known").WithCode(codes.Unauthenticated))
	}
	return &operatorv1.Operator{Id: "ann <3", Role: w.role, SignedInWith: operatorv1.SignIn_SIGN_IN_TOKEN, TenantIds: w.tenants}, nil
}

func (w *world) showLive(ctx context.Context, _ *Request) (View, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return View{Title: "Live", Data: w.shown, Still: w.still}, errors.Join(w.trouble, as1(ctx))
}

func (w *world) watch(ctx context.Context, _ *Request, changed func()) error {
	for {
		select {
		case <-w.changes:
			changed()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *world) open(ctx context.Context, r *Request) (Done, error) {
	if err := as1(ctx); err != nil {
		return Done{}, err
	}
	size, err := r.Number("size")
	if err != nil {
		return Done{}, err
	}
	if size > 100 {
		return Done{}, fault.ToStatus(fault.New(fault.InvalidArgument, "the request has faults").WithField("size", "is at most 100").WithField("colour", "is missing"))
	}
	lid := "no lid"
	if r.Checked("lid") {
		lid = "lid"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, r.Value("box")+" "+lid+" "+r.Value("size")+" "+r.Value("reason"))
	return Done{To: "?what=opened", Say: "The box <is> open."}, nil
}

// set changes what the service shows.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// answer is an HTTP answer, read whole.
type answer struct {
	code    int
	body    string
	header  http.Header
	cookies []*http.Cookie
	broken  error // reading broke off with it
}

// ask sends a request as it is and follows nothing. A form makes it a POST.
func (w *world) ask(path string, form url.Values, header http.Header) answer {
	w.t.Helper()
	method, body := http.MethodGet, io.Reader(nil)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.server.URL+path, body)
	w.must(err)
	for name, values := range header {
		request.Header[name] = values
	}
	if form != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	got, err := http.DefaultTransport.RoundTrip(request)
	w.must(err)
	defer func() { w.must(got.Body.Close()) }()
	text, err := io.ReadAll(got.Body)
	return answer{code: got.StatusCode, body: string(text), header: got.Header, cookies: got.Cookies(), broken: err}
}

// ann is signed in.
func ann(more ...string) http.Header {
	header := http.Header{"Cookie": {"__Host-lockstep-center-form_center-session=" + annsToken}}
	for i := 0; i+1 < len(more); i += 2 {
		header.Add(more[i], more[i+1])
	}
	return header
}

func (a answer) want(t *testing.T, code int, texts ...string) {
	t.Helper()
	if a.code != code {
		t.Errorf("status %d, want %d: %s", a.code, code, a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			t.Errorf("%q is not in %s", text, a.body)
		}
	}
}

func (a answer) wantTo(t *testing.T, location string) {
	t.Helper()
	if got := a.header.Get("Location"); a.code != http.StatusSeeOther || got != location {
		t.Errorf("%d to %q, want 303 to %q", a.code, got, location)
	}
}
