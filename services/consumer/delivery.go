package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"lockstep.dev/pkg/serve"
	"lockstep.dev/services/consumer/internal/delivery"
)

// Delivery switches ordinary delivery: the snapshots that the center pushes.
type Delivery struct {
	// Enabled accepts the snapshots that the center pushes between two reconciles.
	Enabled bool `koanf:"enabled"`
}

// receiver completes the receiver of deliveries, and gives the server options
// that it needs: one snapshot is larger than any other call.
func receiver(cfg *Config, registry *prometheus.Registry, r delivery.Receiver) (*delivery.Receiver, []grpc.ServerOption, error) {
	metrics, err := delivery.NewMetrics(registry)
	if err != nil {
		return nil, nil, err
	}
	r.Metrics, r.Enabled = metrics, cfg.Delivery.Enabled
	if !r.Enabled {
		return &r, nil, nil
	}
	return &r, []grpc.ServerOption{grpc.MaxRecvMsgSize(serve.MaxSnapshotMessage)}, nil
}
