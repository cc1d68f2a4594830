package identity

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/test/bufconn"

	"lockstep.dev/pkg/fault"
)

var testNow = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

const (
	unaryMethod  = "/grpc.testing.TestService/UnaryCall"
	otherMethod  = "/grpc.testing.TestService/CacheableUnaryCall"
	streamMethod = "/grpc.testing.TestService/StreamingOutputCall"
	humanMethod  = "/grpc.testing.TestService/EmptyCall"
	viewerMethod = "/grpc.testing.TestService/UnimplementedCall"
)

func testRules() map[string]Rule {
	return map[string]Rule{
		unaryMethod: Peer, otherMethod: Peer, streamMethod: Peer,
		humanMethod: OperatorWith(RoleOperator), viewerMethod: OperatorWith(RoleViewer),
		"/grpc.testing.TestService/StreamingInputCall": OperatorWith(RoleAdmin),
		"/grpc.testing.TestService/FullDuplexCall":     OperatorWith(RoleAdmin),
		"/grpc.testing.TestService/HalfDuplexCall":     OperatorWith(RoleAdmin),
	}
}

// world is a center that knows the service "hall" and two operators.
type world struct {
	guard    *Guard
	hall     *KeyFile
	service  *service
	listener *bufconn.Listener
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{hall: newKey(t, "hall", "hall-1", UseRequest), service: &service{}, listener: bufconn.Listen(1 << 20)}
	trust, err := NewTrust(w.hall.Public())
	if err != nil {
		t.Fatal(err)
	}
	w.guard, err = NewGuard("center", trust, []OperatorConfig{
		{ID: "ann", Role: RoleOperator, TokenSHA256: HashOperatorToken("ann's token"), Tenants: []int64{7}},
		{ID: "vic", Role: RoleViewer, TokenSHA256: HashOperatorToken("vic's token")},
	}, testRules())
	if err != nil {
		t.Fatal(err)
	}
	w.guard.now = func() time.Time { return testNow }
	options := append([]grpc.ServerOption{
		grpc.ChainUnaryInterceptor(fault.UnaryServer(zap.NewNop())), grpc.ChainStreamInterceptor(fault.StreamServer(zap.NewNop())),
	}, w.guard.ServerOptions()...)
	server := grpc.NewServer(options...)
	pb.RegisterTestServiceServer(server, w.service)
	if err := w.guard.CheckComplete(server); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(w.listener) }()
	t.Cleanup(func() {
		server.Stop()
		// A test that makes no call may stop the server before it serves.
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve: %v", err)
		}
		w.guard.codec.received.Range(func(message, _ any) bool {
			t.Errorf("the digest of a %T was left behind", message)
			return true
		})
	})
	return w
}

// trust replaces what the center believes.
func (w *world) trust(t *testing.T, keys ...TrustKey) {
	t.Helper()
	trust, err := NewTrust(keys...)
	if err != nil {
		t.Fatal(err)
	}
	w.guard.trust = trust
}

func (w *world) dial(t *testing.T, options ...grpc.DialOption) pb.TestServiceClient {
	t.Helper()
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.listener.DialContext(ctx) }))
	conn, err := grpc.NewClient("passthrough:///center", options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewTestServiceClient(conn)
}

// caller signs calls to the center with a key.
func caller(t *testing.T, key *KeyFile, now time.Time) *Caller {
	t.Helper()
	c, err := NewCaller(key, "center")
	if err != nil {
		t.Fatal(err)
	}
	c.now = func() time.Time { return now }
	return c
}

func newKey(t *testing.T, appKey, keyID string, uses ...Use) *KeyFile {
	t.Helper()
	key, err := GenerateKeyFile(filepath.Join(t.TempDir(), "key.json"), KeyParams{
		AppKey: appKey, KeyID: keyID, Use: uses, NotBefore: testNow.Add(-24 * time.Hour), NotAfter: testNow.Add(24 * time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// service answers with who called and how large the payload was.
type service struct {
	pb.UnimplementedTestServiceServer

	calls int
}

func (s *service) UnaryCall(ctx context.Context, request *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	s.calls++
	return &pb.SimpleResponse{Username: PeerFrom(ctx), Payload: request.GetPayload()}, nil
}

func (s *service) CacheableUnaryCall(ctx context.Context, request *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return s.UnaryCall(ctx, request)
}

func (s *service) EmptyCall(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	s.calls++
	if operator, ok := OperatorFrom(ctx); !ok || operator.ID != "ann" || !operator.MaySee(7) || operator.MaySee(8) {
		return nil, fault.New(fault.Internal, "operator %v", operator)
	}
	return &pb.Empty{}, nil
}

func (s *service) UnimplementedCall(context.Context, *pb.Empty) (*pb.Empty, error) {
	s.calls++
	return &pb.Empty{}, nil
}

func (s *service) StreamingOutputCall(request *pb.StreamingOutputCallRequest, stream pb.TestService_StreamingOutputCallServer) error {
	s.calls++
	for range request.GetResponseParameters() {
		if err := stream.Send(&pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: []byte(PeerFrom(stream.Context()))}}); err != nil {
			return err
		}
	}
	return nil
}

// FullDuplexCall stays open until its context ends.
func (s *service) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}
