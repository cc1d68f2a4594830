package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Caller signs every call to one peer as the owner of a key.
type Caller struct {
	key  *KeyFile
	peer string
	now  func() time.Time
}

// NewCaller signs calls to the service peerAppKey with key.
func NewCaller(key *KeyFile, peerAppKey string) (*Caller, error) {
	if !slices.Contains(key.Use, UseRequest) {
		return nil, fmt.Errorf("key %s may not sign requests", key.KeyID)
	}
	if peerAppKey == "" {
		return nil, errors.New("the peer's app key is missing")
	}
	return &Caller{key: key, peer: peerAppKey, now: time.Now}, nil
}

// DialOptions make a connection sign its calls. Calls are unary or server-streaming.
func (c *Caller) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(clientCodec{protoCodec()})),
		grpc.WithChainUnaryInterceptor(c.unary),
		grpc.WithChainStreamInterceptor(c.stream),
	}
}

// sign serialises a request and puts a token over its bytes into the context.
func (c *Caller) sign(ctx context.Context, method string, request any) (context.Context, ready, error) {
	bytes, err := serialise(request)
	if err != nil {
		return nil, nil, err
	}
	token, err := mint(c.key, c.peer, method, sha256.Sum256(bytes), c.now())
	if err != nil {
		return nil, nil, err
	}
	return metadata.AppendToOutgoingContext(ctx, CallTokenKey, token), bytes, nil
}

func (c *Caller) unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	ctx, bytes, err := c.sign(ctx, method, request)
	if err != nil {
		return err
	}
	return invoke(ctx, method, bytes, reply, conn, options...)
}

func (c *Caller) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	if desc.ClientStreams {
		return nil, fmt.Errorf("sign call: %s streams requests, which no token covers", method)
	}
	return &signedStream{ctx: ctx, open: func(request any) (grpc.ClientStream, error) {
		ctx, bytes, err := c.sign(ctx, method, request)
		if err != nil {
			return nil, err
		}
		opened, err := open(ctx, desc, conn, method, options...)
		if err != nil {
			return nil, err
		}
		return opened, opened.SendMsg(bytes)
	}}, nil
}

// signedStream opens the real stream with its one request, because the token in
// the stream's metadata covers that request.
type signedStream struct {
	grpc.ClientStream // nil until the request is sent

	ctx  context.Context
	open func(request any) (grpc.ClientStream, error)
}

var errNotSent = errors.New("a signed stream starts with its request")

func (s *signedStream) SendMsg(request any) error {
	if s.ClientStream != nil {
		return errors.New("a signed stream has one request")
	}
	opened, err := s.open(request)
	if err != nil {
		return err
	}
	s.ClientStream = opened
	return nil
}

func (s *signedStream) RecvMsg(reply any) error {
	if s.ClientStream == nil {
		return errNotSent
	}
	return s.ClientStream.RecvMsg(reply)
}

func (s *signedStream) CloseSend() error {
	if s.ClientStream == nil {
		return errNotSent
	}
	return s.ClientStream.CloseSend()
}

func (s *signedStream) Header() (metadata.MD, error) {
	if s.ClientStream == nil {
		return nil, errNotSent
	}
	return s.ClientStream.Header()
}

func (s *signedStream) Trailer() metadata.MD {
	if s.ClientStream == nil {
		return nil
	}
	return s.ClientStream.Trailer()
}

func (s *signedStream) Context() context.Context {
	if s.ClientStream == nil {
		return s.ctx
	}
	return s.ClientStream.Context()
}
