// Package centertest is the world in which the center's packages are tested: a
// fresh database with one consumer that serves a tenant and has a grant, and
// ways to put tasks into any place of their lives. Tests only.
package centertest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// Who and what the tests are about.
const (
	Center     = "form-center"
	Consumer   = "svc-hall"
	Tenant     = int64(7)
	Collection = "form-1"
	Key        = "00000000000000000000000000000001"
)

// Scope of the grant that every world has.
var Scope = store.Scope{Consumer: Consumer, TenantID: Tenant, CollectionID: Collection}

// Policy of the tests: short budgets, times that no test waits for.
var Policy = task.Policy{
	MaxAttempts: 3, Slots: 1, Lease: 15 * time.Minute, ClaimLease: time.Minute, GiveUp: 12 * time.Hour,
	BackoffBase: time.Minute, BackoffCap: time.Hour,
}

// Root of every manifest.
var Root = evidence.Node{1, 2, 3}

// World holds what a test works with.
type World struct {
	T     testing.TB
	DSN   string
	Pool  *pgxpool.Pool
	Store *store.Store
}

// New makes a world.
func New(t testing.TB) *World {
	t.Helper()
	w := &World{T: t, DSN: pgtest.Center(t)}
	w.Pool = w.Connect()
	w.Store = store.New(w.Pool)
	w.Grant(Scope)
	return w
}

// Connect opens one more pool to the world's database, as another process would.
func (w *World) Connect() *pgxpool.Pool {
	w.T.Helper()
	pool, err := pg.Open(w.T.Context(), pg.PoolConfig{DSN: w.DSN})
	w.Must(err)
	w.T.Cleanup(pool.Close)
	return pool
}

// Must ends the test on an error.
func (w *World) Must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// Grant makes an effective grant and lets the consumer serve its tenant.
func (w *World) Grant(sc store.Scope) {
	w.T.Helper()
	w.Exec(`INSERT INTO lockstep.consumer_tenant (consumer, tenant_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`, sc.Consumer, sc.TenantID)
	w.Exec(`INSERT INTO lockstep.consumer_grant (consumer, tenant_id, collection_id, enabled, read_allowed, subscribe_allowed)
		VALUES ($1, $2, $3, true, true, true)`, sc.Consumer, sc.TenantID, sc.CollectionID)
}

// Revoke takes a grant away as a revocation that was cut off after its first commit.
func (w *World) Revoke(sc store.Scope) {
	w.T.Helper()
	w.Exec(`UPDATE lockstep.consumer_grant SET enabled = false, grant_epoch = grant_epoch + 1
		WHERE consumer = $1 AND tenant_id = $2 AND collection_id = $3`, sc.Consumer, sc.TenantID, sc.CollectionID)
}

// Pending makes a queued task whose manifest is to be made.
func (w *World) Pending(sc store.Scope) uuid.UUID { return w.pending(sc, protocol.Collection, "") }

func (w *World) pending(sc store.Scope, what protocol.Scope, key string) uuid.UUID {
	w.T.Helper()
	id := uuid.New()
	w.Must(w.Store.InTx(w.T.Context(), func(tx *store.Tx) error {
		_, ok, err := tx.InsertTask(w.T.Context(), store.NewTask{
			ID: id, Scope: sc, What: what, Key: key, Mode: protocol.Repair, GrantEpoch: 1, CreatedBy: "test",
		})
		if err == nil && !ok {
			err = fmt.Errorf("%s has an open task", sc)
		}
		return err
	}))
	return id
}

// Ready makes a queued task with a complete manifest.
func (w *World) Ready(sc store.Scope) uuid.UUID { return w.complete(w.Pending(sc)) }

// ReadyRecord is Ready for one record.
func (w *World) ReadyRecord(sc store.Scope, key string) uuid.UUID {
	return w.complete(w.pending(sc, protocol.Record, key))
}

// complete gives a task a manifest. The attempt is set along with it, out of
// the way of the rule that one task a consumer is materialised ahead.
func (w *World) complete(id uuid.UUID) uuid.UUID {
	w.T.Helper()
	w.Set(id, `manifest_state = 'COMPLETE', manifest_id = gen_random_uuid(), manifest_root = $2, row_count = 3, page_rows = 128,
		page_count = 1, window_start = now(), header = 'header'`, Root[:])
	return id
}

// Dispatched makes a task that the consumer has on disk, in its first attempt.
func (w *World) Dispatched(sc store.Scope) uuid.UUID {
	w.T.Helper()
	id := w.Ready(sc)
	w.Set(id, `state = 'DISPATCHED', attempt = 1, slot = 1, lease_until = now() + interval '15 minutes', dispatched_at = now(), waiting_since = now()`)
	return id
}

// Running makes a task that the consumer works on, in its first attempt.
func (w *World) Running(sc store.Scope) uuid.UUID {
	w.T.Helper()
	id := w.Dispatched(sc)
	w.Set(id, `state = 'RUNNING', waiting_since = NULL`)
	return id
}

// Set changes a task's columns behind the store's back; $1 is its id.
func (w *World) Set(id uuid.UUID, set string, args ...any) {
	w.T.Helper()
	if n := w.Exec(`UPDATE lockstep.task SET `+set+` WHERE task_id = $1`, append([]any{id}, args...)...); n != 1 {
		w.T.Fatalf("%d tasks changed", n)
	}
}

// Read reads a task.
func (w *World) Read(id uuid.UUID) *task.Task {
	w.T.Helper()
	tk, err := w.Store.Task(w.T.Context(), id)
	w.Must(err)
	return tk
}

// State is a task's state and code, such as "FAILED LEASE_EXPIRED".
func (w *World) State(id uuid.UUID) string {
	w.T.Helper()
	tk := w.Read(id)
	return strings.TrimSpace(string(tk.State) + " " + tk.Code)
}

// WantState ends the test unless the task is there.
func (w *World) WantState(id uuid.UUID, want string) {
	w.T.Helper()
	if got := w.State(id); got != want {
		w.T.Fatalf("the task is %s, want %s", got, want)
	}
}

// Exec runs one statement.
func (w *World) Exec(sql string, args ...any) int64 {
	w.T.Helper()
	tag, err := w.Pool.Exec(w.T.Context(), sql, args...)
	if err != nil {
		w.T.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

// Int reads one number.
func (w *World) Int(sql string, args ...any) int {
	w.T.Helper()
	var n int
	if err := w.Pool.QueryRow(w.T.Context(), sql, args...).Scan(&n); err != nil {
		w.T.Fatalf("%s: %v", sql, err)
	}
	return n
}

// Strings reads one column.
func (w *World) Strings(sql string, args ...any) []string {
	w.T.Helper()
	rows, err := w.Pool.Query(w.T.Context(), sql, args...)
	w.Must(err)
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	w.Must(err)
	return out
}

// Everything is a digest of every row of every table of the center.
func (w *World) Everything() string {
	w.T.Helper()
	var all strings.Builder
	for _, table := range w.Strings(`SELECT table_name FROM information_schema.tables WHERE table_schema = 'lockstep' ORDER BY 1`) {
		ident := pgx.Identifier{"lockstep", table}.Sanitize()
		fmt.Fprintf(&all, "%s %s\n", table, strings.Join(w.Strings(`SELECT coalesce(md5(string_agg(t::text, '' ORDER BY t::text)), '') FROM `+ident+` t`), ""))
	}
	return all.String()
}

// Blocked returns when some session of the world's database waits for a lock.
func (w *World) Blocked(ctx context.Context) { w.BlockedAll(ctx, 1) }

// BlockedAll returns when so many do.
func (w *World) BlockedAll(ctx context.Context, sessions int) {
	w.T.Helper()
	for w.Int(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) < sessions {
		select {
		case <-ctx.Done():
			w.T.Fatal("nothing waits for a lock")
		case <-time.After(time.Millisecond):
		}
	}
}
