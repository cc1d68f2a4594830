package main

import (
	"fmt"
	"maps"
	"os"
	"time"

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

// waiting says that the service waits for its database.
func waiting(log *zap.Logger) func(error) {
	return func(err error) { log.Error("the database does not answer; waiting for it", zap.Error(err)) }
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
