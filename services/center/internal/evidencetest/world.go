// Package evidencetest is the world in which the center's evidence packages
// are tested: a fresh database with the example's answers, one consumer with a
// grant, and everything that freezes and answers, wired as in production.
package evidencetest

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap/zaptest"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/records"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/task"
)

// Who and what the tests are about.
const (
	Center     = "form-center"
	Consumer   = "svc-hall"
	Tenant     = int64(7)
	Collection = "form-1"
	PageRows   = 4 // small, so that a few rows make several pages
)

// World holds what a test works with.
type World struct {
	T            testing.TB
	Store        *store.Store
	Frozen       *frozen.Store
	Source       *source.Source
	Materialiser *manifest.Materialiser
	Reader       *manifest.Reader
	Answerer     *records.Answerer
	Keys         []evidence.Key // verify what the center signs
}

// New makes a world with an effective grant and no answers.
func New(t testing.TB) *World {
	t.Helper()
	ctx, log := t.Context(), zaptest.NewLogger(t)
	// A statement that fills a table may have to share the machine.
	pool, err := pg.Open(ctx, pg.PoolConfig{DSN: pgtest.Center(t), AppName: "center", StatementTimeout: 5 * time.Minute})
	w := &World{T: t}
	w.no(err)
	t.Cleanup(pool.Close)
	table, err := dataset.Resolve(ctx, pool, Mapping(), dataset.Center)
	w.no(err)
	w.Store, w.Frozen = store.New(pool), frozen.New(pool)
	w.Source, err = source.Open(ctx, pool, table, log)
	w.no(err)
	private := ed25519.NewKeyFromSeed([]byte("a seed of exactly 32 bytes......"))
	public, ok := private.Public().(ed25519.PublicKey)
	if !ok {
		t.Fatal("an Ed25519 key has an Ed25519 public key")
	}
	signer := evidence.NewSigner("center-1", private)
	w.Keys = []evidence.Key{{ID: "center-1", Public: public}}
	w.Materialiser = &manifest.Materialiser{
		Store: w.Store, Frozen: w.Frozen, Source: w.Source, Signer: signer, Log: log,
		AppKey: Center, Worker: "worker-1", StallLimit: time.Minute, Now: time.Now, Readers: 2,
		Limits: manifest.Limits{MaxRows: 20_000, MaxPages: 200, PageSize: 200, PageRows: PageRows},
		Policy: task.Policy{MaxAttempts: 4, ClaimLease: time.Minute, BackoffBase: time.Minute, BackoffCap: time.Hour},
	}
	w.Reader = manifest.NewReader(w.Frozen, 200)
	systems, err := records.OpenSystems(ctx, w.Frozen, w.Source, log)
	w.no(err)
	w.Answerer = &records.Answerer{
		Store: w.Store, Source: w.Source, Reader: w.Reader, Systems: systems, Signer: signer,
		AppKey: Center, Now: time.Now, NewID: uuid.New,
	}
	w.Exec(`INSERT INTO lockstep.consumer_tenant (consumer, tenant_id) VALUES ($1, $2)`, Consumer, Tenant)
	w.Exec(`INSERT INTO lockstep.consumer_grant (consumer, tenant_id, collection_id, enabled, read_allowed, subscribe_allowed, grant_epoch)
		VALUES ($1, $2, $3, true, true, true, 1)`, Consumer, Tenant, Collection)
	return w
}

// Mapping of the example's answers.
func Mapping() dataset.Config {
	return dataset.Config{
		Name: "answers", Table: "answers.answer", KeyKind: protocol.KeyKindUUID,
		Columns: dataset.Columns{
			Key: "answer_id", Tenant: "tenant_id", Collection: "form_id", Revision: "revision", Deleted: "deleted",
			SchemaVersion: "version", Sequence: "seq_no", Content: "values",
		},
	}
}

func (w *World) no(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// Exec runs one statement.
func (w *World) Exec(sql string, args ...any) int64 {
	w.T.Helper()
	tag, err := w.Store.Pool().Exec(w.T.Context(), sql, args...)
	if err != nil {
		w.T.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

// Int reads one number.
func (w *World) Int(sql string, args ...any) int {
	w.T.Helper()
	var n int
	if err := w.Store.Pool().QueryRow(w.T.Context(), sql, args...).Scan(&n); err != nil {
		w.T.Fatalf("%s: %v", sql, err)
	}
	return n
}

// Key is the n-th key in key order, as in the API; its last digits count up in
// steps, so that there is room between two.
func Key(n int) string {
	return protocol.FormatID(uuid.UUID{12: byte(n >> 16), 13: byte(n >> 8), 14: byte(n)}) //nolint:gosec // tests count to a few thousand
}

// Between is a key after Key(n) and before Key(n+1).
func Between(n int) string { return Key(n)[:30] + "80" }

// Answer writes an answer of the collection; content "" is SQL NULL.
func (w *World) Answer(key string, revision int64, deleted bool, content string) {
	w.T.Helper()
	w.AnswerOf(Tenant, Collection, key, revision, deleted, content)
}

// AnswerOf is Answer for any tenant and collection.
func (w *World) AnswerOf(tenant int64, collection, key string, revision int64, deleted bool, content string) {
	w.T.Helper()
	w.Exec(`INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, deleted, "values")
		VALUES ($1, $2::text::uuid, $3, 3, 40 + $4, $4, $5, nullif($6, '')::jsonb)`, tenant, key, collection, revision, deleted, content)
}

// Answers writes n plain answers, Key(1) to Key(n), all of revision 1.
func (w *World) Answers(n int) {
	w.T.Helper()
	for i := 1; i <= n; i++ {
		w.Answer(Key(i), 1, false, `{"a": 1}`)
	}
}

// Task queues a task for the collection.
func (w *World) Task() uuid.UUID { return w.queue(protocol.Collection, "") }

// RecordTask queues a task for one record.
func (w *World) RecordTask(key string) uuid.UUID { return w.queue(protocol.Record, key) }

func (w *World) queue(scope protocol.Scope, key string) uuid.UUID {
	w.T.Helper()
	id := uuid.New()
	w.Exec(`INSERT INTO lockstep.task (task_id, consumer, tenant_id, collection_id, scope, record_key, mode, state, grant_epoch, center_epoch, created_by)
		SELECT $1, $2, $3, $4, $5, $6, 'REPAIR', 'QUEUED', 1, center_epoch, 'test' FROM lockstep.center`, id, Consumer, Tenant, Collection, scope, key)
	return id
}

// Materialise makes the manifest of the task and returns the task after it.
func (w *World) Materialise(id uuid.UUID) *task.Task {
	w.T.Helper()
	worked, err := w.Materialiser.MaterialiseOnce(w.T.Context())
	if err != nil || !worked {
		w.T.Fatalf("materialise: worked %t, %v", worked, err)
	}
	return w.Read(id)
}

// Complete makes a complete manifest of what the collection holds.
func (w *World) Complete() *task.Task {
	w.T.Helper()
	tk := w.Materialise(w.Task())
	if tk.ManifestState != task.ManifestComplete {
		w.T.Fatalf("the manifest is %s: %s %s", tk.ManifestState, tk.Code, tk.Reason)
	}
	return tk
}

// Read reads a task.
func (w *World) Read(id uuid.UUID) *task.Task {
	w.T.Helper()
	tk, err := w.Store.Task(w.T.Context(), id)
	w.no(err)
	return tk
}

// Revoke takes the grant away, as an operator would: its epoch rises.
func (w *World) Revoke() {
	w.T.Helper()
	w.Exec(`UPDATE lockstep.consumer_grant SET enabled = false, grant_epoch = grant_epoch + 1`)
}
