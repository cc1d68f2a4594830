package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/serve"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	operatorv1 "lockstep.dev/proto/lockstep/operator/v1"
	"lockstep.dev/services/center/internal/admin"
	"lockstep.dev/services/center/internal/console"
	"lockstep.dev/services/center/internal/create"
	"lockstep.dev/services/center/internal/dispatch"
	"lockstep.dev/services/center/internal/grant"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/reconcile"
	"lockstep.dev/services/center/internal/records"
	"lockstep.dev/services/center/internal/report"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/sweep"
	"lockstep.dev/services/internal/version"
	"lockstep.dev/services/internal/whoami"
)

const usage = `usage: center [-config file] [-reason text] [serve | migrate | healthcheck | confirm-databases | raise-epoch [epoch] | version]

  serve              run the service (default)
  migrate            apply the migrations of the center's own database
  healthcheck        ask the service that runs here with these settings whether it is ready
  confirm-databases  accept that a database was moved: absence proofs are signed again
  raise-epoch        after a restore from a backup: the same, and consumers accept
                     older revisions from then on. Name an epoch where the backup is
                     older than an earlier raise: it has to be above every one before
  version            print the version

Settings come from the file and from variables like LOCKSTEP_CENTER__DISPATCH__ENABLED=true.
`

// envPrefix of the settings' variables.
const envPrefix = "LOCKSTEP_CENTER"

// verbs need the settings.
var verbs = map[string]func(context.Context, *Config) error{
	"": run, "serve": run, "migrate": migrate,
	"healthcheck":       func(ctx context.Context, cfg *Config) error { return serve.Probe(ctx, cfg.Config) },
	"confirm-databases": func(ctx context.Context, cfg *Config) error { return confirm(ctx, cfg, frozen.KeepEpoch) },
	"raise-epoch":       func(ctx context.Context, cfg *Config) error { return confirm(ctx, cfg, cfg.epoch) },
}

func command(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("center", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() { _, _ = io.WriteString(out, usage) }
	path := flags.String("config", "", "the settings file")
	reason := flags.String("reason", "", "why, for the audit log")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.Arg(0) == "version" {
		_, err := fmt.Fprintln(out, version.Version)
		return err
	}
	do, ok := verbs[flags.Arg(0)]
	epoch, err := epochOf(flags.Args())
	if !ok || err != nil {
		return fmt.Errorf("unknown arguments %q\n%s", flags.Args(), usage)
	}
	cfg := defaults()
	if err := config.Load(*path, envPrefix, cfg); err != nil {
		return err
	}
	cfg.reason, cfg.epoch = *reason, epoch
	return do(ctx, cfg)
}

// epochOf reads what follows raise-epoch; nothing may follow another verb.
func epochOf(args []string) (int64, error) {
	if len(args) < 2 {
		return frozen.NextEpoch, nil
	}
	epoch, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil || epoch < 1 || len(args) > 2 || args[0] != "raise-epoch" {
		return 0, errors.New("no epoch")
	}
	return epoch, nil
}

// run wires the service and serves until ctx ends.
func run(ctx context.Context, cfg *Config) error {
	log, err := serve.Logger(cfg.Log.Level, cfg.Log.Encoding)
	if err != nil {
		return err
	}
	if err := cfg.checkSpillDir(); err != nil {
		return err
	}
	log.Info("center starts", zap.String("version", version.Version), zap.String("app_key", cfg.AppKey))
	who, err := loadIdentity(cfg, log)
	if err != nil {
		return err
	}
	db, err := openDatabases(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer db.close()
	traces, endTraces, err := openTracing(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer endTraces()
	targets := dispatch.NewTargets(cfg.Targets, who.dial(cfg.Transport, traces.DialOptions()...))
	defer closeTargets(log, targets)

	s := &system{cfg: cfg, log: log, identities: who, databases: db, targets: targets, kicks: newKicks(), policy: cfg.policy(), traces: traces, now: time.Now}
	materialiser := s.materialiser()
	reader := manifest.NewReader(db.frozen, cfg.PageSize)
	reader.PageBytes = cfg.PageBytes
	operators, consumers, registry := s.operators(ctx, reader), s.consumers(reader), serve.NewRegistry()
	loops, err := s.loops(materialiser, s.dispatcher(), s.sweeper(materialiser))
	if err != nil {
		return err
	}
	deliveries, err := s.deliveryLoops(registry)
	if err != nil {
		return err
	}
	watched, err := s.observe(ctx, registry)
	if err != nil {
		return err
	}
	return serve.Run(ctx, cfg.Config, serve.Parts{
		Log: log, Guard: who.guard, Registry: registry, Refused: watched.refusals.Refused,
		Options: traces.ServerOptions(centerv1.ReconcileService_ServiceDesc.ServiceName),
		Register: func(server *grpc.Server) {
			centerv1.RegisterAdminServiceServer(server, operators)
			centerv1.RegisterReconcileServiceServer(server, consumers)
			auditv1.RegisterAuditServiceServer(server, watched.audit)
			operatorv1.RegisterOperatorServiceServer(server, &whoami.Server{})
		},
		Gateways: []serve.Gateway{centerv1.RegisterAdminServiceHandler, auditv1.RegisterAuditServiceHandler, operatorv1.RegisterOperatorServiceHandler},
		Web: func(ctx context.Context, conn *grpc.ClientConn) (http.Handler, error) {
			return console.New(ctx, cfg.AppKey, conn, rules(), log, s.now)
		},
		Checks: map[string]serve.Check{"store": db.storePool.Ping, "source": db.sourcePool.Ping},
		Loops:  slices.Concat(loops, deliveries, watched.loops),
	})
}

// materialiser makes manifests.
func (s *system) materialiser() *manifest.Materialiser {
	cfg := s.cfg
	return &manifest.Materialiser{
		Store: s.store, Frozen: s.frozen, Source: s.source, Signer: s.signer, Log: s.log, AppKey: cfg.AppKey, Worker: workerName(),
		Limits:  manifest.Limits{MaxRows: int64(cfg.MaxRows), MaxPages: int64(cfg.MaxPages), PageSize: int64(cfg.PageSize), PageRows: cfg.PageRows},
		Policy:  s.policy,
		Readers: cfg.readers(), SpillDir: cfg.Materialise.SpillDir, Rate: s.sourceRate, Guard: s.sourceGuard,
		StallLimit: cfg.StallLimit, Now: s.now, Tracer: s.traces.Tracer(), Ready: s.kicks.dispatch.Wake,
	}
}

// dispatcher sends instructions.
func (s *system) dispatcher() *dispatch.Dispatcher {
	return &dispatch.Dispatcher{
		Store: s.store, Source: s.cfg.AppKey, Signer: s.signer, Targets: s.targets, Policy: s.policy,
		Timeout: s.cfg.Dispatch.Timeout, Worker: workerName(), Tracer: s.traces.Tracer(), Log: s.log, Now: s.now,
	}
}

// sweeper finishes what others left.
func (s *system) sweeper(m *manifest.Materialiser) *sweep.Sweeper {
	return &sweep.Sweeper{
		Store: s.store, Policy: s.policy, Retention: s.cfg.Retention, Abandoned: m.SweepAbandoned, Wake: s.kicks.wake, Log: s.log,
	}
}

// consumers are answered with manifests, records and decisions on reports.
func (s *system) consumers(reader *manifest.Reader) *reconcile.Server {
	return &reconcile.Server{
		Store: s.store, Reader: reader,
		Records: &records.Answerer{
			Store: s.store, Source: s.source, Reader: reader, Systems: s.systems, Signer: s.signer, AppKey: s.cfg.AppKey, Now: s.now, NewID: uuid.New,
		},
		Reports: &report.Handler{
			Store: s.store, Source: s.cfg.AppKey, Policy: s.policy, Wake: s.kicks.wake,
			Keys:   func(appKey string) []evidence.Key { return s.trust.Keys(appKey, identity.UseStatement, s.now()) },
			Limits: report.Limits{MaxItems: s.cfg.MaxErrorItems, MaxChars: s.cfg.MaxErrorChars},
		},
	}
}

// operators make, watch and cancel tasks, and decide on grants.
func (s *system) operators(ctx context.Context, reader *manifest.Reader) *admin.Server {
	return &admin.Server{
		Store: s.store, Policy: s.policy, Targets: s.targets.Addresses(), Dispatching: s.cfg.Dispatch.Enabled, Wake: s.kicks.wake,
		Source: s.source, Reader: reader, Delivering: s.cfg.Delivery.Enabled, WakeDelivery: s.kicks.deliver.Wake, Stopping: ctx.Done(),
		Grants: &grant.Keeper{Store: s.store, Wake: s.kicks.wake},
		Creator: &create.Creator{
			Store: s.store, MaxTasks: s.cfg.MaxTasksPerRun, Oversize: oversize(s.cfg, s.source), Elsewhere: elsewhere(s.source),
			Wake: s.kicks.wake, NewID: uuid.New,
		},
	}
}
