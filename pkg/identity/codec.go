package identity

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// The digest in a call token covers the serialised request before compression.
// Serialising a message twice may give other bytes, so each side takes the
// digest of the very bytes that travel: the client serialises once and hands the
// codec ready bytes, the server's codec keeps the digest of what it received.

func protoCodec() encoding.CodecV2 { return encoding.GetCodecV2(proto.Name) }

// ready is a message that is serialised already.
type ready []byte

type clientCodec struct{ encoding.CodecV2 }

func (c clientCodec) Marshal(v any) (mem.BufferSlice, error) {
	if bytes, ok := v.(ready); ok {
		return mem.BufferSlice{mem.SliceBuffer(bytes)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// received holds messages while they are read. gRPC's own buffers come in no size
// between 32 KB and 1 MB, which an answer about a hundred records would take.
var received = mem.NewTieredBufferPool(32<<10, 64<<10, 128<<10, 256<<10, 512<<10, 1<<20)

func (c clientCodec) Unmarshal(data mem.BufferSlice, v any) error {
	whole := data.MaterializeToBuffer(received)
	defer whole.Free()
	return c.CodecV2.Unmarshal(mem.BufferSlice{whole}, v)
}

// serialise makes the bytes of a request, once.
func serialise(request any) (ready, error) {
	buffers, err := protoCodec().Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("serialise request: %w", err)
	}
	defer buffers.Free()
	return buffers.Materialize(), nil
}

type digest [sha256.Size]byte

// serverCodec remembers the digest of each message between its decoding and the
// outermost interceptor, which always follows and takes it away.
type serverCodec struct {
	encoding.CodecV2

	received *sync.Map // the message's pointer -> digest
}

func (c serverCodec) Unmarshal(data mem.BufferSlice, v any) error {
	hash := sha256.New()
	for _, buffer := range data {
		hash.Write(buffer.ReadOnlyData())
	}
	if err := c.CodecV2.Unmarshal(data, v); err != nil {
		return err
	}
	c.received.Store(v, digest(hash.Sum(nil)))
	return nil
}

func (c serverCodec) take(message any) (digest, bool) {
	found, ok := c.received.LoadAndDelete(message)
	if !ok {
		return digest{}, false
	}
	sum, ok := found.(digest)
	return sum, ok
}

// body holds the digest of the one request message of a call.
type body struct {
	sum   digest
	known bool
}

type bodyKey struct{}

func bodyOf(ctx context.Context) body {
	if held, ok := ctx.Value(bodyKey{}).(*body); ok {
		return *held
	}
	return body{}
}

// takeUnary moves the request's digest into the context. It is the outermost
// interceptor, so that no refusal of another one leaves a digest behind.
func (c serverCodec) takeUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	sum, known := c.take(request)
	return handler(context.WithValue(ctx, bodyKey{}, &body{sum: sum, known: known}), request)
}

func (c serverCodec) takeStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	held := &body{}
	ctx := context.WithValue(stream.Context(), bodyKey{}, held)
	return handler(srv, &digestStream{ServerStream: stream, ctx: ctx, codec: c, held: held})
}

type digestStream struct {
	grpc.ServerStream

	ctx   context.Context
	codec serverCodec
	held  *body
}

func (s *digestStream) Context() context.Context { return s.ctx }

func (s *digestStream) RecvMsg(message any) error {
	err := s.ServerStream.RecvMsg(message)
	s.held.sum, s.held.known = s.codec.take(message)
	return err
}
