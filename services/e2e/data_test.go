package e2e

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/canon"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// key of row i of a form: spread over the whole order, the same every time.
func key(collection string, i int) [16]byte {
	name := fnv.New64a()
	_, _ = name.Write([]byte(collection))
	r := rand.New(rand.NewPCG(name.Sum64(), uint64(i)))
	var k [16]byte
	binary.BigEndian.PutUint64(k[:], r.Uint64())
	binary.BigEndian.PutUint64(k[8:], r.Uint64())
	return k
}

func content(i int) string {
	return fmt.Sprintf(`{"n": %d, "name": "é<&>%d", "price": %d.50, "big": 9007199254740993, "none": null, "nested": {"b": [1, 2.0, 3e2], "a": ""}}`, i, i, i)
}

// fill makes rows [0, n) of a form equal on both sides, with extension columns
// of the host, and grants the consumer to read them.
func (s *stack) fill(collection string, n int) {
	s.t.Helper()
	ctx := s.t.Context()
	_, err := s.center.CopyFrom(ctx, pgx.Identifier{"answers", "answer"},
		[]string{"tenant_id", "answer_id", "form_id", "version", "seq_no", "revision", "deleted", "values"},
		pgx.CopyFromSlice(n, func(i int) ([]any, error) {
			return []any{tenant, key(collection, i), collection, 1, int64(i), int64(3), false, content(i)}, nil
		}))
	s.must(err)
	past := time.Now().Add(-24 * time.Hour)
	_, err = s.consumer.CopyFrom(ctx, pgx.Identifier{"hall", "answer_projection"},
		[]string{"tenant_id", "answer_id", "form_id", "form_version", "seq_no", "revision", "content_hash", "deleted", "values", "created_at", "biz_ext", "apply_id"},
		pgx.CopyFromSlice(n, func(i int) ([]any, error) {
			hash, err := canon.Sum([]byte(content(i)))
			return []any{tenant, key(collection, i), collection, int64(1), int64(i), int64(3), hash[:], false, content(i), past, `{"mine": 1}`, fmt.Sprintf("apply-%d", i)}, err
		}))
	s.must(err)
	s.grant(collection)
}

// grant lets the consumer read and subscribe to a form, as an operator's call would leave it.
func (s *stack) grant(collection string) {
	s.t.Helper()
	s.exec(true, `INSERT INTO lockstep.consumer_tenant (consumer, tenant_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`, consumerApp, tenant)
	s.exec(true, `INSERT INTO lockstep.consumer_grant (consumer, tenant_id, collection_id, enabled, read_allowed, subscribe_allowed)
		VALUES ($1, $2, $3, true, true, true)`, consumerApp, tenant, collection)
}

func (s *stack) exec(center bool, sql string, args ...any) {
	s.t.Helper()
	pool := s.consumer
	if center {
		pool = s.center
	}
	_, err := pool.Exec(s.t.Context(), sql, args...)
	s.must(err)
}

// damage is what damageAll did to a form, by class.
type damage struct{ missing, stale, conflict, tombstone, extra int }

func (d damage) repaired() int64 { return int64(d.missing + d.stale + d.conflict + d.tombstone) }

// damageAll does everything that can be mended to disjoint rows of a form.
func (s *stack) damageAll(collection string, d damage) {
	s.t.Helper()
	next := 0
	rows := func(n int) [][16]byte {
		keys := make([][16]byte, n)
		for i := range keys {
			keys[i] = key(collection, next)
			next += 3
		}
		return keys
	}
	const where = ` WHERE tenant_id = $1 AND answer_id = ANY($2)`
	s.exec(false, `DELETE FROM hall.answer_projection`+where, tenant, rows(d.missing))
	s.exec(false, `UPDATE hall.answer_projection SET revision = 2, content_hash = sha256('old'), "values" = '{"old": 1}'`+where, tenant, rows(d.stale))
	s.exec(false, `UPDATE hall.answer_projection SET content_hash = sha256('other'), "values" = '{"other": 1}'`+where, tenant, rows(d.conflict))
	s.exec(true, `UPDATE answers.answer SET deleted = true, revision = 4`+where, tenant, rows(d.tombstone))
	for i := range d.extra {
		s.exec(false, `INSERT INTO hall.answer_projection (tenant_id, answer_id, form_id, revision, content_hash, created_at)
			VALUES ($1, $2, $3, 1, sha256('x'), now() - interval '1 day')`, tenant, key(collection+"-extra", i), collection)
	}
}

// create asks for a task of a form.
func (s *stack) create(collection string) string {
	s.t.Helper()
	out, err := s.centerAdmin().CreateTask(s.operator(), &centerv1.CreateTaskRequest{
		Consumer: consumerApp, TenantId: tenant, CollectionId: collection, Scope: evidencev1.Scope_SCOPE_COLLECTION,
	})
	s.must(err)
	if len(out.GetTasks()) != 1 {
		s.t.Fatalf("created %d tasks, want 1", len(out.GetTasks()))
	}
	return out.GetTasks()[0].GetTask().GetTaskId()
}

// patience is how long anything may take to happen, on a machine that is as
// busy as a test machine ever is.
const patience = 3 * time.Minute

// await polls a condition of the databases until it holds.
func (s *stack) await(what string, holds func() bool) {
	s.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			s.t.Fatalf("%s did not happen within %s; %s", what, patience, s.states())
		}
	}
}

func (s *stack) states() string {
	var center, consumer string
	_ = s.center.QueryRow(s.t.Context(), `SELECT string_agg(format('%s %s attempt %s %s %s lease %s due %s', collection_id, state, attempt, code, reason, lease_until, due_at), '; ') FROM lockstep.task`).Scan(&center)
	_ = s.consumer.QueryRow(s.t.Context(), `SELECT string_agg(format('%s %s attempt %s/%s %s retry %s lease %s due %s', collection_id, state, attempt, wanted_attempt, code, retry_count, lease_until, due_at), '; ') FROM lockstep.work`).Scan(&consumer)
	return "center: " + center + "\nconsumer: " + consumer
}

func (s *stack) taskState(id string) (state string) {
	s.t.Helper()
	s.must(s.center.QueryRow(s.t.Context(), `SELECT state FROM lockstep.task WHERE task_id = $1::uuid`, id).Scan(&state))
	return state
}

// awaitEnd waits until the task has ended on both sides and gives its state.
func (s *stack) awaitEnd(id string) string {
	s.t.Helper()
	s.await("the end of task "+id, func() bool {
		var ended bool
		s.must(s.consumer.QueryRow(s.t.Context(), `SELECT coalesce(bool_or(ended_at IS NOT NULL), false) FROM lockstep.work WHERE task_id = $1::uuid`, id).Scan(&ended))
		return ended && !strings.Contains("QUEUED DISPATCHED RUNNING", s.taskState(id))
	})
	return s.taskState(id)
}

// outcomes counts the ledger of a task as CLASS/OUTCOME.
func (s *stack) outcomes(id string) map[string]int64 {
	s.t.Helper()
	rows, err := s.consumer.Query(s.t.Context(), `SELECT class || '/' || outcome, count(*) FROM lockstep.outcome WHERE task_id = $1::uuid GROUP BY 1`, id)
	s.must(err)
	out := map[string]int64{}
	var name string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error { out[name] = n; return nil })
	s.must(err)
	return out
}

// differences counts the rows in which the two tables differ, by SQL of the
// test's own: content as jsonb compares it, tombstones included.
func (s *stack) differences(collection string) int {
	s.t.Helper()
	type row struct{ revision, deleted, values string }
	read := func(center bool, sql string) map[[16]byte]row {
		pool := s.consumer
		if center {
			pool = s.center
		}
		rows, err := pool.Query(s.t.Context(), sql, tenant, collection)
		s.must(err)
		out := map[[16]byte]row{}
		var k [16]byte
		var r row
		_, err = pgx.ForEachRow(rows, []any{&k, &r.revision, &r.deleted, &r.values}, func() error { out[k] = r; return nil })
		s.must(err)
		return out
	}
	center := read(true, `SELECT answer_id, revision::text, deleted::text, coalesce("values"::text, 'NULL') FROM answers.answer WHERE tenant_id = $1 AND form_id = $2`)
	local := read(false, `SELECT answer_id, revision::text, deleted::text, coalesce("values"::text, 'NULL') FROM hall.answer_projection
		WHERE tenant_id = $1 AND form_id = $2 AND retired_at IS NULL`)
	n := 0
	for k, r := range center {
		if local[k] != r {
			n++
		}
	}
	for k := range local {
		if _, ok := center[k]; !ok {
			n++
		}
	}
	return n
}

// extensions digests the host's own columns of the rows that had any.
func (s *stack) extensions() (digest string) {
	s.t.Helper()
	s.must(s.consumer.QueryRow(s.t.Context(), `SELECT encode(sha256(string_agg(ROW(answer_id, biz_ext, apply_id, flow_id, link_state)::text, '|' ORDER BY answer_id)::bytea), 'hex')
		FROM hall.answer_projection WHERE apply_id IS NOT NULL`).Scan(&digest))
	return digest
}
