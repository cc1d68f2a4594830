package e2e

import (
	"context"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
)

// maxFrame is above everything that the services send.
const maxFrame = 64 << 20

// errCut is what a caller gets whose answer was lost.
var errCut = status.Error(codes.Unavailable, "cut")

// between is a network that can be told what becomes of a call: it carries
// every call as it is, bytes, token and all, unless meddle does otherwise.
type between struct {
	upstream *grpc.ClientConn
	meddle   atomic.Pointer[meddler]
}

// meddler gets a call by its method's name and carries it out or not.
type meddler func(ctx context.Context, method string, request []byte, carry func() ([]byte, error)) ([]byte, error)

// frame is a message that nobody reads on the way.
type frame struct{ bytes []byte }

type frames struct{}

func (frames) Name() string { return "proto" }

func (frames) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*frame).bytes)}, nil //nolint:forcetypeassert // nothing else is carried
}

func (frames) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*frame).bytes = data.Materialize() //nolint:forcetypeassert // nothing else is carried
	return nil
}

// between starts a network before an address and gives its own.
func (s *stack) between(upstream string) (*between, string) {
	s.t.Helper()
	s.serial++
	path := s.file("between-" + string(rune('a'+s.serial)) + ".sock")
	conn, err := grpc.NewClient(upstream, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(frames{}), grpc.MaxCallRecvMsgSize(maxFrame), grpc.MaxCallSendMsgSize(maxFrame)))
	s.must(err)
	b := &between{upstream: conn}
	listener, err := net.Listen("unix", path) //nolint:noctx // closed with its server
	s.must(err)
	server := grpc.NewServer(grpc.ForceServerCodecV2(frames{}), grpc.UnknownServiceHandler(b.handle),
		grpc.MaxRecvMsgSize(maxFrame), grpc.MaxSendMsgSize(maxFrame))
	go func() { _ = server.Serve(listener) }() // ends with Stop
	s.t.Cleanup(func() {
		server.Stop()
		_ = conn.Close()
	})
	return b, "unix:" + path
}

func (b *between) handle(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	in := &frame{}
	if err := stream.RecvMsg(in); err != nil {
		return err
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	md = md.Copy()
	delete(md, ":authority")
	ctx := metadata.NewOutgoingContext(stream.Context(), md)
	carry := func() ([]byte, error) {
		out := &frame{}
		err := b.upstream.Invoke(ctx, full, in, out)
		return out.bytes, err
	}
	method := full[strings.LastIndex(full, "/")+1:]
	var out []byte
	var err error
	if m := b.meddle.Load(); m != nil {
		out, err = (*m)(ctx, method, in.bytes, carry)
	} else {
		out, err = carry()
	}
	if err != nil {
		return err
	}
	return stream.SendMsg(&frame{out})
}

// meddleWith makes m decide about every call from now on; nil carries them all.
func (b *between) meddleWith(m meddler) {
	if m == nil {
		b.meddle.Store(nil)
		return
	}
	b.meddle.Store(&m)
}

// reportIn reads the report of a ReportResult call.
func reportIn(request []byte) (*protocol.Report, error) {
	var m centerv1.ReportResultRequest
	if err := proto.Unmarshal(request, &m); err != nil {
		return nil, err
	}
	return document.ParseReport(document.EnvelopeFromProto(m.GetReport()).Payload)
}

// ack changes an acknowledgement on its way.
func ack(answer []byte, change func(*centerv1.ReportResultResponse)) ([]byte, error) {
	var m centerv1.ReportResultResponse
	if err := proto.Unmarshal(answer, &m); err != nil {
		return nil, err
	}
	change(&m)
	return proto.Marshal(&m)
}
