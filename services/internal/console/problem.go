package console

import (
	"errors"
	"maps"
	"net/http"
	"slices"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lockstep.dev/pkg/fault"
)

// Problem is a refusal or a failure as a page shows it.
type Problem struct {
	Code    fault.Reason
	Message string
	Facts   []Fact
	Fields  []fault.Field
	// Retry: the same may work later.
	Retry bool
}

func errNoPage() error {
	return fault.New(fault.NotFound, "there is no such page")
}

func errOrigin() error {
	return fault.New(fault.PermissionDenied, "the request came from another site, so it was not done")
}

func errForm(err error) error {
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return fault.New(fault.ResourceLimit, "a form has at most %d bytes", maxForm)
	}
	return fault.New(fault.InvalidArgument, "the form could not be read")
}

// problemOf tells what a call was refused with, and the HTTP status that fits.
func problemOf(err error) (Problem, int) {
	code, message := status.Code(err), status.Convert(err).Message()
	if made, ok := errors.AsType[*fault.Error](err); ok {
		code, message = made.Code(), made.Message
	}
	p := Problem{Code: fault.ReasonOf(err), Message: message, Fields: fault.FieldsOf(err), Retry: code == codes.Unavailable || code == codes.DeadlineExceeded}
	if p.Code == fault.None {
		p.Code = fault.Internal
		if code == codes.Unknown { // not from a service: its text is for the log
			p.Message = "something broke inside; the log has it"
		}
	}
	meta := fault.MetaOf(err)
	for _, name := range slices.Sorted(maps.Keys(meta)) {
		p.Facts = append(p.Facts, Fact{Label: name, Value: meta[name]})
	}
	return p, statusOf(code)
}

func statusOf(code codes.Code) int {
	switch code {
	case codes.InvalidArgument, codes.OutOfRange:
		return http.StatusUnprocessableEntity
	case codes.NotFound:
		return http.StatusNotFound
	case codes.PermissionDenied, codes.Unauthenticated:
		return http.StatusForbidden
	case codes.FailedPrecondition, codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return http.StatusServiceUnavailable
	case codes.Unimplemented:
		return http.StatusNotImplemented
	default:
		return http.StatusInternalServerError
	}
}

// fail answers with an error's page; a token that is not known (any more) has to
// be given anew.
func (c *Console) fail(w http.ResponseWriter, r *Request, err error) {
	if unknown(err) {
		http.SetCookie(w, c.cookie("session", "", 0))
		c.toSignIn(w, r.HTTP)
		return
	}
	problem, code := problemOf(err)
	if code == http.StatusInternalServerError {
		c.Log.Error("console page failed", zap.String("path", r.HTTP.URL.Path), zap.Error(err))
	}
	title := "This did not work"
	if code == http.StatusNotFound {
		title = "Not found"
	}
	c.write(w, r, code, c.problem, View{Title: title, Data: problem})
}
