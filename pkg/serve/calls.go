package serve

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
)

const (
	maxDeadline      = 30 * time.Second // of a unary call, whatever the caller asks for
	maxStreams       = 100              // at once on a connection
	maxHeaderBytes   = 16 << 10
	maxConnectionAge = 30 * time.Minute // so that calls spread over replicas again
	ageGrace         = maxDeadline      // what runs on an aged connection ends within its deadline
	handshakeTimeout = 10 * time.Second
	minPing          = 20 * time.Second // our own clients ping every 30 s
)

// limits are the bounds of a gRPC server.
func limits() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: maxConnectionAge, MaxConnectionAgeGrace: ageGrace,
			Time: time.Minute, Timeout: 20 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
}

// calls watches every gRPC call of a server.
type calls struct {
	log     *zap.Logger
	now     func() time.Time
	total   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	refused func(caller, method string, code fault.Reason)
}

func newCalls(log *zap.Logger, registry prometheus.Registerer, refused func(caller, method string, code fault.Reason)) (*calls, error) {
	c := &calls{
		log: log, now: time.Now, refused: refused,
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_grpc_calls_total", Help: "Answered gRPC calls by method, gRPC code and stable code.",
		}, []string{"method", "code", "reason"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_grpc_seconds", Help: "How long gRPC calls took.",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 30},
		}, []string{"method"}),
	}
	for _, collector := range []prometheus.Collector{c.total, c.seconds} {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return c, nil
}

// options chain what surrounds the guard, the outermost first.
func (c *calls) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(c.watchUnary, c.recoverUnary, fault.UnaryServer(c.log), capDeadline),
		grpc.ChainStreamInterceptor(c.watchStream, c.recoverStream, fault.StreamServer(c.log)),
	}
}

func protection(forGRPC credentials.TransportCredentials) grpc.ServerOption {
	if forGRPC == nil {
		forGRPC = insecure.NewCredentials()
	}
	return grpc.Creds(outerOnly{forGRPC})
}

func (c *calls) watchUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	start := c.now()
	ctx, caller := identity.Record(ctx)
	response, err := handler(ctx, request)
	c.answered(ctx, info.FullMethod, caller(), c.now().Sub(start), err)
	return response, err
}

func (c *calls) watchStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	start := c.now()
	ctx, caller := identity.Record(stream.Context())
	err := handler(srv, &streamWith{ServerStream: stream, ctx: ctx})
	c.answered(ctx, info.FullMethod, caller(), c.now().Sub(start), err)
	return err
}

type streamWith struct {
	grpc.ServerStream

	ctx context.Context
}

func (s *streamWith) Context() context.Context { return s.ctx }

// answered logs what people did and what was refused; the many calls that went
// well of services, and of consoles by themselves, are counted, and logged for
// debugging only. No body is logged.
func (c *calls) answered(ctx context.Context, method, caller string, took time.Duration, err error) {
	code, reason := status.Code(err).String(), string(fault.ReasonOf(err))
	if c.refused != nil && reason != "" {
		c.refused(caller, method, fault.Reason(reason))
	}
	c.total.WithLabelValues(method, code, reason).Inc()
	c.seconds.WithLabelValues(method).Observe(took.Seconds())
	level := zap.InfoLevel
	switch {
	case unasked(ctx) && (err == nil || status.Code(err) == codes.Canceled), // its reader is gone
		err == nil && !strings.HasPrefix(caller, "operator:"):
		level = zap.DebugLevel
	}
	c.log.Log(level, "call", zap.String("method", method), zap.String("caller", caller),
		zap.String("code", code), zap.String("reason", reason), zap.Duration("took", took))
}

func (c *calls) recoverUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	defer c.recovered(info.FullMethod, &err)
	return handler(ctx, request)
}

func (c *calls) recoverStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer c.recovered(info.FullMethod, &err)
	return handler(srv, stream)
}

// recovered is deferred itself: recover works nowhere deeper.
func (c *calls) recovered(method string, err *error) {
	if cause := recover(); cause != nil {
		c.log.Error("call panicked", zap.String("method", method), zap.Any("panic", cause), zap.ByteString("stack", debug.Stack()))
		*err = fault.ToStatus(fault.New(fault.Internal, "something broke inside; the log has it"))
	}
}

// capDeadline ends a unary call after 30 s at the latest.
func capDeadline(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, maxDeadline)
	defer cancel()
	return handler(ctx, request)
}
