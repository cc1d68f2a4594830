package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/pgtest"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/internal/process"
)

const (
	centerApp   = "records"
	consumerApp = "hall"
	tenant      = int64(7)
	form        = "form-1"
)

// programs are the services with their fail points in, built once a run.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lockstep-e2e-")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-tags", "failpoints", "-o", dir+"/", "lockstep.dev/services/center", "lockstep.dev/services/consumer") //nolint:noctx // as long as the tests
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the services: %w\n%s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := programs(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

type settings = map[string]any

// stack is two databases and the processes over them.
type stack struct {
	t         *testing.T
	dir       string
	bin       string
	center    *pgxpool.Pool
	consumer  *pgxpool.Pool
	centerDSN string
	consumDSN string
	token     string
	tokenHash string
	serial    int
	// The addresses stay over restarts, because the other side has them in its settings.
	centerAddr, consumerAddr string
}

// setup makes databases, keys and a free address for each service; it starts nothing.
func setup(t *testing.T) *stack {
	t.Helper()
	return setupOn(t, pgtest.Center(t), pgtest.Consumer(t))
}

func setupOn(t *testing.T, centerDSN, consumerDSN string) *stack {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{t: t, dir: t.TempDir(), bin: bin, centerDSN: centerDSN, consumDSN: consumerDSN}
	s.center, s.consumer = s.pool(s.centerDSN), s.pool(s.consumDSN)
	s.token, s.tokenHash = identity.GenerateOperatorToken()
	var public []identity.TrustKey
	for _, app := range []string{centerApp, consumerApp} {
		key, err := identity.GenerateKeyFile(s.file(app+".key.json"), identity.KeyParams{
			AppKey: app, KeyID: app + "-1", Use: []identity.Use{identity.UseRequest, identity.UseStatement},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		})
		s.must(err)
		public = append(public, key.Public())
	}
	s.must(identity.WriteTrust(s.file("trust.json"), public...))
	s.centerAddr, s.consumerAddr = "unix:"+s.file("c.sock"), "unix:"+s.file("h.sock")
	return s
}

func (s *stack) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stack) file(name string) string { return filepath.Join(s.dir, name) }

func (s *stack) pool(dsn string) *pgxpool.Pool {
	s.t.Helper()
	pool, err := pgxpool.New(s.t.Context(), dsn)
	s.must(err)
	s.t.Cleanup(pool.Close)
	return pool
}

// node is a running service.
type node struct {
	*process.Process
	at process.Addresses
}

// startCenter starts a center; change overrides settings, failpoint may be "".
func (s *stack) startCenter(failpoint string, change settings) *node {
	s.t.Helper()
	return s.startCenterAt(s.centerAddr, failpoint, change)
}

// startCenterAt starts one more center of the same databases.
func (s *stack) startCenterAt(address, failpoint string, change settings) *node {
	s.t.Helper()
	return s.start("center", address, failpoint, s.centerSettings(), change)
}

func (s *stack) centerSettings() settings {
	return settings{
		"app_key": centerApp, "key_file": s.file(centerApp + ".key.json"), "trust_file": s.file("trust.json"),
		"store": settings{"dsn": s.centerDSN, "max_conns": 8}, "source": settings{"dsn": s.centerDSN, "max_conns": 4},
		"dataset":  answersCenter,
		"targets":  settings{consumerApp: s.consumerAddr},
		"dispatch": settings{"enabled": true, "timeout": "1s"}, "delivery": settings{"timeout": "1s"},
		"max_rows": 1_000_000, "max_pages": 5000, "claim_lease": "3s", "stall_limit": "2s", "lease": "5s", "max_dispatch_attempts": 50,
	}
}

// startConsumer starts a consumer.
func (s *stack) startConsumer(failpoint string, change settings) *node {
	s.t.Helper()
	return s.startConsumerAt(s.consumerAddr, failpoint, change)
}

// startConsumerAt starts one more consumer of the same database.
func (s *stack) startConsumerAt(address, failpoint string, change settings) *node {
	s.t.Helper()
	return s.start("consumer", address, failpoint, s.consumerSettings(), change)
}

func (s *stack) consumerSettings() settings {
	return settings{
		"app_key": consumerApp, "key_file": s.file(consumerApp + ".key.json"), "trust_file": s.file("trust.json"),
		"source_app_key": centerApp, "center": settings{"address": s.centerAddr},
		"store": settings{"dsn": s.consumDSN, "max_conns": 8}, "dataset": answersConsumer,
		"execution": settings{"enabled": true}, "lease": "3s", "stall_limit": "2s",
	}
}

func (s *stack) start(name, address, failpoint string, cfg, change settings) *node {
	s.t.Helper()
	p, ready := s.launch(name, address, failpoint, cfg, change)
	at, err := p.AwaitReady(s.t.Context(), ready)
	if err != nil && failpoint == "" {
		s.t.Fatal(err)
	}
	return &node{Process: p, at: at}
}

// launch starts a service and does not wait until it is ready, which the file
// it returns would say.
func (s *stack) launch(name, address, failpoint string, cfg, change settings) (p *process.Process, ready string) {
	s.t.Helper()
	unique, config, ready := s.configure(name, address, cfg, change)
	p, err := process.Launch(process.Spec{
		Name: unique, Program: filepath.Join(s.bin, name), Args: []string{"--config", config},
		Env: []string{"LOCKSTEP_FAILPOINT=" + failpoint}, LogFile: s.file(name + ".log"),
	})
	s.must(err)
	s.t.Cleanup(func() { _ = p.Kill() })
	return p, ready
}

// configure writes the settings of one more process.
func (s *stack) configure(name, address string, cfg, change settings) (unique, config, ready string) {
	s.t.Helper()
	s.serial++
	unique = fmt.Sprintf("%s-%d", name, s.serial)
	ready = s.file(unique + ".ready.json")
	maps.Copy(cfg, settings{
		"listen":    settings{"grpc": address, "http": "127.0.0.1:0"},
		"operators": []settings{{"id": "tester", "role": "admin", "token_sha256": s.tokenHash}},
		"transport": settings{"insecure": true}, "ready_file": ready, "scan_interval": "100ms", "scan_initial_delay": "0s",
		"backoff": settings{"base": "100ms", "cap": "500ms"}, "log": settings{"level": "debug", "encoding": "json"},
	})
	maps.Copy(cfg, change)
	text, err := yaml.Marshal(cfg)
	s.must(err)
	config = s.file(unique + ".yaml")
	s.must(os.WriteFile(config, text, 0o600))
	return unique, config, ready
}

// operator gives a context with the operator's token.
func (s *stack) operator() context.Context {
	return metadata.AppendToOutgoingContext(s.t.Context(), identity.OperatorTokenKey, s.token)
}

func (s *stack) dial(address string) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.must(err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *stack) centerAdmin() centerv1.AdminServiceClient {
	return centerv1.NewAdminServiceClient(s.dial(s.centerAddr))
}

func (s *stack) consumerAdmin() consumerv1.AdminServiceClient {
	return consumerv1.NewAdminServiceClient(s.dial(s.consumerAddr))
}

var answersCenter = settings{
	"name": "answers", "table": "answers.answer", "key_kind": "uuid",
	"columns": settings{
		"key": "answer_id", "tenant": "tenant_id", "collection": "form_id", "revision": "revision", "deleted": "deleted",
		"schema_version": "version", "sequence": "seq_no", "content": "values",
	},
}

var answersConsumer = settings{
	"name": "answers", "table": "hall.answer_projection", "key_kind": "uuid",
	"columns": settings{
		"key": "answer_id", "tenant": "tenant_id", "collection": "form_id", "revision": "revision", "deleted": "deleted",
		"schema_version": "form_version", "sequence": "seq_no", "content": "values",
		"content_hash": "content_hash", "projection_version": "projection_version", "create_time": "created_at",
		"retired": "retired_at", "retire_hold": "retire_hold",
		"last_event_id": "last_event_id", "conflict_detail": "conflict_detail", "proof_id": "proof_id",
	},
}
