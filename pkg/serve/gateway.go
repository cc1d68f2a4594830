package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
)

// Gateway registers the REST handlers of a service, such as the generated
// RegisterAdminServiceHandler.
type Gateway func(ctx context.Context, mux *runtime.ServeMux, conn *grpc.ClientConn) error

const (
	jsonType       = "application/json"
	maxBody        = 256 << 10
	gatewayTimeout = 20 * time.Second // of one call
	streamTimeout  = 30 * time.Minute // of an answer that comes bit by bit
)

// gateway is the operators' REST side. It has no identity of its own: a call
// carries the operator's bearer token, or is refused here.
type gateway struct{ mux *runtime.ServeMux }

func newGateway(ctx context.Context, conn *grpc.ClientConn, registrations []Gateway) (*gateway, error) {
	none := func(string) (string, bool) { return "", false }
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.JSONPb{
			MarshalOptions:   protojson.MarshalOptions{EmitUnpopulated: true},
			UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: false}, // a misspelt field is told
		}),
		// No header becomes metadata by its name, in either direction.
		runtime.WithIncomingHeaderMatcher(none),
		runtime.WithOutgoingHeaderMatcher(none),
		runtime.WithOutgoingTrailerMatcher(none),
		runtime.WithMetadata(operatorToken),
		runtime.WithErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
			writeError(w, err)
		}),
		runtime.WithRoutingErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, code int) {
			writeRefusal(w, code, fault.New(fault.NotFound, "%s", http.StatusText(code)))
		}),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
	)
	for _, register := range registrations {
		if err := register(ctx, mux, conn); err != nil {
			return nil, err
		}
	}
	return &gateway{mux: mux}, nil
}

// gatewayCalls bound the calls of the gateway's connection. Streams go over
// another one, so that however many are open, calls don't wait for a place. A
// stream ends with its reader or after streamTimeout.
func gatewayCalls(streams *grpc.ClientConn) []grpc.DialOption {
	unary := func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
		defer cancel()
		return invoke(ctx, method, request, reply, conn, options...)
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, _ grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
		if ctx.Value(linesKey{}) != nil {
			return nil, fault.ToStatus(errNoList()) // an answer that comes in parts anyway has no pages
		}
		return streams.NewStream(ctx, desc, method, options...)
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream)}
}

type tokenKey struct{}

func operatorToken(ctx context.Context, _ *http.Request) metadata.MD {
	token, _ := ctx.Value(tokenKey{}).(string)
	return metadata.Pairs(identity.OperatorTokenKey, token)
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, ok := bearer(r)
	if !ok {
		writeRefusal(w, http.StatusUnauthorized, fault.New(fault.PermissionDenied, "an operator's bearer token is needed"))
		return
	}
	body, code, refusal := readBody(w, r)
	if refusal != nil {
		writeRefusal(w, code, refusal)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), tokenKey{}, token), streamTimeout)
	defer cancel()
	inner := r.Clone(ctx)
	inner.Header = http.Header{"Content-Type": {jsonType}, "Accept": {jsonType}}
	// The gateway would turn these into X-Forwarded-* metadata.
	inner.Host, inner.RemoteAddr = "", ""
	inner.Body, inner.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if media := linesWanted(r); media != "" {
		(&list{g: g, w: newPatientWriter(w), media: media}).answer(inner)
		return
	}
	g.mux.ServeHTTP(newPatientWriter(w), inner)
}

// Patient gives each write of an answer its own time, so that it lives as long as
// somebody reads it, however slowly. The request was read whole before.
func Patient(w http.ResponseWriter) http.ResponseWriter { return newPatientWriter(w) }

func newPatientWriter(w http.ResponseWriter) *patientWriter {
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Time{}) // a writer without deadlines is as patient
	return &patientWriter{ResponseWriter: w, conn: conn, now: time.Now}
}

type patientWriter struct {
	http.ResponseWriter

	conn *http.ResponseController
	now  func() time.Time
}

func (w *patientWriter) Write(part []byte) (int, error) {
	_ = w.conn.SetWriteDeadline(w.now().Add(writeTimeout))
	return w.ResponseWriter.Write(part)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// bearer returns the one token of the one Authorization header.
func bearer(r *http.Request) (string, bool) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", false
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' { // metadata holds nothing else
			return "", false
		}
	}
	return token, true
}

// readBody reads a whole request body: bounded JSON, or nothing.
func readBody(w http.ResponseWriter, r *http.Request) (body []byte, code int, refusal *fault.Error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, http.StatusRequestEntityTooLarge, fault.New(fault.ResourceLimit, "a body has at most %d bytes", maxBody)
	}
	if err != nil {
		return nil, http.StatusBadRequest, fault.New(fault.InvalidArgument, "the body could not be read")
	}
	if len(body) == 0 {
		return nil, 0, nil
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != jsonType {
		return nil, http.StatusUnsupportedMediaType, fault.New(fault.InvalidArgument, "a body is %s", jsonType)
	}
	// Depth, count and duplicate keys are bounded before any other decoder sees it.
	if _, err := canon.Sum(body); err != nil {
		return nil, http.StatusBadRequest, fault.New(fault.InvalidArgument, "the body is no acceptable JSON: %v", err)
	}
	return body, 0, nil
}

// problem is the body of every refusal.
type problem struct {
	Code    fault.Reason      `json:"code"`
	Message string            `json:"message"`
	Meta    map[string]string `json:"meta,omitempty"`
	Fields  []problemField    `json:"fields,omitempty"`
}

type problemField struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

// writeError answers with what the gRPC side, or the gateway's own decoding, refused.
func writeError(w http.ResponseWriter, err error) {
	received := status.Convert(err)
	code := runtime.HTTPStatusFromCode(received.Code())
	if custom, ok := errors.AsType[*runtime.HTTPStatusError](err); ok {
		code, received = custom.HTTPStatus, status.Convert(custom.Err)
	}
	refusal := &fault.Error{Reason: fault.ReasonOf(err), Message: received.Message(), Meta: fault.MetaOf(err), Fields: fault.FieldsOf(err)}
	if refusal.Reason == fault.None {
		refusal.Reason = fault.Internal
		if received.Code() == codes.InvalidArgument || code == http.StatusBadRequest {
			refusal.Reason = fault.InvalidArgument
		}
	}
	writeRefusal(w, code, refusal)
}

func writeRefusal(w http.ResponseWriter, code int, refusal *fault.Error) {
	if code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	answer := problem{Code: refusal.Reason, Message: refusal.Message, Meta: refusal.Meta}
	for _, field := range refusal.Fields {
		answer.Fields = append(answer.Fields, problemField(field))
	}
	writeJSON(w, code, answer)
}
