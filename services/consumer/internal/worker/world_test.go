package worker_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/consumer/internal/center"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/report"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/consumer/internal/worker"
)

// world is a consumer with a real database, and a center beside it.
type world struct {
	t        *testing.T
	dsn      string
	pool     *pgxpool.Pool
	signer   *evidence.Signer
	changes  []change
	center   *centertest.Center
	store    *store.Store
	repairer *repair.Repairer
	reporter *report.Reporter
	worker   *worker.Worker
	// skew is added to the worker's clock.
	skew atomic.Int64
}

var mapping = dataset.Config{
	Name: "answers", Table: "hall.answer_projection", KeyKind: protocol.KeyKindUUID,
	Columns: dataset.Columns{
		Key: "answer_id", Tenant: "tenant_id", Collection: "form_id", Revision: "revision", Deleted: "deleted",
		SchemaVersion: "form_version", Sequence: "seq_no", Content: "values", ContentHash: "content_hash",
		ProjectionVersion: "projection_version", CreateTime: "created_at", Retired: "retired_at",
		RetireHold: "retire_hold", LastEventID: "last_event_id", ConflictDetail: "conflict_detail", ProofID: "proof_id",
	},
}

// change adapts a world's settings before it starts.
type change func(*store.Settings, *worker.Settings, *repair.Repairer)

func setup(t *testing.T, changes ...change) *world {
	t.Helper()
	dsn := pgtest.Consumer(t)
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, dsn: dsn, center: centertest.New(t, evidence.Key{ID: "hall-1", Public: public}),
		signer: evidence.NewSigner("hall-1", private), changes: changes,
	}
	w.build("w1", nil)
	return w
}

// beside gives another consumer process on the same database; kill may end its connections.
func (w *world) beside(name string, kill *killer) *world {
	w.t.Helper()
	other := &world{t: w.t, dsn: w.dsn, center: w.center, signer: w.signer, changes: w.changes}
	other.build(name, kill)
	return other
}

func (w *world) open(conns int32, kill *killer) *pgxpool.Pool {
	w.t.Helper()
	config, err := pgxpool.ParseConfig(w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	config.MaxConns = conns
	if kill != nil {
		config.ConnConfig.Tracer = kill
		config.BeforeConnect = kill.connecting
		config.ConnConfig.RuntimeParams["application_name"] = "killer"
	}
	pool, err := pgxpool.NewWithConfig(w.t.Context(), config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(pool.Close)
	return pool
}

// build wires a consumer as the service does.
func (w *world) build(name string, kill *killer) {
	w.t.Helper()
	w.pool = w.open(10, kill)
	table, err := dataset.Resolve(w.t.Context(), w.pool, mapping, dataset.Consumer)
	if err != nil {
		w.t.Fatal(err)
	}
	rows := projection.New(w.pool, w.pool, table)
	client := center.New(w.center.Conn)
	keys := func() []evidence.Key { return w.center.Keys }
	log := zaptest.NewLogger(w.t, zaptest.Level(zap.ErrorLevel))
	inStore := store.Settings{Lease: time.Minute, MaxRetries: 3, BackoffBase: time.Minute, BackoffCap: time.Hour}
	inWorker := worker.Settings{
		Enabled: true, Lease: time.Minute, StallLimit: 30 * time.Second, ScanInterval: time.Second, MaxPerScan: 1,
		ReportRounds: 10, MaxItems: 50, MaxTries: 3,
	}
	w.repairer = &repair.Repairer{
		Self: centertest.Consumer, Center: client, Projection: rows, SourceKeys: keys, Now: w.now, Log: log,
		NewNonce:   func() ([]byte, error) { b := make([]byte, 32); _, err := rand.Read(b); return b, err },
		MaxRetries: 3, MaxAge: time.Minute, MaxExtras: 500, MaxRetirePercent: 10,
	}
	for _, c := range w.changes {
		c(&inStore, &inWorker, w.repairer)
	}
	w.store = store.New(w.pool, w.open(2, nil), inStore)
	w.repairer.Store = w.store
	w.reporter = &report.Reporter{
		Self: centertest.Consumer, Signer: w.signer, Center: client, Now: time.Now, MaxItems: 50, MaxChars: 8000,
	}
	w.worker = worker.New(worker.Worker{
		Name: name, Self: centertest.Consumer, Store: w.store, Center: client, Projection: rows, SourceKeys: keys,
		Repairer: w.repairer, Reporter: w.reporter, Set: inWorker, Now: w.now, Log: log,
	})
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.skew.Load())) }

// k is the nth key.
func k(n int) string {
	var raw [16]byte
	binary.BigEndian.PutUint32(raw[:], uint32(n))
	return string(raw[:])
}

func rec(revision int64, content string) centertest.Record {
	return centertest.Record{Revision: revision, Content: content}
}

// dead is a tombstone.
func dead() centertest.Record {
	return centertest.Record{Revision: 3, Content: `{"a":0}`, Deleted: true}
}

// exec runs SQL as the host application.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// local writes a row of the projection, older than any task.
func (w *world) local(raw string, r centertest.Record) {
	w.t.Helper()
	w.localIn(centertest.Tenant, centertest.Collection, raw, r)
}

func (w *world) localIn(tenant int64, collection, raw string, r centertest.Record) {
	w.t.Helper()
	hash := r.Hash()
	var content *string
	if r.Content != "" {
		content = &r.Content
	}
	w.exec(`INSERT INTO hall.answer_projection (tenant_id, form_id, answer_id, revision, content_hash, deleted, "values", created_at, biz_ext, apply_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, '2026-01-01Z', '{"kept": true}', 'kept')`,
		tenant, collection, [16]byte([]byte(raw)), r.Revision, hash[:], r.Deleted, content)
}

// both writes the same record on both sides.
func (w *world) both(raw string, r centertest.Record) {
	w.t.Helper()
	w.center.Put(raw, r)
	w.local(raw, r)
}

// accept stores the instruction of an attempt.
func (w *world) accept(task *centertest.Task, attempt int) store.Accepted {
	w.t.Helper()
	in := w.center.Instruction(task, attempt)
	env, err := document.MarshalEnvelope(w.center.Seal(w.t, in))
	if err != nil {
		w.t.Fatal(err)
	}
	a, err := w.store.Accept(w.t.Context(), in, env)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// work works until nothing is due.
func (w *world) work() {
	w.t.Helper()
	for range 20 {
		worked, err := w.worker.WorkOnce(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if !worked {
			return
		}
	}
	w.t.Fatal("it never ends")
}

// due makes every waiting row due now.
func (w *world) due() {
	w.t.Helper()
	w.exec(`UPDATE lockstep.work SET due_at = now() WHERE state IN ('QUEUED', 'REPORTING')`)
}

// run makes a task of the records as they are, accepts and works it.
func (w *world) run(options ...centertest.Option) *centertest.Task {
	w.t.Helper()
	task := w.center.Task(options...)
	w.accept(task, 1)
	w.work()
	return task
}

func (w *world) row(task *centertest.Task) *store.Work {
	w.t.Helper()
	id, err := protocol.ParseID(task.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	row, err := w.store.Work(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

// wantState checks where a row is, and why.
func (w *world) wantState(task *centertest.Task, state work.State, code string) {
	w.t.Helper()
	row := w.row(task)
	if row.State != state || row.Code != code {
		w.t.Errorf("the row is %s %q, want %s %q", row.State, row.Code, state, code)
	}
}

// ledger gives the outcomes as "n CLASS OUTCOME CODE" lines, in key order.
func (w *world) ledger(task *centertest.Task) []string {
	w.t.Helper()
	rows, err := w.store.ListOutcomes(w.t.Context(), w.row(task), store.OutcomeQuery{Limit: 10000})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, o := range rows {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%d %s %s %s", binary.BigEndian.Uint32([]byte(o.Key)), o.Class, o.Outcome, o.Code)))
	}
	return out
}

func (w *world) wantLedger(task *centertest.Task, want ...string) {
	w.t.Helper()
	if got := w.ledger(task); !slices.Equal(got, want) {
		w.t.Errorf("the ledger holds\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// image gives the live rows as "n revision deleted".
func (w *world) image() map[string]evidence.Row {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `SELECT answer_id, revision, content_hash, deleted FROM hall.answer_projection
		WHERE tenant_id = $1 AND form_id = $2 AND retired_at IS NULL`, centertest.Tenant, centertest.Collection)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]evidence.Row{}
	var id uuid.UUID
	var row evidence.Row
	var hash []byte
	if _, err := pgx.ForEachRow(rows, []any{&id, &row.Revision, &hash, &row.Deleted}, func() error {
		row.Key = string(id[:])
		copy(row.Hash[:], hash)
		out[row.Key] = row
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return out
}

// wantImage checks the live rows.
func (w *world) wantImage(want map[string]centertest.Record) {
	w.t.Helper()
	rows := map[string]evidence.Row{}
	for raw, r := range want {
		rows[raw] = r.Row(raw)
	}
	if got := w.image(); !maps.Equal(got, rows) {
		w.t.Errorf("the image is\n  %v\nwant\n  %v", got, rows)
	}
}

// dump gives the bytes of the tables that a mere look must not change.
func (w *world) dump(tables ...string) string {
	w.t.Helper()
	var out strings.Builder
	for _, table := range tables {
		var text *string
		if err := w.pool.QueryRow(w.t.Context(), `SELECT string_agg(t::text, E'\n' ORDER BY t::text) FROM `+table+` AS t`).Scan(&text); err != nil {
			w.t.Fatal(err)
		}
		if text != nil {
			out.WriteString(*text)
		}
	}
	return out.String()
}

// onCall runs f once, at the nth call of a method.
func onCall(method string, n int, f func()) func(context.Context, string) error {
	var seen atomic.Int64
	return func(_ context.Context, called string) error {
		if called == method && seen.Add(1) == int64(n) {
			f()
		}
		return nil
	}
}

// failing fails every call of a method.
func failing(method string, err error) func(context.Context, string) error {
	return func(_ context.Context, called string) error {
		if called == method {
			return err
		}
		return nil
	}
}

// closeOnce closes a channel at the first result.
func closeOnce(done chan struct{}) func(*protocol.Report, *centerv1.ReportResultResponse) error {
	var once sync.Once
	return func(*protocol.Report, *centerv1.ReportResultResponse) error {
		once.Do(func() { close(done) })
		return nil
	}
}
