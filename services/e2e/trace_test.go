package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// spans is a collector that keeps what it is sent.
type spans struct {
	collector.UnimplementedTraceServiceServer

	mu   sync.Mutex
	got  []span
	text strings.Builder // all of it, as text
}

type span struct {
	*trace.Span

	service string
}

func (c *spans) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text.WriteString(req.String())
	for _, resource := range req.GetResourceSpans() {
		service := ""
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, one := range scope.GetSpans() {
				c.got = append(c.got, span{one, service})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// collect starts a collector on a socket and gives its address.
func collect(t *testing.T) (*spans, string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &spans{}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go server.Serve(listener) //nolint:errcheck // it ends when the test stops it
	t.Cleanup(server.Stop)
	return c, listener.Addr().String()
}

// TestTrace: from the call that creates a task to its repairs and its report,
// over both services, everything is in one trace.
func TestTrace(t *testing.T) {
	t.Parallel()
	c, address := collect(t)
	s := setup(t)
	s.watch()
	s.fill(form, 600)
	s.damageAll(form, few)
	tracing := settings{"tracing": settings{"endpoint": address, "insecure": true}}
	consumer := s.startConsumer("", tracing)
	center := s.startCenter("", tracing)
	id := s.create(form)
	s.awaitEnd(id)
	s.must(consumer.Stop()) // the last spans go with it
	s.must(center.Stop())

	c.mu.Lock()
	defer c.mu.Unlock()
	traces := map[string][]string{} // by trace: what is in it
	byID := map[string]span{}
	creation := ""
	for _, one := range c.got {
		id := fmt.Sprintf("%x", one.GetTraceId())
		name := one.service + " " + one.GetName()
		traces[id] = append(traces[id], name)
		byID[string(one.GetSpanId())] = one
		if name == "lockstep-center lockstep.center.v1.AdminService/CreateTask" {
			creation = id
		}
	}
	have := traces[creation]
	for _, want := range []string{
		"lockstep-center materialise", "lockstep-center dispatch",
		"lockstep-center lockstep.consumer.v1.DispatchService/Dispatch", "lockstep-consumer lockstep.consumer.v1.DispatchService/Dispatch",
		"lockstep-consumer work", "lockstep-consumer round", "lockstep-consumer repair batch", "lockstep-consumer retire", "lockstep-consumer report",
		"lockstep-consumer lockstep.center.v1.ReconcileService/GetRecords", "lockstep-center lockstep.center.v1.ReconcileService/GetRecords",
		"lockstep-center lockstep.center.v1.ReconcileService/ReportResult",
	} {
		if !slices.Contains(have, want) {
			t.Errorf("the trace of the creation has no %q; it has %q", want, have)
		}
	}
	for id, names := range traces {
		if id != creation && slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, " work") || strings.HasSuffix(n, " dispatch") }) {
			t.Errorf("trace %s has %q", id, names)
		}
	}
	// A repair's chain of parents leads to the creation.
	for _, one := range c.got {
		if one.GetName() != "repair batch" {
			continue
		}
		var way []string
		for at, ok := one, true; ok; at, ok = byID[string(at.GetParentSpanId())] {
			way = append(way, at.GetName())
		}
		if got, want := strings.Join(way, " < "), "repair batch < work < lockstep.consumer.v1.DispatchService/Dispatch < lockstep.consumer.v1.DispatchService/Dispatch < dispatch < lockstep.center.v1.AdminService/CreateTask"; got != want {
			t.Errorf("the way of a repair is %s, want %s", got, want)
		}
	}
	for what, secret := range s.secrets() {
		if strings.Contains(c.text.String(), secret) {
			t.Errorf("a span holds %s", what)
		}
	}
	if len(traces) < 1 || len(slices.Collect(maps.Keys(byID))) == 0 {
		t.Error("no span came")
	}
}
