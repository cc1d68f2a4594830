package serve

import (
	"errors"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = time.Minute
)

func newHTTPServer(log *zap.Logger, ready *readiness, rest, console http.Handler, registry *prometheus.Registry) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, struct{}{}) })
	mux.Handle("GET /readyz", ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/", rest)
	if console != nil {
		mux.Handle("/console/", console)
		mux.Handle("GET /{$}", http.RedirectHandler("/console/", http.StatusSeeOther))
	}
	return &http.Server{
		Handler:           &outermost{log: log, now: time.Now, next: mux},
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zap.WarnLevel))),
	}
}

// outermost sets the headers every answer has, logs refusals, and survives panics.
type outermost struct {
	log  *zap.Logger
	now  func() time.Time
	next http.Handler
}

func (o *outermost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	seen := &statusWriter{ResponseWriter: w}
	start := o.now()
	defer func() {
		cause := recover()
		if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(cause) // an answer that broke off in the middle must not look whole
		}
		if cause != nil {
			o.log.Error("request panicked", zap.Any("panic", cause), zap.ByteString("stack", debug.Stack()))
			if seen.code == 0 {
				seen.WriteHeader(http.StatusInternalServerError)
			}
		}
		if seen.code >= http.StatusBadRequest {
			// No query: it may hold anything.
			o.log.Info("request refused", zap.String("method", clip(r.Method, 16)), zap.String("path", clip(r.URL.Path, 200)),
				zap.Int("status", seen.code), zap.Duration("took", o.now().Sub(start)))
		}
	}()
	o.next.ServeHTTP(seen, r)
}

func clip(text string, most int) string { return text[:min(len(text), most)] }

type statusWriter struct {
	http.ResponseWriter

	code int
}

func (w *statusWriter) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
