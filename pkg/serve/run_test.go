package serve

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"lockstep.dev/pkg/fault"
)

func TestSettingsThatStopTheStart(t *testing.T) {
	local := Listen{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0"}
	for name, test := range map[string]struct {
		config Config
		want   string
	}{
		"plaintext_on_every_interface":        {Config{Listen: Listen{GRPC: ":7001"}, Transport: Transport{Insecure: true}}, "plaintext is refused"},
		"plaintext_on_an_outer_address":       {Config{Listen: Listen{GRPC: "192.0.2.1:7001"}, Transport: Transport{Insecure: true}}, "plaintext is refused"},
		"plaintext_HTTP_on_an_outer_address":  {Config{Listen: Listen{GRPC: "127.0.0.1:0", HTTP: "0.0.0.0:80"}, Transport: Transport{Insecure: true}}, "listen.http"},
		"plaintext_on_a_name_that_looks_near": {Config{Listen: Listen{GRPC: "localhost.example.com:1"}, Transport: Transport{Insecure: true}}, "plaintext is refused"},
		"no_certificate":                      {Config{Listen: local}, "cert_file and key_file are needed"},
		"plaintext_beside_a_certificate":      {Config{Listen: local, Transport: Transport{Insecure: true, CertFile: "x", KeyFile: "y"}}, "exclude each other"},
		"no_address":                          {Config{Transport: Transport{Insecure: true}}, "listen.grpc is missing"},
		"no_port":                             {Config{Listen: Listen{GRPC: "127.0.0.1"}, Transport: Transport{Insecure: true}}, "missing port"},
		"a_certificate_that_is_not_there":     {Config{Listen: local, Transport: Transport{CertFile: "/no.crt", KeyFile: "/no.key"}}, "load certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Run(t.Context(), test.config, Parts{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestPlaintextIsNotSentBeyondThisMachine(t *testing.T) {
	for target, allowed := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "unix:/tmp/x": true,
		"192.0.2.1:1": false, "center.example.com:1": false, "dns:///127.0.0.1:1": false,
	} {
		conn, err := Dial(target, Transport{Insecure: true})
		if (err == nil) != allowed {
			t.Errorf("%s: %v", target, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

func TestMutualTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	transport := ours.transport(t, "center")
	transport.ClientCAFile = ours.file("ca.crt")
	w := setup(t, func(config *Config, _ *Parts) { config.Transport = transport })
	stranger := theirs.transport(t, "stranger")
	stranger.CAFile = ours.file("ca.crt")
	for name, test := range map[string]struct {
		options  func(t *testing.T) (*grpc.ClientConn, error)
		admitted bool
	}{
		"with_a_certificate":                      {dialWith(w, ours.transport(t, "hall")), true},
		"without_a_certificate":                   {dialWith(w, Transport{CAFile: ours.file("ca.crt")}), false},
		"with_a_certificate_of_another_authority": {dialWith(w, stranger), false},
		"who_does_not_trust_the_server":           {dialWith(w, theirs.transport(t, "other")), false},
		"with_TLS_1.2": {func(t *testing.T) (*grpc.ClientConn, error) {
			t.Helper()
			old := ours.roots()
			old.MaxVersion = tls.VersionTLS12
			return grpc.NewClient(addressOf(w.server.outer), grpc.WithTransportCredentials(credentials.NewTLS(old)))
		}, false},
		"in_plaintext": {func(t *testing.T) (*grpc.ClientConn, error) {
			t.Helper()
			return grpc.NewClient(addressOf(w.server.outer), grpc.WithTransportCredentials(insecure.NewCredentials()))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := test.options(t)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close() //nolint:errcheck // nothing is pending on it
			_, err = pb.NewTestServiceClient(conn).UnaryCall(ann(t.Context()), &pb.SimpleRequest{})
			if (err == nil) != test.admitted {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("the_gateway_reaches_the_server_beside_it", func(t *testing.T) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: ours.roots()}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addressOf(w.server.web)+"/v1/tasks/t1", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header = bearerHeader()
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK || response.TLS.Version != tls.VersionTLS13 {
			t.Errorf("%s over TLS %x", response.Status, response.TLS.Version)
		}
	})
}

func dialWith(w *world, transport Transport) func(*testing.T) (*grpc.ClientConn, error) {
	return func(*testing.T) (*grpc.ClientConn, error) { return Dial(addressOf(w.server.outer), transport) }
}

func TestAStopLetsRunningCallsFinishAndRefusesNewOnes(t *testing.T) {
	w := setup(t, nil)
	entered, leave := make(chan struct{}), make(chan struct{})
	w.handler.unary = func(context.Context) error {
		close(entered)
		<-leave
		return nil
	}
	client := pb.NewTestServiceClient(w.dial(t))
	running := make(chan error)
	go func() {
		_, err := client.UnaryCall(ann(context.Background()), &pb.SimpleRequest{})
		running <- err
	}()
	<-entered
	w.stop()
	awaitRefusal(t, w)
	if got := w.server.ready.failures(t.Context()); len(got) != 1 || got[0] != "stopping" {
		t.Errorf("not ready because of %v, want stopping", got)
	}
	close(leave)
	if err := <-running; err != nil {
		t.Errorf("the running call ended with %v", err)
	}
	if err := w.awaitEnd(t); err != nil {
		t.Errorf("the end is %v, want orderly", err)
	}
}

// awaitRefusal waits until a new connection is refused.
func awaitRefusal(t *testing.T, w *world) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		conn := w.dial(t)
		_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
		if status.Code(err) == codes.Unavailable {
			return
		}
	}
	t.Fatal("new calls are still taken")
}

func TestAStopCutsWhatDoesNotEnd(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	w := setup(t, func(_ *Config, parts *Parts) {
		parts.Loops = []func(context.Context) error{func(context.Context) error { <-release; return nil }}
	})
	w.server.grace = 50 * time.Millisecond
	entered := make(chan struct{})
	w.handler.unary = func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}
	client := pb.NewTestServiceClient(w.dial(t))
	running := make(chan error)
	go func() {
		_, err := client.UnaryCall(ann(context.Background()), &pb.SimpleRequest{})
		running <- err
	}()
	<-entered
	w.stop()
	if err := <-running; err == nil {
		t.Error("the call that never ends succeeded")
	}
	if err := w.awaitEnd(t); err == nil || !strings.Contains(err.Error(), "loop did not end") {
		t.Errorf("the end is %v, want that the loop did not end", err)
	}
}

func TestALoopThatFailsStopsTheService(t *testing.T) {
	mine := errors.New("mine")
	ended := make(chan struct{})
	w := setup(t, func(_ *Config, parts *Parts) {
		parts.Loops = []func(context.Context) error{
			func(context.Context) error { return mine },
			func(ctx context.Context) error { <-ctx.Done(); close(ended); return ctx.Err() },
		}
	})
	if err := w.awaitEnd(t); !errors.Is(err, mine) {
		t.Errorf("the end is %v, want the loop's error", err)
	}
	<-ended
}

func TestDeadlines(t *testing.T) {
	for name, test := range map[string]struct {
		asked         time.Duration
		atLeast, most time.Duration
	}{
		"a_long_one_is_capped":  {5 * time.Minute, 20 * time.Second, 30 * time.Second},
		"none_is_capped":        {0, 20 * time.Second, 30 * time.Second},
		"a_short_one_is_obeyed": {10 * time.Second, 0, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t, nil)
			var left atomic.Int64
			w.handler.unary = func(ctx context.Context) error {
				if deadline, ok := ctx.Deadline(); ok {
					left.Store(int64(time.Until(deadline)))
				}
				return nil
			}
			ctx := ann(context.Background())
			if test.asked > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, test.asked)
				defer cancel()
			}
			if _, err := pb.NewTestServiceClient(w.dial(t)).UnaryCall(ctx, &pb.SimpleRequest{}); err != nil {
				t.Fatal(err)
			}
			if got := time.Duration(left.Load()); got < test.atLeast || got > test.most || got == 0 {
				t.Errorf("%s left, want at most %s", got, test.most)
			}
		})
	}
}

func TestAPanicIsInternalAndTheServiceGoesOn(t *testing.T) {
	w := setup(t, nil)
	w.handler.unary = func(context.Context) error { panic("mine") }
	client := pb.NewTestServiceClient(w.dial(t))
	_, err := client.UnaryCall(ann(t.Context()), &pb.SimpleRequest{})
	if status.Code(err) != codes.Internal || fault.ReasonOf(err) != fault.Internal || strings.Contains(err.Error(), "mine") {
		t.Errorf("a call gives %v", err)
	}
	stream, err := client.StreamingOutputCall(ann(t.Context()), &pb.StreamingOutputCallRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Internal || fault.ReasonOf(err) != fault.Internal {
		t.Errorf("a stream gives %v", err)
	}
	w.handler.unary = nil
	if _, err := client.UnaryCall(ann(t.Context()), &pb.SimpleRequest{}); err != nil {
		t.Errorf("the next call gives %v", err)
	}
	if got := w.logs.FilterMessage("call panicked").Len(); got != 2 {
		t.Errorf("%d panics are logged, want 2", got)
	}
}

func TestAMessageOverTheLimitIsRefused(t *testing.T) {
	w := setup(t, nil)
	client := pb.NewTestServiceClient(w.dial(t))
	for size, want := range map[int]codes.Code{MaxMessage - 100: codes.OK, MaxMessage + 1: codes.ResourceExhausted} {
		_, err := client.UnaryCall(ann(t.Context()), &pb.SimpleRequest{Payload: &pb.Payload{Body: make([]byte, size)}})
		if got := status.Code(err); got != want {
			t.Errorf("%d bytes give %s, want %s", size, got, want)
		}
	}
}

func TestCallsWithoutATokenAreRefused(t *testing.T) {
	w := setup(t, nil)
	_, err := pb.NewTestServiceClient(w.dial(t)).UnaryCall(t.Context(), &pb.SimpleRequest{})
	if status.Code(err) != codes.Unauthenticated || fault.ReasonOf(err) != fault.PermissionDenied {
		t.Errorf("got %v", err)
	}
	if got := w.logs.FilterMessage("call").FilterField(zap.String("reason", "PERMISSION_DENIED")).Len(); got != 1 {
		t.Errorf("%d log lines, want 1", got)
	}
}

func TestOnlyRegisteredServicesAreServed(t *testing.T) {
	w := setup(t, nil)
	for _, method := range []string{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.channelz.v1.Channelz/GetServers"} {
		err := w.dial(t).Invoke(ann(t.Context()), method, &pb.Empty{}, &pb.Empty{})
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s gives %v", method, err)
		}
	}
	if got := w.call(t, "GET", "/debug/pprof/", "", bearerHeader()); got.status != http.StatusNotFound {
		t.Errorf("pprof gives %v", got)
	}
}

func TestReadinessFollowsTheChecks(t *testing.T) {
	var away atomic.Bool
	var asked atomic.Int64
	w := setup(t, func(_ *Config, parts *Parts) {
		parts.Checks = map[string]Check{
			"store": func(context.Context) error {
				asked.Add(1)
				if away.Load() {
					return errors.New("dial: password=secret")
				}
				return nil
			},
			"source": func(context.Context) error { return nil },
		}
	})
	var clock atomic.Int64
	w.server.ready.now = func() time.Time { return time.Unix(clock.Load(), 0) }
	health := healthpb.NewHealthClient(w.dial(t))
	expect := func(moment string, code int, body string, want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if got := w.call(t, "GET", "/readyz", "", nil); got.status != code || got.body != body+"\n" {
			t.Errorf("%s: %v", moment, got)
		}
		answer, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || answer.GetStatus() != want {
			t.Errorf("%s: %v %v", moment, answer.GetStatus(), err)
		}
		if got := w.call(t, "GET", "/healthz", "", nil); got.status != http.StatusOK {
			t.Errorf("%s: alive: %v", moment, got)
		}
	}
	clock.Store(100)
	expect("at first", 200, `{"ready":true}`, healthpb.HealthCheckResponse_SERVING)
	if got := asked.Load(); got != 1 {
		t.Errorf("the store was asked %d times within a second, want once", got)
	}
	away.Store(true)
	clock.Store(102)
	expect("the store away", 503, `{"ready":false,"failing":["store"]}`, healthpb.HealthCheckResponse_NOT_SERVING)
	away.Store(false)
	clock.Store(104)
	expect("the store back", 200, `{"ready":true}`, healthpb.HealthCheckResponse_SERVING)
	if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "no.such.Service"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service gives %v", err)
	}
}

func TestTheReadyFileTellsTheAddressesAndGoes(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ready.json")
	socket := filepath.Join(dir, "grpc.sock")
	w := setup(t, func(config *Config, parts *Parts) {
		config.ReadyFile = path
		config.Listen.GRPC = "unix:" + socket
		parts.Loops = []func(context.Context) error{func(ctx context.Context) error { <-ctx.Done(); return nil }}
	})
	if _, err := pb.NewTestServiceClient(w.dial(t)).UnaryCall(ann(t.Context()), &pb.SimpleRequest{}); err != nil {
		t.Errorf("over the socket: %v", err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", info, err)
	}
	// The HTTP side answers after the file is there, as the log line is written before it.
	text, err := awaitFile(t, path)
	if err != nil {
		t.Fatal(err)
	}
	addresses := map[string]string{}
	if err := json.Unmarshal(text, &addresses); err != nil {
		t.Fatal(err)
	}
	if addresses["grpc"] != "unix:"+socket || addresses["http"] != addressOf(w.server.web) {
		t.Errorf("addresses %v", addresses)
	}
	w.stop()
	if err := w.awaitEnd(t); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the ready file outlived the service")
	}
}

func awaitFile(t *testing.T, path string) ([]byte, error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for {
		text, err := os.ReadFile(path)
		if err == nil {
			return text, nil
		}
		select {
		case <-tick.C:
		case <-late:
			return nil, err
		}
	}
}

func TestASocketFileLeftByACrashIsReplacedAndOneInUseIsNot(t *testing.T) {
	address := unixPrefix + filepath.Join(t.TempDir(), "s")
	left, err := listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t.Context(), address); err == nil || !strings.Contains(err.Error(), "somebody listens") {
		t.Errorf("an address in use gives %v", err)
	}
	unlinked, ok := left.(interface{ SetUnlinkOnClose(bool) })
	if !ok {
		t.Fatalf("the listener is a %T", left)
	}
	unlinked.SetUnlinkOnClose(false)
	_ = left.Close()
	again, err := listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

func TestAMethodWithoutARuleStopsTheStart(t *testing.T) {
	config := Config{Listen: Listen{GRPC: "127.0.0.1:0"}, Transport: Transport{Insecure: true}}
	err := Run(t.Context(), config, Parts{
		Log: zap.NewNop(), Guard: guard(t),
		Register: func(s *grpc.Server) { pb.RegisterTestServiceServer(s, &handler{}) }, // and not the admin service
	})
	if err == nil || !strings.Contains(err.Error(), "which nobody serves") {
		t.Errorf("got %v", err)
	}
}
