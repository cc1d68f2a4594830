// Package source reads the host's own table, the mapped one, and nothing else
// of the host.
//
// It promises that a read for a manifest is one consistent snapshot, however
// many connections share it, streamed in constant memory, with each row in
// exactly one of its ranges; that a current row comes from the primary and from
// no cache; and that neither ever comes from a standby. It needs SELECT only
// and writes nothing.
package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/services/internal/load"
)

// Source is the mapped table on its own pool.
type Source struct {
	pool  *pgxpool.Pool
	table *dataset.Table
	sql   statements
	rate  *load.Rate
}

// statements are built once: the mapping does not change while the process runs.
type statements struct {
	count, countOne, pages, identity, current, system string
	lock                                              string // "" where the table can't be locked
	replaced                                          string
	ranges                                            rangeStatements
}

// Range is what a task is about: a collection of a tenant, or one record of it.
type Range struct {
	TenantID     int64
	CollectionID string
	Key          string // raw; empty for the whole collection
}

// Row is a record as the host holds it. NULL revisions and numbers read as 0
// and a NULL deleted as false: what is not known to be deleted is not.
type Row struct {
	Key           string // raw
	Revision      int64
	Deleted       bool
	SchemaVersion int64
	Sequence      int64
	// Content is JSON text, nil for SQL NULL.
	Content []byte
}

// Open prepares the statements of a mapping. It logs once, clearly, where the
// role may not read the identity of the cluster: a swapped database is then
// noticed by its timeline and database alone.
func Open(ctx context.Context, pool *pgxpool.Pool, table *dataset.Table, log *zap.Logger) (*Source, error) {
	s := &Source{pool: pool, table: table, sql: build(table)}
	system, err := SystemSQL(ctx, pool)
	if err != nil {
		return nil, fmt.Errorf("read the identity of the source: %w", err)
	}
	if system != FullSystemSQL {
		log.Warn("the source role may not execute pg_control_system(): a replaced source is noticed by its timeline and database only")
	}
	s.sql.system = system
	// Who may read some columns only may not lock the table, and a foreign table or
	// a materialised view can't be locked; there a replaced table is noticed instead.
	var lockable bool
	err = pool.QueryRow(ctx, `SELECT relkind IN ('r', 'p', 'v') AND has_table_privilege(oid, 'SELECT') FROM pg_class WHERE oid = $1::text::regclass`, table.Ident).Scan(&lockable)
	if err != nil {
		return nil, fmt.Errorf("look at the table of the source: %w", err)
	}
	if lockable {
		s.sql.lock = "LOCK TABLE " + table.Ident + " IN ACCESS SHARE MODE"
	}
	return s, nil
}

// Limit bounds the current rows that are read; who reads a snapshot keeps to
// the same rate.
func (s *Source) Limit(rate *load.Rate) { s.rate = rate }

func build(t *dataset.Table) statements {
	in := fmt.Sprintf("t.%s = $1::int8 AND t.%s = $2::text::%s", t.Tenant, t.Collection, t.CollectionType())
	one := fmt.Sprintf("%s AND t.%s = $3::%s", in, t.Key, t.KeyType())
	count := func(where, limit string) string {
		return fmt.Sprintf("SELECT count(*) FROM (SELECT FROM %s AS t WHERE %s LIMIT %s) AS bounded", t.Ident, where, limit)
	}
	numbers := fmt.Sprintf("greatest(t.%s, 0)::int8, coalesce(t.%s, false), coalesce(t.%s, 0)::int8, coalesce(t.%s, 0)::int8",
		t.Revision, t.Deleted, t.SchemaVersion, t.Sequence)
	read := reading(t, numbers)
	return statements{
		ranges: buildRanges(t, in, one, read),
		pages:  read(in + " AND t.ctid >= $3 AND t.ctid < $4"),
		count:  count(in, "$3"), countOne: count(one, "$4"),
		current:  buildCurrent(t, numbers),
		identity: "SELECT transaction_timestamp(), pg_is_in_recovery()",
		// The catalogue's row is the snapshot's, what the function gives is of now.
		replaced: `SELECT coalesce(bool_or(nullif(c.relfilenode, 0) IS DISTINCT FROM pg_relation_filenode(c.oid)), true) FROM pg_class AS c
			WHERE c.oid = $1::text::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree($1::text::regclass))`,
	}
}

// pick chooses the statement for a range and the parameters it starts with. A
// record has a statement of its own so that no plan has to serve both.
func (s *Source) pick(r Range, all, one string) (sql string, args []any) {
	if r.Key == "" {
		return all, []any{r.TenantID, r.CollectionID}
	}
	return one, []any{r.TenantID, r.CollectionID, s.table.KeyArg(r.Key)}
}

// Count counts the rows of a range, at most limit; ErrNotCounted where that
// takes too long.
func (s *Source) Count(ctx context.Context, r Range, limit int64) (int64, error) {
	sql, args := s.pick(r, s.sql.count, s.sql.countOne)
	var n int64
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := set(ctx, tx, countSettings); err != nil {
			return err
		}
		return tx.QueryRow(ctx, sql, append(args, limit)...).Scan(&n)
	})
	if pg.Code(err) == codeQueryCanceled {
		err = ErrNotCounted
	}
	if err != nil {
		return 0, fmt.Errorf("count the rows of the source: %w", err)
	}
	return n, nil
}

// ErrNotCounted: counting took longer than a caller should wait for it.
var ErrNotCounted = errors.New("not counted within 2 s")

var countSettings = []string{"SET LOCAL statement_timeout = 2000"}

const codeQueryCanceled = "57014"

func errStandby() error {
	return fault.New(fault.Unavailable, "the source is a standby; only its primary is read")
}
