package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"html/template"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/pkg/serve"
)

const (
	maxStreamsEach = 6                // of an operator; a browser opens no more to one host
	maxStreams     = 48               // below what the gateway's connection carries
	streamAge      = 15 * time.Minute // then the browser asks again, with whatever cookie it has then
	minRedraw      = time.Second      // a page asks a few calls each time
	heartbeat      = 15 * time.Second
	sendTimeout    = 10 * time.Second // for a reader that does not read
)

// streams counts what is open, by the digest of the token.
type streams struct {
	mu   sync.Mutex
	open map[[sha256.Size]byte]int
	all  int
}

func newStreams() *streams { return &streams{open: map[[sha256.Size]byte]int{}} }

// take opens one more, if the operator may have it.
func (s *streams) take(token string) (giveBack func(), ok bool) {
	who := sha256.Sum256([]byte(token))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[who] >= maxStreamsEach || s.all >= maxStreams {
		return nil, false
	}
	s.open[who]++
	s.all++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.open[who]--; s.open[who] == 0 {
			delete(s.open, who)
		}
	}, true
}

// stream serves a page's live part as server-sent events: "part" with new HTML,
// "trouble" while it can't be had, "still" when nothing will move any more.
func (c *Console) stream(p Page, tmpl *template.Template) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		token, ok := c.tokenOf(request)
		if !ok {
			http.Error(w, "PERMISSION_DENIED: not signed in", http.StatusForbidden)
			return
		}
		giveBack, ok := c.streams.take(token)
		if !ok {
			http.Error(w, "RESOURCE_LIMIT: too many pages are live", http.StatusTooManyRequests)
			return
		}
		defer giveBack()
		ctx, cancel := context.WithTimeout(serve.Unasked(as(request.Context(), token)), streamAge)
		defer cancel()
		s := &stream{
			console: c, page: p, tmpl: tmpl, request: &Request{HTTP: request, token: token, now: c.Now},
			w: w, control: http.NewResponseController(w), changed: make(chan struct{}, 1),
		}
		// The server's time-outs are for requests that end.
		if err := errors.Join(s.control.SetReadDeadline(time.Time{}), s.control.SetWriteDeadline(time.Time{})); err != nil {
			c.Log.Error("console stream failed", zap.Error(err))
			http.Error(w, "INTERNAL: streams are not possible here", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Accel-Buffering", "no") // a proxy between must not wait for more
		var watching sync.WaitGroup
		defer watching.Wait()
		defer cancel()
		if p.Watch != nil {
			watching.Go(func() { s.watch(ctx) })
		}
		s.run(ctx)
	}
}

// stream is one open live part.
type stream struct {
	console *Console
	page    Page
	tmpl    *template.Template
	request *Request
	w       http.ResponseWriter
	control *http.ResponseController
	changed chan struct{}

	sent     []byte // what the reader has
	lastSent time.Time
}

func (s *stream) watch(ctx context.Context) {
	wake := func() {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	for s.pause(ctx, 0) {
		_ = s.page.Watch(ctx, s.request, wake) // what keeps the page from being read is told by drawing it
		if !s.pause(ctx, s.page.Live) {
			return
		}
	}
}

// pause reports whether to go on after d.
func (s *stream) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.console.stopping:
	}
	return false
}

func (s *stream) run(ctx context.Context) {
	if s.send("", []byte(": live\nretry: 3000\n")) != nil {
		return
	}
	for s.step(ctx) {
		next := time.NewTimer(s.page.Live)
		select {
		case <-next.C:
		case <-s.changed:
			next.Stop()
			if !s.pause(ctx, minRedraw) {
				return
			}
		case <-ctx.Done():
			next.Stop()
			return
		case <-s.console.stopping:
			next.Stop()
			return
		}
	}
}

// step draws once and sends what is new; it reports whether to go on.
func (s *stream) step(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var view View
	var err error
	if s.request.Who.ID == "" {
		s.request.Who, err = s.console.whoIs(ctx)
	}
	if err == nil {
		view, err = s.page.Show(ctx, s.request)
	}
	if err != nil {
		problem, _ := problemOf(err)
		return s.send("trouble", []byte(problem.Code)) == nil && !unknown(err)
	}
	var part bytes.Buffer
	if err := s.tmpl.ExecuteTemplate(&part, "live", view.Data); err != nil {
		s.console.Log.Error("console page failed", zap.String("template", s.page.Template), zap.Error(err))
		return false
	}
	switch {
	case !bytes.Equal(part.Bytes(), s.sent):
		if s.send("part", part.Bytes()) != nil {
			return false
		}
		s.sent = part.Bytes()
	case s.console.Now().Sub(s.lastSent) >= heartbeat:
		if s.send("", []byte(": still here\n")) != nil {
			return false
		}
	}
	if view.Still {
		_ = s.send("still", []byte("done")) // the stream ends either way
	}
	return !view.Still
}

// send writes one event; without a name, the lines as they are.
func (s *stream) send(event string, data []byte) error {
	var out bytes.Buffer
	if event == "" {
		out.Write(data)
	} else {
		out.WriteString("event: " + event + "\n")
		for line := range bytes.Lines(data) {
			out.WriteString("data: ")
			out.Write(bytes.TrimRight(line, "\r\n"))
			out.WriteByte('\n')
		}
	}
	out.WriteByte('\n')
	s.lastSent = s.console.Now()
	if err := s.control.SetWriteDeadline(s.lastSent.Add(sendTimeout)); err != nil {
		return err
	}
	if _, err := s.w.Write(out.Bytes()); err != nil {
		return err
	}
	return s.control.Flush()
}
