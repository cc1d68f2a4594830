package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
)

const annsToken = "ann's-token"

// world is a running service with one operator, ann.
type world struct {
	server  *server
	handler *handler
	logs    *observer.ObservedLogs
	stop    context.CancelFunc
	ended   chan error
}

// setup starts a service; change adjusts it before.
func setup(t *testing.T, change func(*Config, *Parts)) *world {
	t.Helper()
	w := prepare(t, change)
	w.start(t)
	return w
}

// prepare is setup without the start.
func prepare(t *testing.T, change func(*Config, *Parts)) *world {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	w := &world{handler: &handler{}, logs: logs, ended: make(chan error, 1)}
	config := Config{Listen: Listen{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0"}, Transport: Transport{Insecure: true}}
	parts := Parts{
		Log: zap.New(core), Guard: guard(t), Gateways: []Gateway{centerv1.RegisterAdminServiceHandler},
		Register: func(s *grpc.Server) {
			pb.RegisterTestServiceServer(s, w.handler)
			centerv1.RegisterAdminServiceServer(s, w.handler)
		},
	}
	if change != nil {
		change(&config, &parts)
	}
	server, err := newServer(t.Context(), config, parts)
	if err != nil {
		t.Fatal(err)
	}
	w.server = server
	return w
}

func (w *world) start(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	go func() { w.ended <- w.server.run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-w.ended:
			t.Logf("the service ended: %v", err)
		case <-time.After(20 * time.Second):
			t.Error("the service does not end")
		}
	})
}

// awaitEnd returns what run returned.
func (w *world) awaitEnd(t *testing.T) error {
	t.Helper()
	select {
	case err := <-w.ended:
		w.ended <- err // for the clean-up
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the service does not end")
		return nil
	}
}

func guard(t *testing.T) *identity.Guard {
	t.Helper()
	rules := map[string]identity.Rule{}
	for _, service := range []grpc.ServiceDesc{pb.TestService_ServiceDesc, centerv1.AdminService_ServiceDesc} {
		for _, method := range service.Methods {
			rules["/"+service.ServiceName+"/"+method.MethodName] = identity.OperatorWith(identity.RoleViewer)
		}
		for _, stream := range service.Streams {
			rules["/"+service.ServiceName+"/"+stream.StreamName] = identity.OperatorWith(identity.RoleViewer)
		}
	}
	trust, err := identity.NewTrust()
	if err != nil {
		t.Fatal(err)
	}
	made, err := identity.NewGuard("center", trust, []identity.OperatorConfig{
		{ID: "ann", Role: identity.RoleAdmin, TokenSHA256: identity.HashOperatorToken(annsToken)},
	}, rules)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// dial connects to the service in plaintext.
func (w *world) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := Dial(addressOf(w.server.outer), Transport{Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ann is a context that carries her token.
func ann(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, identity.OperatorTokenKey, annsToken)
}

// handler is what the service does.
type handler struct {
	pb.UnimplementedTestServiceServer
	centerv1.UnimplementedAdminServiceServer

	unary    func(ctx context.Context) error
	received atomic.Pointer[metadata.MD]
	tasks    atomic.Int64
	pages    atomic.Int64
}

func (h *handler) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	if h.unary != nil {
		if err := h.unary(ctx); err != nil {
			return nil, err
		}
	}
	return &pb.SimpleResponse{}, nil
}

func (h *handler) StreamingOutputCall(*pb.StreamingOutputCallRequest, pb.TestService_StreamingOutputCallServer) error {
	panic("in a stream")
}

func (h *handler) GetTask(ctx context.Context, request *centerv1.GetTaskRequest) (*centerv1.GetTaskResponse, error) {
	received, _ := metadata.FromIncomingContext(ctx)
	h.received.Store(&received)
	if request.GetTaskId() == "gone" {
		return nil, fault.New(fault.TaskNotFound, "there is no task gone").With("hint", "look again")
	}
	if request.GetTaskId() == "broken" {
		return nil, errors.New("secret detail")
	}
	return &centerv1.GetTaskResponse{}, nil
}

// ListTasks has tasks 1 to 450. A consumer's name makes it fail at a place.
func (h *handler) ListTasks(_ context.Context, request *centerv1.ListTasksRequest) (*centerv1.ListTasksResponse, error) {
	const tasks = 450
	from, _ := strconv.Atoi(request.GetPageToken())
	h.pages.Add(1)
	switch {
	case request.GetConsumer() == "breaks" && from > 200, request.GetConsumer() == "is broken":
		return nil, errors.New("secret detail")
	case request.GetConsumer() == "circles":
		return &centerv1.ListTasksResponse{Tasks: []*centerv1.Task{{TaskId: "1"}}, NextPageToken: "1"}, nil
	case request.GetConsumer() == "none":
		return &centerv1.ListTasksResponse{}, nil
	}
	answer := &centerv1.ListTasksResponse{}
	for n := from + 1; n <= tasks && n <= from+int(request.GetPageSize()); n++ {
		answer.Tasks = append(answer.Tasks, &centerv1.Task{TaskId: strconv.Itoa(n), Reason: "two\nlines"})
	}
	if next := from + int(request.GetPageSize()); next < tasks {
		answer.NextPageToken = strconv.Itoa(next)
	}
	return answer, nil
}

// WatchTask sends three tasks, slower than a server would wait for one answer.
func (h *handler) WatchTask(request *centerv1.WatchTaskRequest, stream grpc.ServerStreamingServer[centerv1.WatchTaskResponse]) error {
	for range 3 {
		if err := stream.Send(&centerv1.WatchTaskResponse{Task: &centerv1.Task{TaskId: request.GetTaskId()}}); err != nil {
			return err
		}
		select {
		case <-time.After(slower):
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	return nil
}

// slower than the time-outs of the test's HTTP side.
const slower = 150 * time.Millisecond

func (h *handler) CreateTask(_ context.Context, request *centerv1.CreateTaskRequest) (*centerv1.CreateTaskResponse, error) {
	h.tasks.Add(1)
	if request.GetConsumer() == "" {
		return nil, fault.New(fault.InvalidArgument, "the request has faults").WithField("consumer", "is missing")
	}
	return &centerv1.CreateTaskResponse{}, nil
}

// authority makes certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, "ca", true)
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes name.crt and name.key for 127.0.0.1.
func (a *authority) issue(t *testing.T, name string, isCA bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: isCA,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if isCA {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(a.file(name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// transport is what a service or client of that name is configured with.
func (a *authority) transport(t *testing.T, name string) Transport {
	t.Helper()
	a.issue(t, name, false)
	return Transport{CertFile: a.file(name + ".crt"), KeyFile: a.file(name + ".key"), CAFile: a.file("ca.crt")}
}

func (a *authority) roots() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}
