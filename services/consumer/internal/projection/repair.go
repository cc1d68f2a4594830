package projection

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/protocol"
)

// MaxBatch bounds the rows of one write, so that a transaction stays under a second.
const MaxBatch = 500

// lockTimeout is how long a write may wait where waiting can't be avoided: for
// a host transaction that is just inserting the same key or unique value. It is
// far below PostgreSQL's deadlock_timeout (1 s), so that if the two ever wait for
// each other it is this write that gives up and never the host's.
const lockTimeout = "200ms"

// ErrUnrepresentable: the mapped content columns can't hold the content, so the
// row would not have the value that its hash states. Nothing was written.
var ErrUnrepresentable = errors.New("the content does not fit the mapped columns")

// Item is one row to be given the center's current value.
type Item struct {
	Key      string // raw
	Expected Expected
	// Snapshot is verified by the caller; its EventID is kept in the row.
	Snapshot *protocol.Snapshot
	// ProofID is kept in the row where it is not empty.
	ProofID string
}

// Repair gives every row that is still as expected its snapshot's value, and
// returns the raw keys of the rows it wrote. A key that is missing from them is
// a row that changed, that a host transaction holds, or whose key another
// tenant or collection holds (Holders).
//
// An error leaves the transaction to be rolled back; FaultOf says whether
// smaller batches would help.
func (p *Projection) Repair(ctx context.Context, tx pgx.Tx, at Scope, items []Item) ([]string, error) {
	if len(items) == 0 {
		return nil, nil
	}
	if len(items) > MaxBatch {
		return nil, fmt.Errorf("repair %d rows at once: at most %d", len(items), MaxBatch)
	}
	var batch pgx.Batch
	batch.Queue("SET LOCAL lock_timeout = '" + lockTimeout + "'")
	batch.Queue(p.updateSQL(), p.repairArgs(at, items)...)
	// A row that is expected to be absent may be a retired one, so it is in both.
	if missing := absentItems(items); len(missing) > 0 {
		batch.Queue(p.insertSQL(), p.repairArgs(at, missing)...)
	}
	batch.Queue("SET LOCAL lock_timeout TO DEFAULT")
	written, err := p.send(ctx, tx, &batch, snapshotHashes(items))
	if err != nil {
		return nil, fmt.Errorf("repair %d rows: %w", len(items), err)
	}
	return written, nil
}

// send runs a batch whose first and last statements return nothing, and
// collects the keys that the ones between returned.
func (p *Projection) send(ctx context.Context, tx pgx.Tx, batch *pgx.Batch, hashes map[string]canon.Hash) ([]string, error) {
	results := tx.SendBatch(ctx, batch)
	defer func() { _ = results.Close() }() // an error of a statement is returned below
	var keys []string
	for i := range batch.Len() {
		if i == 0 || i == batch.Len()-1 {
			if _, err := results.Exec(); err != nil {
				return nil, err
			}
			continue
		}
		rows, err := results.Query()
		if err != nil {
			return nil, err
		}
		if keys, err = p.collect(rows, keys, hashes); err != nil {
			return nil, err
		}
	}
	return keys, results.Close()
}

// collect appends the returned keys. Where the content came back with them, it
// has to give the hash that was written beside it.
func (p *Projection) collect(rows pgx.Rows, keys []string, hashes map[string]canon.Hash) ([]string, error) {
	defer rows.Close()
	for rows.Next() {
		raw := rows.RawValues()
		key, err := p.table.DecodeKey(raw[0])
		if err != nil {
			return nil, fmt.Errorf("read a written key: %w", err)
		}
		if len(raw) > 1 {
			if hash, err := canon.Sum(raw[1]); err != nil || hash != hashes[key] {
				return nil, fmt.Errorf("record %s: %w", protocol.FormatKey(key), ErrUnrepresentable)
			}
		}
		keys = append(keys, key)
	}
	return keys, rows.Err()
}

func snapshotHashes(items []Item) map[string]canon.Hash {
	hashes := make(map[string]canon.Hash, len(items))
	for i := range items {
		hashes[items[i].Key] = items[i].Snapshot.Hash
	}
	return hashes
}

// repairArgs are $1 tenant, $2 collection and the arrays of itemsSQL.
func (p *Projection) repairArgs(at Scope, items []Item) []any {
	n := len(items)
	var was triples
	var (
		revision, schema, sequence = make([]int64, n), make([]int64, n), make([]int64, n)
		hash                       = make([][]byte, n)
		deleted                    = make([]bool, n)
		content                    = make([]*string, n)
		event, proof               = make([]string, n), make([]string, n)
	)
	for i := range items {
		item, s := &items[i], items[i].Snapshot
		was.add(item.Key, item.Expected)
		revision[i], schema[i], sequence[i] = s.Revision, s.SchemaVersion, s.Sequence
		hash[i], deleted[i] = s.Hash[:], s.Deleted
		if s.Content != nil {
			text := string(s.Content)
			content[i] = &text
		}
		event[i], proof[i] = s.EventID, item.ProofID
	}
	args := append([]any{at.TenantID, at.CollectionID}, was.args(p.table)...)
	return append(args, revision, hash, deleted, schema, sequence, content, event, proof)
}

// absentItems are those that expect no live row.
func absentItems(items []Item) []Item {
	var out []Item
	for i := range items {
		if items[i].Expected.is == absent {
			out = append(out, items[i])
		}
	}
	return out
}

func (p *Projection) itemsSQL() string {
	return fmt.Sprintf(`SELECT v.*, v.content_text::jsonb AS content
		FROM unnest($3::%s[], $4::text[], $5::bigint[], $6::bytea[], $7::boolean[], $8::bigint[],
			$9::bigint[], $10::bytea[], $11::boolean[], $12::bigint[], $13::bigint[], $14::text[], $15::text[], $16::text[])
		AS v(%s, revision, hash, deleted, schema_version, sequence, content_text, event_id, proof_id)`,
		p.table.KeyType(), triplesColumns)
}

// updateSQL changes live rows and revives retired ones.
func (p *Projection) updateSQL() string {
	t := p.table
	return fmt.Sprintf(`WITH v AS (%[1]s), locked AS (%[2]s)
		UPDATE %[3]s AS t SET %[4]s FROM locked AS v
		WHERE t.%[5]s = $1 AND t.%[6]s = v.key RETURNING %[7]s`,
		p.itemsSQL(), lockedSQL(t, ""), t.Ident, p.assignments(func(c written) string { return c.value }),
		t.Tenant, t.Key, p.returning())
}

// insertSQL inserts the rows that are expected to be absent and that no row of
// any kind stands in the way of. Its conflict target is named, so that a unique
// rule of the host's own is not hidden. A row that turned up since is left alone,
// unless it is retired.
func (p *Projection) insertSQL() string {
	t := p.table
	columns := []string{t.Tenant, t.Collection, t.Key, t.ProjectionVersion, t.CreateTime}
	values := []string{"$1", "$2::" + t.CollectionType(), "v.key", "1", "now()"}
	for _, c := range p.written() {
		columns, values = append(columns, c.column), append(values, c.value)
	}
	return fmt.Sprintf(`WITH v AS (%[1]s)
		INSERT INTO %[2]s AS t (%[3]s) SELECT %[4]s FROM v
		WHERE v.was = 'absent' AND NOT EXISTS (
			SELECT FROM %[2]s AS h WHERE h.%[5]s = v.key AND (h.%[6]s = $1 OR h.%[7]s IS NULL))
		ORDER BY v.key%[8]s
		ON CONFLICT (%[6]s, %[5]s) DO UPDATE SET %[9]s WHERE t.%[7]s IS NOT NULL AND t.%[10]s = EXCLUDED.%[10]s
		RETURNING %[11]s`,
		p.itemsSQL(), t.Ident, strings.Join(columns, ", "), strings.Join(values, ", "), t.Key, t.Tenant, t.Retired,
		strings.TrimPrefix(t.KeyOrder, "t."+t.Key), p.assignments(func(c written) string { return "EXCLUDED." + c.column }),
		t.Collection, p.returning())
}

// written is a column that a repair writes, and its value of v.
type written struct{ column, value string }

// written lists the mapped snapshot and evidence columns: everything of the
// host's row that a repair writes, beside the version and the retirement.
func (p *Projection) written() []written {
	t := p.table
	list := []written{
		{t.Revision, "v.revision"},
		{t.ContentHash, "v.hash"},
		{t.Deleted, "v.deleted"},
		{t.SchemaVersion, "v.schema_version"},
		{t.Sequence, "v.sequence"},
	}
	for i, value := range t.ContentValues("v.content") {
		list = append(list, written{t.ContentTargets[i], value})
	}
	if t.LastEventID != "" {
		list = append(list, written{t.LastEventID, "v.event_id"})
	}
	if t.ProofID != "" {
		list = append(list, written{t.ProofID, "NULLIF(v.proof_id, '')"})
	}
	return list
}

// assignments is the SET list over an existing row t. The create time stays, a
// repair without a proof keeps the row's last one, and a retired row is live again.
func (p *Projection) assignments(value func(written) string) string {
	t := p.table
	set := []string{
		fmt.Sprintf("%s = COALESCE(t.%s, 0) + 1", t.ProjectionVersion, t.ProjectionVersion),
		t.Retired + " = NULL",
	}
	for _, c := range p.written() {
		v := value(c)
		if c.column == t.ProofID {
			v = fmt.Sprintf("COALESCE(%s, t.%s)", v, c.column)
		}
		set = append(set, c.column+" = "+v)
	}
	return strings.Join(set, ", ")
}

// returning gives the key; where content is spread over columns, also what they
// hold now, so that content which they can't hold is noticed.
func (p *Projection) returning() string {
	t := p.table
	if len(t.Columns.ContentColumns) == 0 {
		return "t." + t.Key
	}
	return fmt.Sprintf("t.%s, (%s)::text", t.Key, p.content())
}
