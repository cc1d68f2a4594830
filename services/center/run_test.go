package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"lockstep.dev/pkg/config"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// world is a running center with real keys and sockets, and a consumer that
// only takes instructions.
type world struct {
	t            *testing.T
	rest, token  string
	reconcile    centerv1.ReconcileServiceClient
	signer       *evidence.Signer
	trust        *identity.Trust
	instructions chan *protocol.Instruction
	stop         func() error
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, instructions: make(chan *protocol.Instruction, 10)}
	dir, dsn := t.TempDir(), pgtest.Center(t)
	center, hall := w.key(dir, "form-center"), w.key(dir, "svc-hall")
	var err error
	w.trust, err = identity.NewTrust(center.Public(), hall.Public())
	w.must(err)
	w.must(identity.WriteTrust(filepath.Join(dir, "trust.json"), center.Public(), hall.Public()))
	w.signer, err = hall.Signer()
	w.must(err)
	var hash string
	w.token, hash = identity.GenerateOperatorToken()
	w.fill(dsn)
	target := w.consumer()

	cfg := defaults()
	path := filepath.Join(dir, "center.yaml")
	w.must(os.WriteFile(path, fmt.Appendf(nil, `
app_key: form-center
key_file: %[1]s/form-center.key
trust_file: %[1]s/trust.json
listen: {grpc: "127.0.0.1:0", http: "127.0.0.1:0"}
transport: {insecure: true}
ready_file: %[1]s/ready.json
store: {dsn: %[2]q}
source: {dsn: %[2]q}
targets: {svc-hall: %[3]q}
operators: [{id: eva, role: admin, token_sha256: %[4]s}]
dispatch: {enabled: true}
scan_initial_delay: 0s
log: {level: error}
dataset:
  name: answers
  table: answers.answer
  key_kind: uuid
  columns: {key: answer_id, tenant: tenant_id, collection: form_id, revision: revision, deleted: deleted, schema_version: version, sequence: seq_no, content: values}
`, dir, dsn, target, hash), 0o600))
	w.must(config.Load(path, envPrefix, cfg))
	w.start(cfg, hall, filepath.Join(dir, "ready.json"))
	return w
}

func (w *world) key(dir, appKey string) *identity.KeyFile {
	w.t.Helper()
	key, err := identity.GenerateKeyFile(filepath.Join(dir, appKey+".key"), identity.KeyParams{
		AppKey: appKey, KeyID: appKey + "-1", Use: []identity.Use{identity.UseRequest, identity.UseStatement},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	w.must(err)
	return key
}

func (w *world) fill(dsn string) {
	w.t.Helper()
	pool, err := pg.Open(w.t.Context(), pg.PoolConfig{DSN: dsn})
	w.must(err)
	defer pool.Close()
	_, err = pool.Exec(w.t.Context(), `INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values")
		SELECT 7, gen_random_uuid(), 'form-1', 1, n, 1, '{"a": 1}' FROM generate_series(1, 300) n`)
	w.must(err)
}

// consumer takes instructions from the center it trusts.
func (w *world) consumer() (address string) {
	w.t.Helper()
	guard, err := identity.NewGuard("svc-hall", w.trust, nil, map[string]identity.Rule{consumerv1.DispatchService_Dispatch_FullMethodName: identity.Peer})
	w.must(err)
	listener, err := new(net.ListenConfig).Listen(w.t.Context(), "tcp", "127.0.0.1:0")
	w.must(err)
	server := grpc.NewServer(guard.ServerOptions()...)
	consumerv1.RegisterDispatchServiceServer(server, &accepter{w: w})
	go server.Serve(listener) //nolint:errcheck // it ends when the test stops it
	w.t.Cleanup(server.Stop)
	return listener.Addr().String()
}

type accepter struct {
	consumerv1.UnimplementedDispatchServiceServer
	w *world
}

func (a *accepter) Dispatch(_ context.Context, req *consumerv1.DispatchRequest) (*consumerv1.DispatchResponse, error) {
	in, err := document.OpenInstruction(document.EnvelopeFromProto(req.GetInstruction()), a.w.trust.Keys("form-center", identity.UseStatement, time.Now()))
	if err != nil {
		return nil, err
	}
	a.w.instructions <- in
	return &consumerv1.DispatchResponse{TaskId: in.At.TaskID, WantedAttempt: int32(in.Attempt)}, nil
}

func (w *world) start(cfg *Config, hall *identity.KeyFile, readyFile string) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, cfg) }()
	w.stop = func() error { cancel(); return <-done }
	w.t.Cleanup(cancel)
	var addresses struct{ GRPC, HTTP string }
	for {
		select {
		case err := <-done:
			w.t.Fatalf("the center stopped: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
		text, err := os.ReadFile(readyFile)
		if err == nil && json.Unmarshal(text, &addresses) == nil {
			break
		}
	}
	w.rest = "http://" + addresses.HTTP
	caller, err := identity.NewCaller(hall, "form-center")
	w.must(err)
	conn, err := grpc.NewClient(addresses.GRPC, append(caller.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	w.must(err)
	w.t.Cleanup(func() { _ = conn.Close() })
	w.reconcile = centerv1.NewReconcileServiceClient(conn)
}

// call does what an operator's curl does.
func (w *world) call(method, path, token, body string) (status int, answer map[string]any) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.rest+path, bytes.NewBufferString(body))
	w.must(err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	w.must(err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(resp.Body)
	w.must(err)
	w.must(json.Unmarshal(text, &answer))
	return resp.StatusCode, answer
}

// TestCenter follows one task from an operator's request to its result over
// the real edges: REST, signed calls both ways, loops woken by commits.
func TestCenter(t *testing.T) {
	w := setup(t)
	if status, _ := w.call("GET", "/v1/tasks", "", ""); status != http.StatusUnauthorized {
		t.Fatalf("without a token: %d", status)
	}
	if status, answer := w.call("PUT", "/v1/consumers/svc-hall/tenants/7", w.token, `{}`); status != http.StatusOK {
		t.Fatalf("add the tenant: %d %v", status, answer)
	}
	if status, answer := w.call("PUT", "/v1/grants/svc-hall/7/form-1", w.token, `{"enabled": true, "read_allowed": true, "subscribe_allowed": true}`); status != http.StatusOK {
		t.Fatalf("grant: %d %v", status, answer)
	}
	status, answer := w.call("POST", "/v1/tasks", w.token, `{"consumer": "svc-hall", "tenant_id": "7", "collection_id": "form-1", "scope": "SCOPE_COLLECTION"}`)
	if status != http.StatusOK {
		t.Fatalf("create: %d %v", status, answer)
	}
	made, _ := answer["tasks"].([]any)[0].(map[string]any)["task"].(map[string]any)
	watch := w.watch(fmt.Sprint(made["taskId"]))
	if first := watch.next(); first["task"] == nil {
		t.Fatalf("the first line is %v", first)
	}
	in := <-w.instructions
	if in.RowCount != 300 || in.Attempt != 1 {
		t.Fatalf("the instruction is %+v", in)
	}

	header, err := w.reconcile.GetManifest(t.Context(), &centerv1.GetManifestRequest{TaskId: in.At.TaskID})
	w.must(err)
	head, err := document.OpenHeader(document.EnvelopeFromProto(header.GetHeader()), w.trust.Keys("form-center", identity.UseStatement, time.Now()))
	w.must(err)
	if head.Root != in.ManifestRoot || head.PageCount != 3 {
		t.Errorf("the header is %+v", head)
	}

	env, err := document.SealReport(w.signer, &protocol.Report{
		At: in.At, Attempt: 1, State: protocol.Completed, ManifestID: in.ManifestID, ManifestRoot: in.ManifestRoot,
		CenterScanned: 300, LocalScanned: 300, CenterComplete: true, LocalComplete: true, Verified: protocol.Hashes,
	})
	w.must(err)
	ack, err := w.reconcile.ReportResult(t.Context(), &centerv1.ReportResultRequest{Report: document.EnvelopeToProto(env)})
	w.must(err)
	if ack.GetDecision() != centerv1.Decision_DECISION_CURRENT_ACCEPTED {
		t.Fatalf("the answer is %v", ack)
	}
	status, answer = w.call("GET", "/v1/tasks/"+in.At.TaskID, w.token, "")
	shown, _ := answer["task"].(map[string]any)
	if status != http.StatusOK || shown["state"] != "TASK_STATE_COMPLETED" {
		t.Errorf("%d %v", status, answer)
	}
	var last map[string]any
	for line := watch.next(); line != nil; line = watch.next() {
		last, _ = line["task"].(map[string]any)
	}
	if last["state"] != "TASK_STATE_COMPLETED" {
		t.Errorf("the last line is %v", last)
	}
	if err := w.stop(); err != nil {
		t.Errorf("the center stopped with %v", err)
	}
}

// lines is an answer that comes line by line.
type lines struct {
	w    *world
	text *bufio.Scanner
}

func (w *world) watch(id string) *lines {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.rest+"/v1/tasks/"+id+":watch", nil)
	w.must(err)
	req.Header.Set("Authorization", "Bearer "+w.token)
	resp, err := http.DefaultClient.Do(req)
	w.must(err)
	w.t.Cleanup(func() { _ = resp.Body.Close() })
	return &lines{w: w, text: bufio.NewScanner(resp.Body)}
}

// next is the result or the error of the next line, nil at the end.
func (l *lines) next() map[string]any {
	l.w.t.Helper()
	if !l.text.Scan() {
		l.w.must(l.text.Err())
		return nil
	}
	var line map[string]map[string]any
	l.w.must(json.Unmarshal(l.text.Bytes(), &line))
	if line["error"] != nil {
		return line["error"]
	}
	return line["result"]
}

// TestAStopEndsAWatch: a reader learns that it was not the task's end.
func TestAStopEndsAWatch(t *testing.T) {
	w := setup(t)
	_, _ = w.call("PUT", "/v1/consumers/svc-hall/tenants/7", w.token, `{}`)
	_, _ = w.call("PUT", "/v1/grants/svc-hall/7/form-1", w.token, `{"enabled": true, "read_allowed": true, "subscribe_allowed": true}`)
	_, answer := w.call("POST", "/v1/tasks", w.token, `{"consumer": "svc-hall", "tenant_id": "7", "collection_id": "form-1", "scope": "SCOPE_COLLECTION"}`)
	made, _ := answer["tasks"].([]any)[0].(map[string]any)["task"].(map[string]any)
	watch := w.watch(fmt.Sprint(made["taskId"]))
	if first := watch.next(); first["task"] == nil {
		t.Fatalf("the first line is %v", first)
	}
	<-w.instructions
	if err := w.stop(); err != nil {
		t.Errorf("the center stopped with %v", err)
	}
	var last map[string]any
	for line := watch.next(); line != nil; line = watch.next() {
		last = line
	}
	if text := fmt.Sprint(last); !strings.Contains(text, "UNAVAILABLE") || last["code"] == nil {
		t.Errorf("the last line is %v", text)
	}
}

func TestCommand(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		out  string
		err  string
	}{
		"version":          {[]string{"version"}, "dev\n", ""},
		"help":             {[]string{"-h"}, usage, ""},
		"unknown verb":     {[]string{"conquer"}, "", `unknown arguments ["conquer"]`},
		"too many":         {[]string{"migrate", "now"}, "", "unknown arguments"},
		"no epoch":         {[]string{"raise-epoch", "0"}, "", "unknown arguments"},
		"two epochs":       {[]string{"raise-epoch", "3", "4"}, "", "unknown arguments"},
		"an epoch":         {[]string{"raise-epoch", "3"}, "", "app_key is missing"},
		"no settings":      {[]string{"migrate"}, "", "app_key is missing"},
		"no settings file": {[]string{"-config", "/nowhere", "serve"}, "", "/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := command(t.Context(), c.args, &out)
			if out.String() != c.out {
				t.Errorf("it said %q", out.String())
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}
}
