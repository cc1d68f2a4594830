package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"lockstep.dev/migrations"
	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/serve"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	operatorv1 "lockstep.dev/proto/lockstep/operator/v1"
	"lockstep.dev/services/consumer/internal/admin"
	"lockstep.dev/services/consumer/internal/center"
	"lockstep.dev/services/consumer/internal/console"
	"lockstep.dev/services/consumer/internal/delivery"
	"lockstep.dev/services/consumer/internal/dispatch"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/report"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/worker"
	"lockstep.dev/services/internal/load"
	"lockstep.dev/services/internal/version"
	"lockstep.dev/services/internal/whoami"
)

const usage = `usage: consumer [-config file] [serve | migrate | healthcheck | refresh [selector] | version]

  serve        run the service (default)
  migrate      apply the migrations of Lockstep's own tables, and of the projections it refreshes, and end
  healthcheck  ask the service that runs here with these settings whether it is ready
  refresh      work on the refresh tasks that are due, once, and end; fails where one of them failed.
               A selector, such as '{"codes": ["…"], "keys": ["…"]}', looks at those pending and failed tasks only.
  version      print the version

Settings come from the file and from variables like LOCKSTEP_CONSUMER__EXECUTION__ENABLED=true.
`

// envPrefix of the settings' variables.
const envPrefix = "LOCKSTEP_CONSUMER"

func command(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("consumer", flag.ContinueOnError)
	flags.Usage = func() { _, _ = io.WriteString(flags.Output(), usage) }
	path := flags.String("config", "", "the settings file")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	verb := flags.Arg(0)
	if flags.NArg() > 1 && verb != "refresh" || flags.NArg() > 2 || verb != "" && !slices.Contains([]string{"serve", "migrate", "healthcheck", "refresh", "version"}, verb) {
		return fmt.Errorf("unknown arguments %q\n%s", flags.Args(), usage)
	}
	if verb == "version" {
		_, err := fmt.Fprintln(out, version.Version)
		return err
	}
	cfg := defaults()
	if err := config.Load(*path, envPrefix, cfg); err != nil {
		return err
	}
	switch verb {
	case "migrate":
		return migrate(ctx, cfg)
	case "healthcheck":
		return serve.Probe(ctx, cfg.Config)
	case "refresh":
		return refreshOnce(ctx, cfg, flags.Args()[1:], out)
	default:
		return run(ctx, cfg)
	}
}

func migrate(ctx context.Context, cfg *Config) error {
	dsn := cfg.Store.MigrateDSN
	if dsn == "" {
		dsn = cfg.Store.DSN
	}
	if err := pg.Migrate(ctx, dsn, migrations.Consumer, "consumer", "migrations_consumer"); err != nil {
		return err
	}
	return cfg.Refresh.migrate(ctx, dsn)
}

// run wires the service and serves until ctx ends.
func run(ctx context.Context, cfg *Config) error {
	log, err := serve.Logger(cfg.Log.Level, cfg.Log.Encoding)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		// What lives is small beside what a scan goes through; half of it as head room
		// keeps the process below 64 MB for a few percent of its time.
		debug.SetGCPercent(50)
	}
	log.Info("consumer starts", zap.String("version", version.Version), zap.String("app_key", cfg.AppKey))
	if cfg.Migrate {
		if err := migrate(ctx, cfg); err != nil {
			return err
		}
	}

	// Identity: the consumer signs as itself and believes one source.
	key, err := identity.LoadKeyFile(cfg.KeyFile)
	if err != nil {
		return err
	}
	if key.AppKey != cfg.AppKey {
		return fmt.Errorf("app_key is %s, but %s is a key of %s", cfg.AppKey, cfg.KeyFile, key.AppKey)
	}
	signer, err := key.Signer()
	if err != nil {
		return err
	}
	trust, err := identity.LoadTrust(cfg.TrustFile)
	if err != nil {
		return err
	}
	if !trust.Knows(cfg.SourceAppKey) {
		return fmt.Errorf("%s has no key of source_app_key %s", cfg.TrustFile, cfg.SourceAppKey)
	}
	now := time.Now
	sourceKeys := func() []evidence.Key { return trust.Keys(cfg.SourceAppKey, identity.UseStatement, now()) }
	guard, err := identity.NewGuard(cfg.AppKey, trust, cfg.Operators, rules())
	if err != nil {
		return err
	}
	if err := guard.TrustIssuer(cfg.OIDC, func(err error) {
		log.Warn("the keys of the issuer of operators' tokens could not be read", zap.Error(err))
	}); err != nil {
		return err
	}
	guard.Limit(cfg.Limits.Rates)

	// Databases: one, with a share of the connections for reading images, and a
	// few more that renew leases and do nothing else.
	pool, err := pg.Open(ctx, pg.PoolConfig{DSN: cfg.Store.DSN, MaxConns: cfg.Store.MaxConns - worker.RangesAtOnce, AppName: "lockstep-consumer"})
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer pool.Close()
	images, err := pg.Open(ctx, pg.PoolConfig{DSN: cfg.Store.DSN, MaxConns: worker.RangesAtOnce, AppName: "lockstep-consumer-images"})
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer images.Close()
	leases, err := pg.Open(ctx, pg.PoolConfig{
		DSN: cfg.Store.DSN, MaxConns: leaseConns, StatementTimeout: leaseTimeout, AppName: "lockstep-consumer-leases",
	})
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer leases.Close()
	var busy *load.Guard
	var table *dataset.Table
	if err := pg.Await(ctx, waiting(log), func() (err error) {
		if err = pg.Reach(ctx, pool); err != nil {
			return err
		}
		if busy, err = load.Open(ctx, pool, cfg.LoadGuard); err != nil {
			return err
		}
		table, err = dataset.Resolve(ctx, pool, cfg.Dataset, dataset.Consumer)
		return err
	}); err != nil {
		return err
	}
	refreshes, err := openRefresh(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer refreshes.close()
	registry := serve.NewRegistry()
	counts, err := newCounters(registry)
	if err != nil {
		return err
	}
	set := cfg.storeSettings()
	set.Tally = counts.tally()
	st := store.New(pool, leases, set)
	rows := projection.New(pool, images, table)

	// The center.
	caller, err := identity.NewCaller(key, cfg.SourceAppKey)
	if err != nil {
		return err
	}
	traces, endTraces, err := openTracing(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer endTraces()
	conn, err := serve.Dial(cfg.Center.Address, cfg.Transport,
		slices.Concat(caller.DialOptions(), []grpc.DialOption{grpc.WithStatsHandler(center.Stats{})}, traces.DialOptions())...)
	if err != nil {
		return err
	}
	defer closeConn(log, conn)
	source := center.New(conn)

	// Work.
	w := worker.New(worker.Worker{
		Name: workerName(), Self: cfg.AppKey, Store: st, Center: source, Projection: rows, SourceKeys: sourceKeys,
		Set: cfg.workerSettings(), Now: now, Log: log, Tracer: traces.Tracer(), Withheld: counts.withholding, Guard: busy,
		Repairer: &repair.Repairer{
			Self: cfg.AppKey, Center: source, Store: st, Projection: rows, SourceKeys: sourceKeys,
			Now: now, NewNonce: nonce, Log: log, MaxRetries: cfg.MaxRepairRetries, MaxAge: cfg.SnapshotMaxAge,
			MaxExtras: cfg.MaxPendingExtras, MaxRetirePercent: cfg.MaxRetirePercent, Content: cfg.VerifyContent,
			Limit: repair.NewLimit(cfg.Limits.RepairsPerSecond), Changed: refreshes.changed(),
		},
		Reporter: &report.Reporter{
			Self: cfg.AppKey, Signer: signer, Center: source, Now: now, MaxItems: cfg.MaxErrorItems, MaxChars: cfg.MaxErrorChars,
		},
	})
	deliveries, options, err := receiver(cfg, registry, delivery.Receiver{
		Self: cfg.AppKey, Source: cfg.SourceAppKey, SourceKeys: sourceKeys, Store: st, Projection: rows, Changed: refreshes.changed(), Log: log,
	})
	if err != nil {
		return err
	}
	instructions := &dispatch.Server{
		Self: cfg.AppKey, Source: cfg.SourceAppKey, SourceKeys: sourceKeys, Store: st, Kick: w.Kick, Log: log, Deliveries: deliveries,
	}
	operators := &admin.Server{Store: st, Projection: rows, WaitsFor: w.WaitsFor, Kick: w.Kick}

	watched, err := observe(ctx, registry, watching{
		cfg: cfg, log: log, key: key, signer: signer, store: st, pool: pool, refreshes: refreshes.engine, now: now,
		pools: map[string]*pgxpool.Pool{"store": pool, "images": images, "leases": leases, "refresh": refreshes.pools[0], "refresh_leases": refreshes.pools[1]},
	})
	if err != nil {
		return err
	}
	return serve.Run(ctx, cfg.Config, serve.Parts{
		Log: log, Guard: guard, Registry: registry, Refused: watched.refusals.Refused,
		Options: append(options, traces.ServerOptions(consumerv1.DispatchService_ServiceDesc.ServiceName)...),
		Register: func(s *grpc.Server) {
			consumerv1.RegisterDispatchServiceServer(s, instructions)
			consumerv1.RegisterAdminServiceServer(s, operators)
			consumerv1.RegisterRefreshServiceServer(s, refreshes.server)
			auditv1.RegisterAuditServiceServer(s, watched.audit)
			operatorv1.RegisterOperatorServiceServer(s, &whoami.Server{})
		},
		Gateways: []serve.Gateway{
			consumerv1.RegisterAdminServiceHandler, consumerv1.RegisterRefreshServiceHandler, auditv1.RegisterAuditServiceHandler,
			operatorv1.RegisterOperatorServiceHandler,
		},
		Web: func(ctx context.Context, conn *grpc.ClientConn) (http.Handler, error) {
			return console.New(ctx, cfg.AppKey, conn, rules(), log, now)
		},
		Checks: map[string]serve.Check{"store": st.Ping},
		Loops:  append(watched.loops, w.Run, w.RunWaiting, w.RunPurge, refreshes.run),
	})
}

// nonce is fresh for every call that asks for signed words.
func nonce() ([]byte, error) {
	b := make([]byte, nonceBytes)
	_, err := rand.Read(b)
	return b, err
}
