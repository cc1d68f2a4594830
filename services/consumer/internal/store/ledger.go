package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
)

// Entry is one difference of the ledger. A side without a row is nil, and so
// is Wrote where no effect wrote the row.
type Entry struct {
	Key        string // raw
	Class      protocol.Class
	Outcome    protocol.Outcome
	Code       string
	Center     *evidence.Row
	Local      *evidence.Row
	Wrote      *evidence.Row
	EvidenceID string
	Evidence   []byte
}

// Note queues the writing of differences. The class first found stays; the rest is the latest.
func (e *Effect) Note(entries []Entry) error {
	if len(entries) == 0 {
		return nil
	}
	if e.task == uuid.Nil {
		return errNoTask
	}
	// One order of locks, whoever writes.
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	n := len(entries)
	keys, classes, outcomes, codes := make([][]byte, n), make([]string, n), make([]string, n), make([]string, n)
	ids, words := make([]string, n), make([][]byte, n)
	center, local, wrote := newTriples(n), newTriples(n), newTriples(n)
	for i, d := range entries {
		keys[i], classes[i], outcomes[i], codes[i] = []byte(d.Key), string(d.Class), string(d.Outcome), d.Code
		ids[i], words[i] = d.EvidenceID, d.Evidence
		center.set(i, d.Center)
		local.set(i, d.Local)
		wrote.set(i, d.Wrote)
	}
	e.queued.Queue(`INSERT INTO lockstep.outcome AS o
		(tenant_id, task_id, record_key, class, outcome, code, center_revision, center_hash, center_deleted,
		 local_revision, local_hash, local_deleted, wrote_revision, wrote_hash, wrote_deleted, evidence_id, evidence, op_id)
		SELECT $1, $2, d.*, $3 FROM unnest($4::bytea[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bytea[], $10::boolean[],
			$11::bigint[], $12::bytea[], $13::boolean[], $14::bigint[], $15::bytea[], $16::boolean[], $17::text[], $18::bytea[]) AS d
		ON CONFLICT (tenant_id, task_id, record_key) DO UPDATE SET
			outcome = EXCLUDED.outcome, code = EXCLUDED.code,
			center_revision = EXCLUDED.center_revision, center_hash = EXCLUDED.center_hash, center_deleted = EXCLUDED.center_deleted,
			local_revision = EXCLUDED.local_revision, local_hash = EXCLUDED.local_hash, local_deleted = EXCLUDED.local_deleted,
			wrote_revision = EXCLUDED.wrote_revision, wrote_hash = EXCLUDED.wrote_hash, wrote_deleted = EXCLUDED.wrote_deleted,
			evidence_id = EXCLUDED.evidence_id, evidence = EXCLUDED.evidence, op_id = EXCLUDED.op_id, updated_at = now(), reopened_at = NULL
		RETURNING class, outcome, xmax = 0`,
		e.tenant, e.task, e.Op, keys, classes, outcomes, codes, center.revisions, center.hashes, center.deleted,
		local.revisions, local.hashes, local.deleted, wrote.revisions, wrote.hashes, wrote.deleted, ids, words).Query(e.tally)
	e.noted = true
	return nil
}

// errNoTask: a delivery is no task, and writes no ledger.
var errNoTask = errors.New("only a task has a ledger")

// triples are three arrays of nullable columns.
type triples struct {
	revisions []*int64
	hashes    [][]byte
	deleted   []*bool
}

func newTriples(n int) triples {
	return triples{make([]*int64, n), make([][]byte, n), make([]*bool, n)}
}

func (t triples) set(i int, r *evidence.Row) {
	if r != nil {
		t.revisions[i], t.hashes[i], t.deleted[i] = &r.Revision, r.Hash[:], &r.Deleted
	}
}

// RaiseHighWater queues the remembering of the highest (center epoch, revision)
// that verified documents stated. A fresh word about a retired record replaces
// its floor. Where all have to be what was given now, one that is higher is
// ErrOvertaken.
func (e *Effect) RaiseHighWater(marks []Mark, all bool) {
	if len(marks) == 0 {
		return
	}
	slices.SortFunc(marks, func(a, b Mark) int { return strings.Compare(a.Key, b.Key) })
	n := len(marks)
	keys, epochs, revisions, retired := make([][]byte, n), make([]int64, n), make([]int64, n), make([]bool, n)
	for i, m := range marks {
		keys[i], epochs[i], revisions[i], retired[i] = []byte(m.Key), m.CenterEpoch, m.Revision, m.Retired
	}
	e.queued.Queue(`INSERT INTO lockstep.high_water AS h (tenant_id, collection_id, record_key, center_epoch, revision, retired)
		SELECT $1, $2, m.* FROM unnest($3::bytea[], $4::bigint[], $5::bigint[], $6::boolean[]) AS m
		ON CONFLICT (tenant_id, collection_id, record_key) DO UPDATE SET
			center_epoch = EXCLUDED.center_epoch, retired = EXCLUDED.retired,
			-- A retirement's floor is the highest word ever seen, not just the local row's.
			revision = CASE WHEN EXCLUDED.retired AND EXCLUDED.center_epoch = h.center_epoch
				THEN GREATEST(h.revision, EXCLUDED.revision) ELSE EXCLUDED.revision END
		WHERE EXCLUDED.center_epoch >= h.center_epoch AND
			(h.retired OR EXCLUDED.retired OR (EXCLUDED.center_epoch, EXCLUDED.revision) >= (h.center_epoch, h.revision))`,
		e.tenant, e.collection, keys, epochs, revisions, retired).Exec(func(tag pgconn.CommandTag) error {
		if all && tag.RowsAffected() < int64(n) {
			return ErrOvertaken
		}
		return nil
	})
}

// keyByKey plans a look at keys for the table as it is by then. A ledger is
// empty when its task begins, and what was planned for it then would be held on
// to while it grows: every batch would read all of it. The subquery of such a
// look can't be merged into the rest, so each key is one descent of an index.
const keyByKey = pgx.QueryExecModeCacheDescribe

// Mark is the highest word about a record.
type Mark struct {
	Key         string // raw
	CenterEpoch int64
	Revision    int64
	Retired     bool
}

// markOf looks for the mark of k.key.
const markOf = `LATERAL (SELECT record_key, center_epoch, revision, retired FROM lockstep.high_water
	WHERE tenant_id = $1 AND collection_id = $2 AND record_key = k.key OFFSET 0) AS h`

// HighWater reads the marks of keys; a key without one is not in the map.
func (s *Store) HighWater(ctx context.Context, w *Work, keys []string) (map[string]Mark, error) {
	rows, err := s.pool.Query(ctx, `SELECT h.* FROM unnest($3::bytea[]) AS k(key) CROSS JOIN `+markOf,
		keyByKey, w.TenantID, w.CollectionID, rawKeys(keys))
	if err != nil {
		return nil, fmt.Errorf("read high-water marks: %w", err)
	}
	out := make(map[string]Mark, len(keys))
	var m Mark
	var key []byte
	_, err = pgx.ForEachRow(rows, []any{&key, &m.CenterEpoch, &m.Revision, &m.Retired}, func() error {
		m.Key = string(key)
		out[m.Key] = m
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read high-water marks: %w", err)
	}
	return out, nil
}

// Known is what the consumer already holds of a key.
type Known struct {
	// Class and Outcome of the task's ledger, "" for a key that is not in it.
	Class   protocol.Class
	Outcome protocol.Outcome
	Wrote   *evidence.Row
	Mark    *Mark // nil for none
}

// Known reads what the task's ledger holds of keys, and their marks. A key of
// which nothing is held is not in the map.
func (s *Store) Known(ctx context.Context, w *Work, keys []string) (map[string]Known, error) {
	rows, err := s.pool.Query(ctx, `SELECT k.key, coalesce(o.class, ''), coalesce(o.outcome, ''), o.wrote_revision, o.wrote_hash, o.wrote_deleted,
			h.center_epoch, coalesce(h.revision, 0), coalesce(h.retired, false)
		FROM unnest($3::bytea[]) AS k(key)
		LEFT JOIN LATERAL (SELECT class, outcome, wrote_revision, wrote_hash, wrote_deleted FROM lockstep.outcome
			WHERE tenant_id = $1 AND task_id = $4 AND record_key = k.key OFFSET 0) AS o ON true
		LEFT JOIN `+markOf+` ON true
		WHERE o.class IS NOT NULL OR h.center_epoch IS NOT NULL`,
		keyByKey, w.TenantID, w.CollectionID, rawKeys(keys), w.TaskID)
	if err != nil {
		return nil, fmt.Errorf("read known differences: %w", err)
	}
	out := make(map[string]Known)
	var key, hash []byte
	var k Known
	var m Mark
	var revision, epoch *int64
	var deleted *bool
	_, err = pgx.ForEachRow(rows, []any{&key, &k.Class, &k.Outcome, &revision, &hash, &deleted, &epoch, &m.Revision, &m.Retired}, func() error {
		k.Wrote, k.Mark = rowOf(key, revision, hash, deleted), nil
		if epoch != nil {
			k.Mark = &Mark{Key: string(key), CenterEpoch: *epoch, Revision: m.Revision, Retired: m.Retired}
		}
		out[string(key)] = k
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read known differences: %w", err)
	}
	return out, nil
}

// rowOf puts a nullable triple together.
func rowOf(key []byte, revision *int64, hash []byte, deleted *bool) *evidence.Row {
	if revision == nil || deleted == nil || len(hash) != len(canon.Hash{}) {
		return nil
	}
	return &evidence.Row{Key: string(key), Revision: *revision, Hash: canon.Hash(hash), Deleted: *deleted}
}

func rawKeys(keys []string) [][]byte {
	out := make([][]byte, len(keys))
	for i, k := range keys {
		out[i] = []byte(k)
	}
	return out
}

// Candidates reads at most limit extra rows that are still only reported, in
// key order after a key, as they were scanned.
func (s *Store) Candidates(ctx context.Context, w *Work, after string, limit int) ([]Entry, error) {
	rows, err := s.pool.Query(ctx, `SELECT record_key, code, local_revision, local_hash, local_deleted FROM lockstep.outcome
		WHERE tenant_id = $1 AND task_id = $2 AND class = 'EXTRA_ROW' AND outcome = 'REPORTED' AND record_key > $3
		ORDER BY record_key LIMIT $4`, w.TenantID, w.TaskID, []byte(after), limit)
	if err != nil {
		return nil, fmt.Errorf("read extra rows: %w", err)
	}
	var out []Entry
	var key, hash []byte
	var code string
	var revision *int64
	var deleted *bool
	_, err = pgx.ForEachRow(rows, []any{&key, &code, &revision, &hash, &deleted}, func() error {
		out = append(out, Entry{
			Key: string(key), Class: protocol.ExtraRow, Outcome: protocol.Reported, Code: code,
			Local: rowOf(key, revision, hash, deleted),
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read extra rows: %w", err)
	}
	return out, nil
}

// Extras counts the extra rows that are still local only or were retired
// already, without those no retirement can touch: the breaker's durable figure.
// One that the host refuses to retire is missing at the center all the same.
func (e *Effect) Extras(ctx context.Context, notRetirable string) (int64, error) {
	var n int64
	err := e.Tx.QueryRow(ctx, `SELECT count(*) FROM lockstep.outcome
		WHERE tenant_id = $1 AND task_id = $2 AND class = 'EXTRA_ROW' AND code <> $3 AND (outcome IN ('REPORTED', 'RETIRED')
			OR outcome = 'QUARANTINED' AND code = 'QUARANTINED' AND center_revision IS NULL)`,
		e.tenant, e.task, notRetirable).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count extra rows: %w", err)
	}
	return n, nil
}

// Scanned reads the rows scanned from the checkpoint, inside the effect.
func (e *Effect) Scanned(ctx context.Context) (local int64, err error) {
	err = e.Tx.QueryRow(ctx, `SELECT local_scanned FROM lockstep.work WHERE task_id = $1`, e.task).Scan(&local)
	if err != nil {
		return 0, fmt.Errorf("read the checkpoint: %w", err)
	}
	return local, nil
}

// HasCode says whether a row of the task's ledger has the code.
func (s *Store) HasCode(ctx context.Context, w *Work, code string) (bool, error) {
	var there bool
	err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM lockstep.outcome WHERE tenant_id = $1 AND task_id = $2 AND code = $3)`,
		w.TenantID, w.TaskID, code).Scan(&there)
	if err != nil {
		return false, fmt.Errorf("look for %s in the ledger: %w", code, err)
	}
	return there, nil
}

// counter runs in a transaction or a pool.
type counter interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func counts(ctx context.Context, db counter, tenant int64, task uuid.UUID) ([]protocol.ClassCount, error) {
	rows, err := db.Query(ctx, `SELECT class, outcome, count(*) FROM lockstep.outcome
		WHERE tenant_id = $1 AND task_id = $2 GROUP BY class, outcome`, tenant, task)
	if err != nil {
		return nil, fmt.Errorf("count the ledger: %w", err)
	}
	by := map[protocol.Class]*protocol.ClassCount{}
	var class protocol.Class
	var outcome protocol.Outcome
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&class, &outcome, &n}, func() error {
		if by[class] == nil {
			by[class] = &protocol.ClassCount{Class: class}
		}
		add(by[class], outcome, n)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count the ledger: %w", err)
	}
	var out []protocol.ClassCount
	for _, class := range protocol.Classes() {
		if by[class] != nil {
			out = append(out, *by[class])
		}
	}
	return out, nil
}

func add(c *protocol.ClassCount, outcome protocol.Outcome, n int64) {
	c.Found += n
	switch outcome {
	case protocol.Repaired:
		c.Repaired += n
	case protocol.Settled:
		c.Settled += n
	case protocol.Retired:
		c.Retired += n
	case protocol.Reported:
		c.Reported += n
	case protocol.Deferred:
		c.Deferred += n
	case protocol.Exhausted:
		c.Exhausted += n
	case protocol.Quarantined:
		c.QuarantinedCount += n
	}
}

// Counts gives the ledger's rows by class and outcome, live.
func (s *Store) Counts(ctx context.Context, w *Work) ([]protocol.ClassCount, error) {
	return counts(ctx, s.pool, w.TenantID, w.TaskID)
}
