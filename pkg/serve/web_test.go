package serve

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
)

// web serves a console that calls the service, streams, and breaks off.
func web(ctx context.Context, conn *grpc.ClientConn) (http.Handler, error) {
	admin := centerv1.NewAdminServiceClient(conn)
	mux := http.NewServeMux()
	mux.HandleFunc("/console/{$}", func(w http.ResponseWriter, r *http.Request) {
		_, err := admin.GetTask(metadata.AppendToOutgoingContext(r.Context(), identity.OperatorTokenKey, r.Header.Get("Test-Token")), &centerv1.GetTaskRequest{TaskId: "t1"})
		w.Header().Set("Content-Security-Policy", "default-src 'self'")
		_, _ = io.WriteString(w, "called: "+string(fault.ReasonOf(err)))
	})
	mux.HandleFunc("/console/live/{task}", func(_ http.ResponseWriter, r *http.Request) {
		ctx := Unasked(metadata.AppendToOutgoingContext(r.Context(), identity.OperatorTokenKey, annsToken))
		_, _ = admin.GetTask(ctx, &centerv1.GetTaskRequest{TaskId: r.PathValue("task")}) // the log says how it went
	})
	mux.HandleFunc("/console/stream", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-ctx.Done():
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "ended in order\n")
	})
	mux.HandleFunc("/console/broken", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("part ", 10_000))
		panic(http.ErrAbortHandler)
	})
	return mux, nil
}

func TestAConsoleIsServedAndCallsAsItsReader(t *testing.T) {
	w := setup(t, func(_ *Config, parts *Parts) { parts.Web = web })
	got := w.call(t, "GET", "/console/", "", http.Header{"Test-Token": {annsToken}})
	if got.body != "called: " || got.header.Get("Content-Security-Policy") != "default-src 'self'" {
		t.Errorf("got %v", got)
	}
	if got := w.call(t, "GET", "/console/", "", http.Header{"Test-Token": {"another"}}); got.body != "called: PERMISSION_DENIED" {
		t.Errorf("another token: %v", got)
	}
	if got := w.call(t, "GET", "/v1/tasks/t1", "", bearerHeader()); got.status != http.StatusOK {
		t.Errorf("REST beside it: %v", got)
	}
}

// TestWhatAConsoleAsksByItselfIsNotLoggedAsSomebodysDeed: but its refusals are,
// and nobody outside can keep a call out of the log.
func TestWhatAConsoleAsksByItselfIsNotLoggedAsSomebodysDeed(t *testing.T) {
	w := setup(t, func(_ *Config, parts *Parts) { parts.Web = web })
	logged := func() (lines string) {
		for _, entry := range w.logs.TakeAll() {
			if entry.Message == "call" {
				lines += fmt.Sprint(entry.Level, " ", entry.ContextMap()["code"], ";")
			}
		}
		return lines
	}
	for _, test := range []struct{ name, path, want string }{
		{"a page that is looked at", "/console/", "info OK;"},
		{"a page that is kept current", "/console/live/t1", "debug OK;"},
		{"a page that can't be kept current", "/console/live/gone", "info NotFound;"},
	} {
		w.logs.TakeAll()
		w.call(t, "GET", test.path, "", http.Header{"Test-Token": {annsToken}})
		if got := logged(); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	w.call(t, "GET", "/v1/tasks/t1", "", http.Header{"Authorization": {"Bearer " + annsToken}, "Grpc-Metadata-Lockstep-Unasked": {"yes"}, "Lockstep-Unasked": {"yes"}})
	if got := logged(); got != "info OK;" {
		t.Errorf("REST: %q", got)
	}
	if _, err := centerv1.NewAdminServiceClient(w.dial(t)).GetTask(Unasked(ann(t.Context())), &centerv1.GetTaskRequest{}); err != nil {
		t.Fatal(err)
	}
	if got := logged(); got != "info OK;" {
		t.Errorf("gRPC: %q", got)
	}
}

func TestTheFirstPageLeadsToTheConsole(t *testing.T) {
	w := setup(t, func(_ *Config, parts *Parts) { parts.Web = web })
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	got, err := client.Get("http://" + addressOf(w.server.web) + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	if got.StatusCode != http.StatusSeeOther || got.Header.Get("Location") != "/console/" {
		t.Errorf("%d to %q", got.StatusCode, got.Header.Get("Location"))
	}
	without := setup(t, nil)
	if got := without.call(t, "GET", "/", "", bearerHeader()); got.status != http.StatusNotFound {
		t.Errorf("without a console: %v", got)
	}
}

func TestAStreamOfTheConsoleEndsInOrderWhenTheServiceStops(t *testing.T) {
	w := setup(t, func(_ *Config, parts *Parts) { parts.Web = web })
	got, err := http.Get("http://" + addressOf(w.server.web) + "/console/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	began := time.Now()
	w.stop()
	text, err := io.ReadAll(got.Body)
	if string(text) != "begun\nended in order\n" || err != nil {
		t.Errorf("the stream says %q, %v", text, err)
	}
	if err := w.awaitEnd(t); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > grace/2 {
		t.Errorf("stopping took %s", took)
	}
}

func TestAnAnswerThatBrokeOffDoesNotLookWhole(t *testing.T) {
	w := setup(t, func(_ *Config, parts *Parts) { parts.Web = web })
	got, err := http.Get("http://" + addressOf(w.server.web) + "/console/broken")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	if text, err := io.ReadAll(got.Body); err == nil {
		t.Errorf("%d bytes, and no error", len(text))
	}
	if n := w.logs.FilterMessage("request panicked").Len(); n != 0 {
		t.Errorf("it is logged as a panic")
	}
}
