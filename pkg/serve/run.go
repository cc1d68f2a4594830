package serve

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	"lockstep.dev/pkg/fault"
)

// Parts are what a service is made of.
type Parts struct {
	Log *zap.Logger
	// Guard admits callers; nothing is served without it.
	Guard Guard
	// Register registers the service's gRPC handlers.
	Register func(*grpc.Server)
	// Gateways register the REST side.
	Gateways []Gateway
	// Web, if set, makes what is served under /console/. It calls the service by
	// the gateway's connection, as its reader: it has no identity of its own. What
	// it streams has to end when ctx does, which is when the service begins to stop.
	Web func(ctx context.Context, conn *grpc.ClientConn) (http.Handler, error)
	// Checks decide readiness, by name.
	Checks map[string]Check
	// Loops run until their context ends; then each finishes or gives back its
	// unit of work within ten seconds. One that fails stops the service.
	Loops []func(ctx context.Context) error
	// Registry collects the service's own metrics; nil makes one.
	Registry *prometheus.Registry
	// Options are further server options, such as a stats handler.
	Options []grpc.ServerOption
	// Refused, if set, is told of every call that was answered with a code, and
	// who made it as identity.Record says. It must not wait.
	Refused func(caller, method string, code fault.Reason)
}

// Guard is what serve needs of an access guard; *identity.Guard is one.
type Guard interface {
	ServerOptions() []grpc.ServerOption
	CheckComplete(server *grpc.Server) error
}

// grace is how long running calls and loops may take to end.
const grace = 10 * time.Second

// innerBuffer is what the gateway's connection holds in each direction.
const innerBuffer = 1 << 20

// server is a service between its first listen and its end.
type server struct {
	log       *zap.Logger
	readyFile string
	grace     time.Duration
	ready     *readiness
	loops     []func(ctx context.Context) error

	grpc    *grpc.Server
	outer   net.Listener
	inner   *bufconn.Listener
	gateway []*grpc.ClientConn
	http    *http.Server // nil: no HTTP side
	web     net.Listener
	endWeb  context.CancelFunc // tells what streams that the service stops
}

// Run serves until ctx ends, then stops in order: it is not ready any more, takes
// no new call, lets running calls and loops end within ten seconds, and cuts what
// is left. It returns nil after an orderly end.
func Run(ctx context.Context, config Config, parts Parts) error {
	s, err := newServer(ctx, config, parts)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return s.run(ctx)
}

// NewRegistry makes a registry with the metrics of the process itself.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

func newServer(ctx context.Context, config Config, parts Parts) (*server, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	forHTTP, forGRPC, err := config.Transport.server()
	if err != nil {
		return nil, err
	}
	if parts.Registry == nil {
		parts.Registry = NewRegistry()
	}
	s := &server{
		log: parts.Log, readyFile: config.ReadyFile, grace: grace, loops: parts.Loops,
		ready: &readiness{checks: parts.Checks, now: time.Now},
		inner: bufconn.Listen(innerBuffer),
	}
	if err := s.makeGRPC(forGRPC, parts); err != nil {
		return nil, err
	}
	if s.outer, err = listen(ctx, config.Listen.GRPC); err != nil {
		return nil, fmt.Errorf("listen for gRPC: %w", err)
	}
	if config.Listen.HTTP == "" {
		return s, nil
	}
	if err := s.makeHTTP(ctx, config.Listen.HTTP, forHTTP, parts); err != nil {
		return nil, errors.Join(err, s.outer.Close())
	}
	return s, nil
}

func (s *server) makeGRPC(settings *tls.Config, parts Parts) error {
	watch, err := newCalls(parts.Log, parts.Registry, parts.Refused)
	if err != nil {
		return err
	}
	var forGRPC credentials.TransportCredentials
	if settings != nil {
		forGRPC = credentials.NewTLS(settings)
	}
	options := append(limits(), protection(forGRPC))
	options = append(options, watch.options()...)
	options = append(options, parts.Guard.ServerOptions()...)
	options = append(options, parts.Options...)
	s.grpc = grpc.NewServer(options...)
	parts.Register(s.grpc)
	health := &healthServer{ready: s.ready, services: map[string]bool{}}
	for service := range s.grpc.GetServiceInfo() {
		health.services[service] = true
	}
	healthpb.RegisterHealthServer(s.grpc, health)
	return parts.Guard.CheckComplete(s.grpc)
}

// connectInner connects to the gRPC server by real connections within the
// process, so that calls pass every interceptor: one for calls, one for streams.
func (s *server) connectInner() (calls *grpc.ClientConn, err error) {
	dial := func(options ...grpc.DialOption) (*grpc.ClientConn, error) {
		conn, err := grpc.NewClient("passthrough:///inner", append(options,
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.inner.DialContext(ctx) }),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxSnapshotMessage)))...)
		if err != nil {
			return nil, fmt.Errorf("connect the gateway: %w", err)
		}
		s.gateway = append(s.gateway, conn)
		return conn, nil
	}
	streams, err := dial()
	if err != nil {
		return nil, err
	}
	return dial(gatewayCalls(streams)...)
}

func (s *server) closeInner() (err error) {
	for _, conn := range s.gateway {
		err = errors.Join(err, conn.Close())
	}
	return err
}

// makeHTTP makes the REST side and the console, which call over the inner connections.
func (s *server) makeHTTP(ctx context.Context, address string, settings *tls.Config, parts Parts) error {
	conn, err := s.connectInner()
	if err != nil {
		return errors.Join(err, s.closeInner())
	}
	rest, err := newGateway(ctx, conn, parts.Gateways)
	if err != nil {
		return errors.Join(fmt.Errorf("register the gateway: %w", err), s.closeInner())
	}
	var console http.Handler
	ctx, s.endWeb = context.WithCancel(ctx)
	if parts.Web != nil {
		if console, err = parts.Web(ctx, conn); err != nil {
			return errors.Join(fmt.Errorf("make the console: %w", err), s.closeInner())
		}
	}
	s.http = newHTTPServer(parts.Log, s.ready, rest, console, parts.Registry)
	if s.web, err = listen(ctx, address); err != nil {
		return errors.Join(fmt.Errorf("listen for HTTP: %w", err), s.closeInner())
	}
	if settings != nil {
		settings.NextProtos = []string{"h2", "http/1.1"}
		s.web = tls.NewListener(s.web, settings)
	}
	return nil
}

func (s *server) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var servers, loops sync.WaitGroup
	start := func(group *sync.WaitGroup, what string, run func() error) {
		group.Go(func() {
			if err := run(); err != nil && !errors.Is(err, context.Canceled) {
				fail(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	start(&servers, "serve gRPC", func() error { return s.grpc.Serve(s.outer) })
	start(&servers, "serve the gateway", func() error { return s.grpc.Serve(s.inner) })
	if s.http != nil {
		start(&servers, "serve HTTP", func() error {
			if err := s.http.Serve(s.web); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	if err := s.announce(); err != nil {
		fail(err)
	}
	for _, loop := range s.loops {
		start(&loops, "loop", func() error { return loop(ctx) })
	}
	<-ctx.Done()
	var cause error // nil where the caller's context ended, which is the orderly way
	if stopped := context.Cause(ctx); !errors.Is(stopped, context.Canceled) && !errors.Is(stopped, context.DeadlineExceeded) {
		cause = stopped
	}
	err := s.stop(context.WithoutCancel(ctx), &loops)
	servers.Wait()
	return errors.Join(cause, err)
}

// announce tells where the service listens, in the log and the ready file.
func (s *server) announce() error {
	addresses := struct {
		GRPC string `json:"grpc"`
		HTTP string `json:"http,omitempty"`
	}{GRPC: addressOf(s.outer)}
	if s.web != nil {
		addresses.HTTP = addressOf(s.web)
	}
	s.log.Info("serving", zap.String("grpc", addresses.GRPC), zap.String("http", addresses.HTTP))
	if s.readyFile == "" {
		return nil
	}
	text, err := json.Marshal(addresses)
	if err != nil {
		return fmt.Errorf("write ready file: %w", err)
	}
	// Renamed into place: whoever finds it finds all of it.
	if err := os.WriteFile(s.readyFile+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write ready file: %w", err)
	}
	if err := os.Rename(s.readyFile+".new", s.readyFile); err != nil {
		return fmt.Errorf("write ready file: %w", err)
	}
	return nil
}

func (s *server) stop(ctx context.Context, loops *sync.WaitGroup) error {
	s.log.Info("stopping")
	s.ready.stop()
	ctx, cancel := context.WithTimeout(ctx, s.grace)
	defer cancel()
	var stopped sync.WaitGroup
	stopped.Go(func() {
		cut := context.AfterFunc(ctx, s.grpc.Stop)
		defer cut()
		s.grpc.GracefulStop()
	})
	if s.http != nil {
		s.endWeb()
		stopped.Go(func() {
			if s.http.Shutdown(ctx) != nil {
				_ = s.http.Close() // what is left is cut; nobody waits for it
			}
		})
	}
	err := awaitLoops(ctx, loops)
	stopped.Wait()
	err = errors.Join(err, s.closeInner())
	if s.readyFile != "" {
		err = errors.Join(err, os.Remove(s.readyFile))
	}
	return err
}

func awaitLoops(ctx context.Context, loops *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		loops.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("stop: a loop did not end in time")
	}
}
