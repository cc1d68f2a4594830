package console

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"lockstep.dev/pkg/fault"
)

// listener reads a stream of a live part.
type listener struct {
	w     *world
	code  int
	lines *bufio.Scanner
	end   context.CancelFunc
}

func (w *world) listen(path string, header http.Header) *listener {
	w.t.Helper()
	ctx, end := context.WithTimeout(w.t.Context(), 20*time.Second)
	w.t.Cleanup(end)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL+path, nil)
	w.must(err)
	request.Header = header
	got, err := (&http.Transport{}).RoundTrip(request)
	w.must(err)
	w.t.Cleanup(func() { _ = got.Body.Close() })
	return &listener{w: w, code: got.StatusCode, lines: bufio.NewScanner(got.Body), end: end}
}

// event reads the next one, as "name data"; "" at the end.
func (l *listener) event() string {
	l.w.t.Helper()
	name, data := "", []string{}
	for l.lines.Scan() {
		switch field, value, _ := strings.Cut(l.lines.Text(), ": "); {
		case field == "event":
			name = value
		case field == "data":
			data = append(data, value)
		case l.lines.Text() == "" && name != "":
			return name + " " + strings.Join(data, "\n")
		}
	}
	return ""
}

func (l *listener) want(event string) {
	l.w.t.Helper()
	if got := l.event(); got != event {
		l.w.t.Fatalf("the stream says %q, want %q", got, event)
	}
}

func (w *world) change(change func()) {
	w.t.Helper()
	w.set(change)
	select {
	case w.changes <- struct{}{}:
	case <-time.After(20 * time.Second):
		w.t.Fatal("nobody watches")
	}
}

func TestALivePartIsDrawnAnew(t *testing.T) {
	w := setup(t)
	l := w.listen("/console/live/live/a", ann())
	l.want(`part <p id="shown">first</p>`)
	// Three redraws of at least a second each go past the server's time-outs.
	if 3*minRedraw <= serverTimeout {
		t.Fatal("the time-outs are not passed")
	}
	w.change(func() { w.shown = "second <" })
	l.want(`part <p id="shown">second &lt;</p>`)
	w.change(func() { w.trouble = fault.ToStatus(fault.New(fault.Unavailable, "x")) })
	l.want("trouble UNAVAILABLE")
	w.change(func() { w.trouble, w.shown, w.still = nil, "last", true })
	l.want(`part <p id="shown">last</p>`)
	l.want("still done")
	l.want("")
}

func TestALivePartEndsWithTheToken(t *testing.T) {
	w := setup(t)
	l := w.listen("/console/live/live/a", ann())
	l.want(`part <p id="shown">first</p>`)
	w.change(func() {
		w.trouble = fault.ToStatus(fault.New(fault.PermissionDenied, "x").WithCode(codes.Unauthenticated))
	})
	l.want("trouble PERMISSION_DENIED")
	l.want("")
	if got := w.listen("/console/live/live/a", http.Header{}).code; got != http.StatusForbidden {
		t.Errorf("without a token: %d", got)
	}
}

func TestALivePartEndsWhenTheServiceStops(t *testing.T) {
	w := setup(t)
	l := w.listen("/console/live/live/a", ann())
	l.want(`part <p id="shown">first</p>`)
	w.stop()
	l.want("")
}

func TestLivePartsAreBoundedForEachOperator(t *testing.T) {
	w := setup(t)
	var open []*listener
	for range maxStreamsEach {
		l := w.listen("/console/live/live/a", ann())
		l.want(`part <p id="shown">first</p>`)
		open = append(open, l)
	}
	if got := w.listen("/console/live/live/a", ann()).code; got != http.StatusTooManyRequests {
		t.Errorf("one more: %d", got)
	}
	bob := http.Header{"Cookie": {"__Host-lockstep-center-form_center-session=bob"}}
	if got := w.listen("/console/live/live/a", bob).code; got != http.StatusOK {
		t.Errorf("another operator: %d", got)
	}
	open[0].end()
	for deadline := time.Now().Add(20 * time.Second); ; {
		l := w.listen("/console/live/live/a", ann())
		if l.code == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a place that was left is not given again")
		}
	}
}

func TestAllLivePartsTogetherAreBounded(t *testing.T) {
	s := newStreams()
	for i := range maxStreams {
		if _, ok := s.take(strings.Repeat("x", i+1)); !ok {
			t.Fatalf("refused after %d", i)
		}
	}
	if _, ok := s.take("another"); ok {
		t.Error("one too many")
	}
}
