package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"lockstep.dev/pkg/identity"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/admin"
	"lockstep.dev/services/consumer/internal/refreshapi"
	"lockstep.dev/services/internal/auditlog"
	"lockstep.dev/services/internal/whoami"
)

const (
	nonceBytes = 32
	// leaseTimeout: a renewal that takes longer is tried again.
	leaseTimeout = 5 * time.Second
	// firstWait between two looks at a database that is away; it doubles to lastWait.
	firstWait = 250 * time.Millisecond
	lastWait  = 5 * time.Second
)

// rules say who may call what: the source dispatches, operators look.
func rules() map[string]identity.Rule {
	all := map[string]identity.Rule{
		consumerv1.DispatchService_Dispatch_FullMethodName:        identity.Peer,
		consumerv1.DispatchService_DeliverSnapshot_FullMethodName: identity.Peer,
	}
	maps.Copy(all, admin.Rules())
	maps.Copy(all, refreshapi.Rules())
	maps.Copy(all, auditlog.Rules())
	maps.Copy(all, whoami.Rules())
	return all
}

// awaitDatabase waits until the database answers: a start while it is away is
// no crash.
func awaitDatabase(ctx context.Context, log *zap.Logger, pool *pgxpool.Pool) error {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := pool.Ping(ctx)
		if err == nil {
			return nil
		}
		if wait == firstWait {
			log.Error("the database does not answer; waiting for it", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the database: %w", context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// workerName tells processes apart in claims, for people; it decides nothing.
func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "consumer"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

func closeConn(log *zap.Logger, conn *grpc.ClientConn) {
	if err := conn.Close(); err != nil {
		log.Warn("close the connection to the center", zap.Error(err))
	}
}
