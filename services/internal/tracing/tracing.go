// Package tracing follows one task through both services with OpenTelemetry.
//
// A trace begins at the call that creates a task. Its context is stored with
// the task as a W3C traceparent, goes with the dispatch as gRPC metadata, is
// stored with the work, and continues in the worker, however much later and in
// whatever process. It is off unless an endpoint is set. Spans name tasks,
// counts and codes: never a record's key, its content, or a token.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/internal/version"
)

// Config is where spans go.
type Config struct {
	// Endpoint of an OTLP collector over gRPC, host:port; "" switches tracing off.
	Endpoint string `koanf:"endpoint"`
	// Insecure sends plaintext, to loopback only.
	Insecure bool `koanf:"insecure"`
	// SampleRatio is the share of new traces that is kept, 0 to 1.
	SampleRatio float64 `koanf:"sample_ratio"`
}

// Defaults are the settings without any: off, and everything kept once it is on.
func Defaults() Config { return Config{SampleRatio: 1} }

// Validate tells everything that is wrong.
func (c *Config) Validate() error {
	var p config.Problems
	p.Check(c.SampleRatio >= 0 && c.SampleRatio <= 1, "sample_ratio is 0 to 1, not %g", c.SampleRatio)
	if c.Endpoint == "" {
		return p.Err()
	}
	host, _, err := net.SplitHostPort(c.Endpoint)
	p.Add("endpoint", err)
	ip := net.ParseIP(host)
	local := host == "localhost" || ip != nil && ip.IsLoopback()
	p.Check(err != nil || !c.Insecure || local, "insecure: %s is not loopback; plaintext is refused there", c.Endpoint)
	return p.Err()
}

const (
	flushTimeout = 3 * time.Second // of the last spans, within the ten seconds of a stop
	exportLimit  = 5 * time.Second // of one batch
	queueLimit   = 4096            // spans that wait; more are dropped
)

// Provider makes spans, or none where tracing is off.
type Provider struct {
	sdk    *sdktrace.TracerProvider // nil: off
	format propagation.TraceContext
}

// Open makes a provider for a service. A collector that is away costs nothing
// but the spans.
func Open(ctx context.Context, c Config, service, appKey string, log *zap.Logger) (*Provider, error) {
	if c.Endpoint == "" {
		return &Provider{}, nil
	}
	options := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(c.Endpoint), otlptracegrpc.WithTimeout(exportLimit)}
	if c.Insecure {
		options = append(options, otlptracegrpc.WithInsecure())
	}
	exporter, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("make the trace exporter: %w", err)
	}
	// The exporter tells its troubles to this one place only.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans were not exported", zap.Error(err)) }))
	return &Provider{sdk: sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithMaxQueueSize(queueLimit), sdktrace.WithExportTimeout(exportLimit)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(c.SampleRatio))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", service), attribute.String("service.version", version.Version),
			attribute.String("lockstep.app_key", appKey),
		)),
	)}, nil
}

// Close sends the last spans.
func (p *Provider) Close(ctx context.Context) error {
	if p.sdk == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := p.sdk.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// ServerOptions trace the calls of a server. Only those of peers continue the
// caller's trace; an operator's call begins one of its own, so that nobody who
// is not yet verified decides what is sampled. peers are full service names.
func (p *Provider) ServerOptions(peers ...string) []grpc.ServerOption {
	if p.sdk == nil {
		return nil
	}
	public := func(_ context.Context, info *stats.RPCTagInfo) bool {
		for _, peer := range peers {
			if strings.HasPrefix(info.FullMethodName, "/"+peer+"/") {
				return false
			}
		}
		return true
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(p.sdk), otelgrpc.WithPropagators(p.format), otelgrpc.WithPublicEndpointFn(public),
	))}
}

// DialOptions trace the calls over a connection, and send the trace with them.
func (p *Provider) DialOptions() []grpc.DialOption {
	if p.sdk == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(p.sdk), otelgrpc.WithPropagators(p.format)))}
}

// Tracer makes the spans of a service's own work.
func (p *Provider) Tracer() Tracer {
	if p.sdk == nil {
		return Tracer{}
	}
	return Tracer{p.sdk.Tracer("lockstep")}
}

// Tracer starts spans; the zero Tracer starts none.
type Tracer struct{ tracer trace.Tracer }

// Start begins a span below the context's. End it with what became of it.
func (t Tracer) Start(ctx context.Context, name string, about ...attribute.KeyValue) (context.Context, func(error)) {
	if t.tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithAttributes(about...))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, codeOf(err)) // the code alone: a text may hold anything
		}
		span.End()
	}
}

// Continue is Start below a stored traceparent; one that says nothing begins a trace.
func (t Tracer) Continue(ctx context.Context, traceparent, name string, about ...attribute.KeyValue) (context.Context, func(error)) {
	if t.tracer == nil {
		return ctx, func(error) {}
	}
	if traceparent != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{parentKey: traceparent})
	}
	return t.Start(ctx, name, about...)
}

const parentKey = "traceparent"

// Parent is the context's trace as it is stored, "" where there is none.
func Parent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[parentKey]
}

func codeOf(err error) string {
	switch code := fault.ReasonOf(err); {
	case code != fault.None:
		return string(code)
	case errors.Is(err, context.Canceled):
		return "CANCELED"
	default:
		return string(fault.Internal)
	}
}

// Task, Attempt, Rows and Code are what spans state.
func Task(id string) attribute.KeyValue { return attribute.String("lockstep.task", id) }

// Attempt is the dispatch that is worked.
func Attempt(n int) attribute.KeyValue { return attribute.Int("lockstep.attempt", n) }

// Count is how many rows, pages or differences a span is about.
func Count(what string, n int) attribute.KeyValue { return attribute.Int("lockstep."+what, n) }
