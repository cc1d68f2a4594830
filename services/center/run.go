package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
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
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/admin"
	"lockstep.dev/services/center/internal/create"
	"lockstep.dev/services/center/internal/dispatch"
	"lockstep.dev/services/center/internal/grant"
	"lockstep.dev/services/center/internal/loop"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/reconcile"
	"lockstep.dev/services/center/internal/records"
	"lockstep.dev/services/center/internal/report"
	"lockstep.dev/services/center/internal/schedule"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/sweep"
	"lockstep.dev/services/internal/version"
)

const usage = `usage: center [-config file] [serve | migrate | version]

  serve    run the service (default)
  migrate  apply the migrations of the center's own database and end
  version  print the version

Settings come from the file and from variables like LOCKSTEP_CENTER__DISPATCH__ENABLED=true.
`

// envPrefix of the settings' variables.
const envPrefix = "LOCKSTEP_CENTER"

func command(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("center", flag.ContinueOnError)
	flags.Usage = func() { _, _ = io.WriteString(flags.Output(), usage) }
	path := flags.String("config", "", "the settings file")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	verb := flags.Arg(0)
	if flags.NArg() > 1 || verb != "" && verb != "serve" && verb != "migrate" && verb != "version" {
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
	if verb == "migrate" {
		return migrate(ctx, cfg)
	}
	return run(ctx, cfg)
}

func migrate(ctx context.Context, cfg *Config) error {
	dsn := cfg.Store.MigrateDSN
	if dsn == "" {
		dsn = cfg.Store.DSN
	}
	return pg.Migrate(ctx, dsn, migrations.Center, "center", "migrations_center")
}

// run wires the service and serves until ctx ends.
func run(ctx context.Context, cfg *Config) error {
	log, err := serve.Logger(cfg.Log.Level, cfg.Log.Encoding)
	if err != nil {
		return err
	}
	log.Info("center starts", zap.String("version", version.Version), zap.String("app_key", cfg.AppKey))
	if cfg.Migrate {
		if err := migrate(ctx, cfg); err != nil {
			return err
		}
	}

	// Identity: the center signs as itself, and trusts the keys it was given.
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
	guard, err := identity.NewGuard(cfg.AppKey, trust, cfg.Operators, rules())
	if err != nil {
		return err
	}

	// Databases: the center's own, and the host's, which is only read.
	storePool, err := pg.Open(ctx, pg.PoolConfig{DSN: cfg.Store.DSN, MaxConns: cfg.Store.MaxConns, AppName: "lockstep-center"})
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer storePool.Close()
	sourcePool, err := pg.Open(ctx, pg.PoolConfig{DSN: cfg.Source.DSN, MaxConns: cfg.Source.MaxConns, AppName: "lockstep-center-source"})
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	defer sourcePool.Close()
	if err := awaitDatabases(ctx, log, map[string]*pgxpool.Pool{"store": storePool, "source": sourcePool}); err != nil {
		return err
	}
	table, err := dataset.Resolve(ctx, sourcePool, cfg.Dataset, dataset.Center)
	if err != nil {
		return err
	}
	src, err := source.Open(ctx, sourcePool, table, log)
	if err != nil {
		return err
	}
	st, fz := store.New(storePool), frozen.New(storePool)
	systems, err := records.OpenSystems(ctx, fz, src, log)
	if err != nil {
		return err
	}

	// Loops are woken after commits that give them work.
	materialise, send := loop.NewKick(), loop.NewKick()
	wake := func() { materialise.Wake(); send.Wake() }
	worker := workerName()
	policy := cfg.policy()
	now := time.Now

	// Work.
	materialiser := &manifest.Materialiser{
		Store: st, Frozen: fz, Source: src, Signer: signer, Log: log, AppKey: cfg.AppKey, Worker: worker,
		Limits:     manifest.Limits{MaxRows: int64(cfg.MaxRows), MaxPages: int64(cfg.MaxPages), PageSize: int64(cfg.PageSize), PageRows: cfg.PageRows},
		Policy:     policy,
		StallLimit: cfg.StallLimit, Now: now, Ready: send.Wake,
	}
	targets := dispatch.NewTargets(cfg.Targets, func(appKey, address string) (*grpc.ClientConn, error) {
		caller, err := identity.NewCaller(key, appKey)
		if err != nil {
			return nil, err
		}
		return serve.Dial(address, cfg.Transport, caller.DialOptions()...)
	})
	defer closeTargets(log, targets)
	dispatcher := &dispatch.Dispatcher{
		Store: st, Source: cfg.AppKey, Signer: signer, Targets: targets, Policy: policy,
		Timeout: cfg.Dispatch.Timeout, Worker: worker, Log: log, Now: now,
	}
	sweeper := &sweep.Sweeper{
		Store: st, Policy: policy, Retention: cfg.Retention, Abandoned: materialiser.SweepAbandoned, Wake: wake, Log: log,
	}

	// Answers.
	reader := manifest.NewReader(fz, cfg.PageSize)
	consumers := &reconcile.Server{
		Store: st, Reader: reader,
		Records: &records.Answerer{
			Store: st, Source: src, Reader: reader, Systems: systems, Signer: signer, AppKey: cfg.AppKey, Now: now, NewID: uuid.New,
		},
		Reports: &report.Handler{
			Store: st, Source: cfg.AppKey, Policy: policy, Wake: wake,
			Keys:   func(appKey string) []evidence.Key { return trust.Keys(appKey, identity.UseStatement, now()) },
			Limits: report.Limits{MaxItems: cfg.MaxErrorItems, MaxChars: cfg.MaxErrorChars},
		},
	}
	operators := &admin.Server{
		Store: st, Policy: policy, Targets: targets.Addresses(), Dispatching: cfg.Dispatch.Enabled, Wake: wake,
		Grants: &grant.Keeper{Store: st, Wake: wake},
		Creator: &create.Creator{
			Store: st, MaxTasks: cfg.MaxTasksPerRun, Oversize: oversize(cfg, src), Elsewhere: elsewhere(src), Wake: wake, NewID: uuid.New,
		},
	}

	loops := []*loop.Loop{}
	add := func(name string, kick loop.Kick, step func(context.Context) (bool, error)) {
		loops = append(loops, &loop.Loop{Name: name, Step: step, Interval: cfg.ScanInterval, First: cfg.ScanInitialDelay, Kick: kick, Log: log})
	}
	if cfg.Dispatch.Enabled {
		for range materialisers {
			add("materialise", materialise, materialiser.MaterialiseOnce)
		}
		for range dispatchers {
			add("dispatch", send, dispatcher.DispatchOnce)
		}
		add("sweep", nil, loop.All(sweeper.WorkOnce, sweeper.RevokeOnce, sweeper.PurgeOnce))
	} else {
		add("sweep", nil, loop.All(sweeper.RevokeOnce, sweeper.PurgeOnce))
	}
	if cfg.Schedule.Enabled {
		plan, err := schedule.Parse(cfg.Schedule.Cron, cfg.Schedule.Zone)
		if err != nil {
			return err
		}
		scheduler := &schedule.Scheduler{Store: st, Plan: plan, MaxTasks: cfg.MaxTasksPerRun, Wake: wake, NewID: uuid.New, Log: log}
		add("schedule", nil, scheduler.ScheduleOnce)
	}

	return serve.Run(ctx, cfg.Config, serve.Parts{
		Log: log, Guard: guard,
		Register: func(s *grpc.Server) {
			centerv1.RegisterAdminServiceServer(s, operators)
			centerv1.RegisterReconcileServiceServer(s, consumers)
		},
		Gateways: []serve.Gateway{centerv1.RegisterAdminServiceHandler},
		Checks:   map[string]serve.Check{"store": storePool.Ping, "source": sourcePool.Ping},
		Loops:    runners(loops),
	})
}

const (
	// A large set takes a minute; a second one keeps a record's task from waiting for it.
	materialisers = 2
	// A consumer that does not answer holds one of them up for dispatch.timeout.
	dispatchers = 4
)
