package serve

import (
	"context"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// unaskedKey marks calls over the inner connections. From outside it means nothing.
const unaskedKey = "lockstep-unasked"

// Unasked marks the calls that a console makes by itself, such as those of a page
// that is kept current: nobody did them, so where they go well they are logged
// for debugging only.
func Unasked(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, unaskedKey, "yes")
}

// unasked reports whether a call that is served came marked from within.
func unasked(ctx context.Context) bool {
	from, ok := peer.FromContext(ctx)
	return ok && from.Addr.Network() == innerNetwork && len(metadata.ValueFromIncomingContext(ctx, unaskedKey)) > 0
}
