package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/admin"
	"lockstep.dev/services/center/internal/dispatch"
	"lockstep.dev/services/center/internal/loop"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store"
)

// rules say who may call what: operators the admin side, services the other.
func rules() map[string]identity.Rule {
	all := map[string]identity.Rule{
		centerv1.ReconcileService_GetManifest_FullMethodName:   identity.Peer,
		centerv1.ReconcileService_ListPageIndex_FullMethodName: identity.Peer,
		centerv1.ReconcileService_GetPages_FullMethodName:      identity.Peer,
		centerv1.ReconcileService_ListRows_FullMethodName:      identity.Peer,
		centerv1.ReconcileService_GetRecords_FullMethodName:    identity.Peer,
		centerv1.ReconcileService_ReportResult_FullMethodName:  identity.Peer,
	}
	maps.Copy(all, admin.Rules())
	return all
}

// firstWait between two looks at a database that is away; it doubles to lastWait.
const (
	firstWait = 250 * time.Millisecond
	lastWait  = 5 * time.Second
)

// awaitDatabases waits until every database answers: a start while one is away
// is no crash.
func awaitDatabases(ctx context.Context, log *zap.Logger, pools map[string]*pgxpool.Pool) error {
	for name, pool := range pools {
		for wait := firstWait; ; wait = min(2*wait, lastWait) {
			err := pool.Ping(ctx)
			if err == nil {
				break
			}
			if wait == firstWait {
				log.Error("a database does not answer; waiting for it", zap.String("database", name), zap.Error(err))
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for the %s database: %w", name, context.Cause(ctx))
			case <-time.After(wait):
			}
		}
	}
	return nil
}

// workerName tells processes apart in claims, for people; it decides nothing.
func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "center"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// oversize counts a collection before a task for it is written.
func oversize(cfg *Config, src *source.Source) func(context.Context, store.Scope) (string, error) {
	limit, name := cfg.mostRows()
	return func(ctx context.Context, sc store.Scope) (string, error) {
		n, err := src.Count(ctx, source.Range{TenantID: sc.TenantID, CollectionID: sc.CollectionID}, limit+1)
		if err != nil || n <= limit {
			return "", err
		}
		return fmt.Sprintf("more than %d rows (%s)", limit, name), nil
	}
}

// elsewhere looks whether a record lives in another tenant or collection only.
func elsewhere(src *source.Source) func(context.Context, store.Scope, string) (bool, error) {
	return func(ctx context.Context, sc store.Scope, key string) (bool, error) {
		raw, err := protocol.ParseKey(key)
		if err != nil {
			return false, err
		}
		// Which rows hold the key is asked, not what is in them.
		const noContent = 0
		now, err := src.Current(ctx, source.Range{TenantID: sc.TenantID, CollectionID: sc.CollectionID}, []string{raw}, noContent)
		if err != nil {
			return false, err
		}
		return now.Elsewhere[raw] && now.Rows[raw] == nil, nil
	}
}

func runners(loops []*loop.Loop) []func(context.Context) error {
	out := make([]func(context.Context) error, len(loops))
	for i, l := range loops {
		out[i] = func(ctx context.Context) error {
			l.Run(ctx)
			return nil
		}
	}
	return out
}

func closeTargets(log *zap.Logger, targets *dispatch.Targets) {
	if err := targets.Close(); err != nil {
		log.Warn("close the connections to consumers", zap.Error(err))
	}
}
