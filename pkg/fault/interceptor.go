package fault

import (
	"context"

	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// UnaryServer answers every error by ToStatus, and logs what is INTERNAL once.
func UnaryServer(log *zap.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		return resp, answer(log, info.FullMethod, err)
	}
}

// StreamServer does for streams what UnaryServer does for unary calls.
func StreamServer(log *zap.Logger) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return answer(log, info.FullMethod, handler(srv, stream))
	}
}

func answer(log *zap.Logger, method string, err error) error {
	if err == nil {
		return nil
	}
	if classify(err).Reason == Internal {
		log.Error("call failed inside", zap.String("method", method), zap.Error(err))
	}
	return ToStatus(err)
}
