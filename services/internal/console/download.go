package console

import (
	"context"
	"io"
	"mime"
	"net/http"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/pkg/serve"
	"lockstep.dev/services/internal/bundle"
)

// Download is a file to keep.
type Download struct {
	Path  string
	Needs string // the full name of the API's method that it calls; "" where every role may
	// Open makes it; what fails here becomes a page.
	Open func(ctx context.Context, r *Request) (File, error)
}

// File is what a download gives.
type File struct {
	Name  string // what the browser keeps it as
	Media string // its media type
	// Write writes all of it. The context of Open lasts as long.
	Write func(w io.Writer) error
}

// Bundle is a file of a task's evidence, as lockstep evidence verify reads it.
func Bundle(ctx context.Context, name string, export bundle.Export) (File, error) {
	write, err := export.Open(ctx)
	return File{Name: name + ".jsonl", Media: "application/jsonl", Write: write}, err
}

// Patiently makes one of many calls of a download, which are as fast as one
// operator may call.
func Patiently[T any](ctx context.Context, call func() (T, error)) (got T, err error) {
	err = serve.Patiently(ctx, serve.TooFast, func() error { got, err = call(); return err })
	return got, err
}

// downloadTime bounds a download, however slowly it is read.
const downloadTime = 10 * time.Minute

// Download adds a download.
func (c *Console) Download(d Download) {
	if d.Needs != "" {
		c.need(d.Path, d.Needs)
	}
	c.mux.Handle(pattern("GET", Root, d.Path), c.signedIn(c.admit(d.Path, func(w http.ResponseWriter, r *Request) {
		ctx, cancel := context.WithTimeout(as(r.HTTP.Context(), r.token), downloadTime)
		defer cancel()
		file, err := d.Open(ctx, r)
		if err != nil {
			c.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", file.Media)
		w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": file.Name}))
		if err := file.Write(serve.Patient(w)); err != nil {
			c.Log.Info("console download broke off", zap.String("path", r.HTTP.URL.Path), zap.Error(err))
			panic(http.ErrAbortHandler) // the reader must not take a part for the whole
		}
	})))
}
