package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"lockstep.dev/migrations"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/pkg/serve"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/admin"
	"lockstep.dev/services/center/internal/dispatch"
	"lockstep.dev/services/center/internal/loop"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/records"
	"lockstep.dev/services/center/internal/schedule"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/sweep"
	"lockstep.dev/services/center/internal/task"
	"lockstep.dev/services/internal/auditlog"
	"lockstep.dev/services/internal/load"
	"lockstep.dev/services/internal/tracing"
	"lockstep.dev/services/internal/whoami"
)

// system is what the parts of the service share.
type system struct {
	*identities
	*databases

	cfg     *Config
	log     *zap.Logger
	targets *dispatch.Targets
	kicks   *kicks
	policy  task.Policy
	traces  *tracing.Provider
	now     func() time.Time
}

// identities: the center signs as itself, and trusts the keys it was given.
type identities struct {
	key    *identity.KeyFile
	signer *evidence.Signer
	trust  *identity.Trust
	guard  *identity.Guard
}

func loadIdentity(cfg *Config, log *zap.Logger) (*identities, error) {
	key, err := identity.LoadKeyFile(cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	if key.AppKey != cfg.AppKey {
		return nil, fmt.Errorf("app_key is %s, but %s is a key of %s", cfg.AppKey, cfg.KeyFile, key.AppKey)
	}
	signer, err := key.Signer()
	if err != nil {
		return nil, err
	}
	trust, err := identity.LoadTrust(cfg.TrustFile)
	if err != nil {
		return nil, err
	}
	guard, err := identity.NewGuard(cfg.AppKey, trust, cfg.Operators, rules())
	if err != nil {
		return nil, err
	}
	guard.Limit(cfg.Limits.Rates)
	if err := guard.TrustIssuer(cfg.OIDC, func(err error) {
		log.Warn("the keys of the issuer of operators' tokens could not be read", zap.Error(err))
	}); err != nil {
		return nil, err
	}
	return &identities{key: key, signer: signer, trust: trust, guard: guard}, nil
}

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
	maps.Copy(all, auditlog.Rules())
	maps.Copy(all, whoami.Rules())
	return all
}

// dial makes connections to consumers that sign their calls for them.
func (i *identities) dial(t serve.Transport, options ...grpc.DialOption) func(appKey, address string) (*grpc.ClientConn, error) {
	return func(appKey, address string) (*grpc.ClientConn, error) {
		caller, err := identity.NewCaller(i.key, appKey)
		if err != nil {
			return nil, err
		}
		return serve.Dial(address, t, append(caller.DialOptions(), options...)...)
	}
}

// databases are the center's own and the host's, which is only read.
type databases struct {
	storePool, sourcePool *pgxpool.Pool
	store                 *store.Store
	frozen                *frozen.Store
	source                *source.Source
	systems               *records.Systems
	sourceRate            *load.Rate
	sourceGuard           *load.Guard
}

func openDatabases(ctx context.Context, cfg *Config, log *zap.Logger) (_ *databases, err error) {
	db := &databases{}
	defer func() {
		if err != nil {
			db.close()
		}
	}()
	if db.storePool, err = pg.Open(ctx, pg.PoolConfig{DSN: cfg.Store.DSN, MaxConns: cfg.Store.MaxConns, AppName: "lockstep-center"}); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if db.sourcePool, err = pg.Open(ctx, pg.PoolConfig{DSN: cfg.Source.DSN, MaxConns: cfg.Source.MaxConns, AppName: "lockstep-center-source"}); err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	db.sourceRate = load.NewRate(cfg.Limits.SourceRowsPerSecond)
	db.store, db.frozen = store.New(db.storePool), frozen.New(db.storePool)
	if err = pg.Await(ctx, waiting(log), func() error { return db.resolve(ctx, cfg, log) }); err != nil {
		return nil, err
	}
	db.source.Limit(db.sourceRate)
	return db, nil
}

// resolve reads from both databases what the service has to know of them.
func (db *databases) resolve(ctx context.Context, cfg *Config, log *zap.Logger) (err error) {
	if err = pg.Reach(ctx, db.storePool); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if err = pg.Reach(ctx, db.sourcePool); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if cfg.Migrate {
		if err = migrate(ctx, cfg); err != nil {
			return err
		}
	}
	table, err := dataset.Resolve(ctx, db.sourcePool, cfg.Dataset, dataset.Center)
	if err != nil {
		return err
	}
	if db.source, err = source.Open(ctx, db.sourcePool, table, log); err != nil {
		return err
	}
	if db.sourceGuard, err = load.Open(ctx, db.sourcePool, cfg.LoadGuard); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	db.systems, err = records.OpenSystems(ctx, db.frozen, db.source, log)
	return err
}

// waiting says that the service waits for a database.
func waiting(log *zap.Logger) func(error) {
	return func(err error) { log.Error("a database does not answer; waiting for it", zap.Error(err)) }
}

func (db *databases) close() {
	if db.storePool != nil {
		db.storePool.Close()
	}
	if db.sourcePool != nil {
		db.sourcePool.Close()
	}
}

func migrate(ctx context.Context, cfg *Config) error {
	dsn := cfg.Store.MigrateDSN
	if dsn == "" {
		dsn = cfg.Store.DSN
	}
	return pg.Migrate(ctx, dsn, migrations.Center, "center", "migrations_center")
}

// confirm is an operator's word on databases that are not the ones known before.
func confirm(ctx context.Context, cfg *Config, epoch int64) error {
	if cfg.reason == "" {
		return errors.New("-reason is needed: it goes into the audit log")
	}
	pool, err := pg.Open(ctx, pg.PoolConfig{DSN: cfg.Store.DSN, AppName: "lockstep-center-operator"})
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer pool.Close()
	return frozen.New(pool).Confirm(ctx, fmt.Sprintf("operator/uid-%d", os.Getuid()), cfg.reason, epoch)
}

// workerName tells processes apart in claims, for people; it decides nothing.
func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "center"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// kicks wake the loops after commits that give them work.
type kicks struct{ materialise, dispatch, deliver loop.Kick }

func newKicks() *kicks {
	return &kicks{materialise: loop.NewKick(), dispatch: loop.NewKick(), deliver: loop.NewKick()}
}

func (k *kicks) wake() {
	k.materialise.Wake()
	k.dispatch.Wake()
}

const (
	// A large set takes a minute; a second one keeps a record's task from waiting for it.
	materialisers = 2
	// A consumer that does not answer holds one of them up for dispatch.timeout.
	dispatchers = 4
)

// loops are the work that goes on by itself, as far as it is switched on.
// Revocations are finished and retention is kept in any case.
func (s *system) loops(m *manifest.Materialiser, d *dispatch.Dispatcher, sw *sweep.Sweeper) ([]func(context.Context) error, error) {
	var loops []func(context.Context) error
	add := func(name string, kick loop.Kick, step func(context.Context) (bool, error)) {
		l := &loop.Loop{Name: name, Step: step, Interval: s.cfg.ScanInterval, First: s.cfg.ScanInitialDelay, Kick: kick, Log: s.log}
		loops = append(loops, func(ctx context.Context) error { l.Run(ctx); return nil })
	}
	if s.cfg.Dispatch.Enabled {
		for range materialisers {
			add("materialise", s.kicks.materialise, m.MaterialiseOnce)
		}
		for range dispatchers {
			add("dispatch", s.kicks.dispatch, d.DispatchOnce)
		}
		add("sweep", nil, loop.All(sw.WorkOnce, sw.RevokeOnce, sw.PurgeOnce))
	} else {
		add("sweep", nil, loop.All(sw.RevokeOnce, sw.PurgeOnce))
	}
	if s.cfg.Schedule.Enabled {
		plan, err := schedule.Parse(s.cfg.Schedule.Cron, s.cfg.Schedule.Zone)
		if err != nil {
			return nil, err
		}
		scheduler := &schedule.Scheduler{Store: s.store, Plan: plan, MaxTasks: s.cfg.MaxTasksPerRun, Wake: s.kicks.wake, NewID: uuid.New, Log: s.log}
		add("schedule", nil, scheduler.ScheduleOnce)
	}
	return loops, nil
}

// oversize counts a collection before a task for it is written.
func oversize(cfg *Config, src *source.Source) func(context.Context, store.Scope) (string, error) {
	limit, name := cfg.mostRows()
	return func(ctx context.Context, sc store.Scope) (string, error) {
		n, err := src.Count(ctx, source.Range{TenantID: sc.TenantID, CollectionID: sc.CollectionID}, limit+1)
		if errors.Is(err, source.ErrNotCounted) {
			return "", nil // the materialiser counts, and refuses
		}
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

func closeTargets(log *zap.Logger, targets *dispatch.Targets) {
	if err := targets.Close(); err != nil {
		log.Warn("close the connections to consumers", zap.Error(err))
	}
}
