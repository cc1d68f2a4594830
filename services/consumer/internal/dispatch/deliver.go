package dispatch

import (
	"context"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// DeliverSnapshot is ordinary delivery's entry. It shares the service with the
// instructions because the same caller comes, and nothing else with them.
func (s *Server) DeliverSnapshot(ctx context.Context, req *consumerv1.DeliverSnapshotRequest) (*consumerv1.DeliverSnapshotResponse, error) {
	if s.Deliveries == nil {
		return s.UnimplementedDispatchServiceServer.DeliverSnapshot(ctx, req)
	}
	return s.Deliveries.DeliverSnapshot(ctx, req)
}
