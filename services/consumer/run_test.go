package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/pkg/serve"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/centertest"
)

// service is the whole consumer in this process, beside a center.
type service struct {
	t         *testing.T
	dir, dsn  string
	center    *centertest.Center
	centerKey *identity.KeyFile
	token     string
	stop      context.CancelFunc
	done      chan error
	grpc      string
	http      string
	extra     string // further settings
}

func setup(t *testing.T) *service {
	t.Helper()
	s := &service{t: t, dir: t.TempDir(), dsn: pgtest.Consumer(t), done: make(chan error, 1)}
	key := func(app string) *identity.KeyFile {
		k, err := identity.GenerateKeyFile(filepath.Join(s.dir, app+".key.json"), identity.KeyParams{
			AppKey: app, KeyID: app + "-1", Use: []identity.Use{identity.UseRequest, identity.UseStatement},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	s.centerKey = key(centertest.App)
	hall := key(centertest.Consumer)
	if err := identity.WriteTrust(filepath.Join(s.dir, "trust.json"), s.centerKey.Public(), hall.Public()); err != nil {
		t.Fatal(err)
	}
	signer, err := s.centerKey.Signer()
	if err != nil {
		t.Fatal(err)
	}
	public := func(k *identity.KeyFile) evidence.Key { return evidence.Key{ID: k.KeyID, Public: k.Public().PublicKey} }
	s.center = centertest.Start(t, signer, public(s.centerKey), public(hall))
	return s
}

// start runs the service until the test ends or stops it.
func (s *service) start() {
	s.t.Helper()
	token, hash := identity.GenerateOperatorToken()
	s.token = token
	ready := filepath.Join(s.dir, "ready.json")
	text := strings.NewReplacer(
		"hall.key.json", filepath.Join(s.dir, "hall.key.json"), "trust.json", filepath.Join(s.dir, "trust.json"),
		"127.0.0.1:7001", s.center.Address, "postgres://localhost/hall", s.dsn,
		"127.0.0.1:7002", "127.0.0.1:0", "127.0.0.1:7003", "127.0.0.1:0",
	).Replace(good) + `
execution: {enabled: true}
scan_interval: 200ms
scan_initial_delay: 0s
log: {level: warn}
ready_file: ` + ready + `
operators: [{id: ann, role: admin, token_sha256: ` + hash + `}]
` + s.extra
	path := filepath.Join(s.dir, "consumer.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	cfg := defaults()
	if err := config.Load(path, envPrefix, cfg); err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(s.t.Context())
	s.stop = stop
	go func() { s.done <- run(ctx, cfg) }()
	addresses := s.await(ready)
	s.grpc, s.http = addresses.GRPC, addresses.HTTP
}

type addresses struct {
	GRPC string `json:"grpc"`
	HTTP string `json:"http"`
}

// await waits for the file by which the service says that it answers.
func (s *service) await(ready string) (a addresses) {
	s.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-s.done:
			s.t.Fatalf("the service ended: %v", err)
		case <-tick.C:
		}
		text, err := os.ReadFile(ready)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			s.t.Fatal(err)
		}
		if err := json.Unmarshal(text, &a); err != nil {
			s.t.Fatal(err)
		}
		return a
	}
}

// dispatch sends an instruction as the owner of a key.
func (s *service) dispatch(key *identity.KeyFile, task *centertest.Task) error {
	s.t.Helper()
	caller, err := identity.NewCaller(key, centertest.Consumer)
	if err != nil {
		s.t.Fatal(err)
	}
	conn, err := serve.Dial(s.grpc, serve.Transport{Insecure: true}, caller.DialOptions()...)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the test is about the call
	_, err = consumerv1.NewDispatchServiceClient(conn).Dispatch(s.t.Context(), &consumerv1.DispatchRequest{
		Instruction: document.EnvelopeToProto(s.center.Seal(s.t, s.center.Instruction(task, 1))),
	})
	return err
}

func (s *service) get(path, token string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.http+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is only read
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, body.String()
}

func TestService(t *testing.T) {
	s := setup(t)
	raw := "0123456789abcdef"
	s.center.Put(raw, centertest.Record{Revision: 3, Content: `{"a":1}`})
	ended := make(chan *protocol.Report, 1)
	s.center.Lie(centertest.Lies{Ack: func(r *protocol.Report, _ *centerv1.ReportResultResponse) error {
		if r.State != protocol.Running {
			select {
			case ended <- r:
			default:
			}
		}
		return nil
	}})
	s.start()
	task := s.center.Task()

	other, err := identity.GenerateKeyFile(filepath.Join(s.dir, "other.json"), identity.KeyParams{
		AppKey: centertest.App, KeyID: "center-9", Use: []identity.Use{identity.UseRequest},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.dispatch(other, task); fault.ReasonOf(err) != fault.PermissionDenied && fault.ReasonOf(err) != fault.SignatureInvalid {
		t.Errorf("a stranger's dispatch: %v", err)
	}
	if err := s.dispatch(s.centerKey, task); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.State != protocol.Completed || r.Counts[0].Repaired != 1 || r.WireBytes == 0 {
		t.Errorf("report %+v", r)
	}
	conn, err := pgx.Connect(t.Context(), s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // the test is over
	var revision int64
	if err := conn.QueryRow(t.Context(), `SELECT revision FROM hall.answer_projection WHERE answer_id = $1`, [16]byte([]byte(raw))).Scan(&revision); err != nil || revision != 3 {
		t.Errorf("revision %d, %v", revision, err)
	}
	if code, body := s.get("/v1/work/"+task.ID, s.token); code != http.StatusOK || !strings.Contains(body, `"task_id"`) && !strings.Contains(body, `"taskId"`) {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := s.get("/v1/work", ""); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d", code)
	}
	if code, body := s.get("/readyz", ""); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
	s.stop()
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}

func TestCommand(t *testing.T) {
	var out bytes.Buffer
	if err := command(t.Context(), []string{"version"}, &out); err != nil || out.String() != "dev\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := command(t.Context(), []string{"dance"}, &out); err == nil || !strings.Contains(err.Error(), "dance") {
		t.Error(err)
	}
	dsn := pgtest.Empty(t)
	path := filepath.Join(t.TempDir(), "consumer.yaml")
	if err := os.WriteFile(path, []byte(strings.Replace(good, "postgres://localhost/hall", dsn, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to do
		if err := command(t.Context(), []string{"-config", path, "migrate"}, &out); err != nil {
			t.Fatal(err)
		}
	}
}
