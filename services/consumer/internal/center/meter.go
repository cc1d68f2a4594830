package center

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// Meter counts the bytes that calls for one task moved over the connection, as
// they were on the wire.
type Meter struct{ bytes atomic.Int64 }

// Bytes is the count so far.
func (m *Meter) Bytes() int64 { return m.bytes.Load() }

type meterKey struct{}

// Metered makes the calls under the returned context count into m.
func Metered(ctx context.Context, m *Meter) context.Context {
	return context.WithValue(ctx, meterKey{}, m)
}

// Stats is the connection's stats handler that fills the meters.
type Stats struct{}

// TagRPC is part of stats.Handler: the meter is in the call's context already.
func (Stats) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC counts what a call sent and received.
func (Stats) HandleRPC(ctx context.Context, s stats.RPCStats) {
	m, ok := ctx.Value(meterKey{}).(*Meter)
	if !ok {
		return
	}
	switch s := s.(type) {
	case *stats.InPayload:
		m.bytes.Add(int64(s.WireLength))
	case *stats.OutPayload:
		m.bytes.Add(int64(s.WireLength))
	case *stats.InHeader:
		m.bytes.Add(int64(s.WireLength))
	case *stats.InTrailer:
		m.bytes.Add(int64(s.WireLength))
	}
}

// TagConn is part of stats.Handler.
func (Stats) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn is part of stats.Handler.
func (Stats) HandleConn(context.Context, stats.ConnStats) {}
