package source

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
)

const (
	// MaxReadTime ends a manifest's read. A set of ten million rows takes about a
	// minute; the pool's own statement time-out is meant for short statements.
	MaxReadTime = 15 * time.Minute
	// maxIdle of a connection within the read: it is idle while the rows it gave
	// are written.
	maxIdle = time.Minute
	// rollbackTimeout bounds the clean-up of a read whose caller has gone.
	rollbackTimeout = 2 * time.Second
)

// readSettings are those of a manifest's read. JIT compiles for longer than
// these plain expressions take to run, and a plan made for other bounds is a
// wrong one. In the index's order keys flow at once; a sort keeps all of them,
// on disk, before the first one comes. At its default price of a random page
// the planner sorts even what memory holds; at this one it still sorts a table
// that is far larger than effective_cache_size.
var readSettings = []string{
	fmt.Sprintf("SET LOCAL statement_timeout = %d", MaxReadTime.Milliseconds()),
	fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", maxIdle.Milliseconds()),
	"SET LOCAL jit = off", "SET LOCAL plan_cache_mode = force_custom_plan", "SET LOCAL random_page_cost = 1.1",
}

// partSettings are those of reading parts, whose order does not matter: a
// bitmap finds rows in the order in which they lie, each page of the table
// once. It is one connection's work, and fits into memory.
var partSettings = []string{
	"SET LOCAL enable_indexscan = off", "SET LOCAL max_parallel_workers_per_gather = 0", "SET LOCAL work_mem = '16MB'",
}

// Snapshot is one consistent read of a range: REPEATABLE READ, READ ONLY. It is
// a connection of its own, and lends its view to further ones.
type Snapshot struct {
	source *Source
	rng    Range
	tx     pgx.Tx
	window time.Time
}

// Begin opens a snapshot of a range; Close ends it.
func (s *Source) Begin(ctx context.Context, r Range) (_ *Snapshot, err error) {
	p := &Snapshot{source: s, rng: r}
	if p.tx, err = s.begin(ctx, ""); err != nil {
		return nil, err
	}
	// Before the snapshot is taken, which the lock does not do: what truncates or
	// rewrites a table shows an older snapshot none of its rows once it has committed.
	if s.sql.lock != "" {
		_, err = p.tx.Exec(ctx, s.sql.lock)
	}
	var standby bool
	if err == nil {
		err = p.tx.QueryRow(ctx, s.sql.identity).Scan(&p.window, &standby)
	}
	switch {
	case err != nil:
		err = fmt.Errorf("begin the read of the source: %w", err)
	case standby:
		err = errStandby()
	default:
		err = set(ctx, p.tx, readSettings)
	}
	if err != nil {
		p.Close(ctx)
		return nil, err
	}
	return p, nil
}

// begin opens a transaction, in another one's snapshot if it is named.
func (s *Source) begin(ctx context.Context, snapshot string) (pgx.Tx, error) {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("begin the read of the source: %w", err)
	}
	if snapshot == "" {
		return tx, nil
	}
	// The statement takes no parameter.
	if _, err = tx.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+snapshot+"'"); err != nil {
		rollback(ctx, tx)
		return nil, fmt.Errorf("join the read of the source: %w", err)
	}
	return tx, nil
}

func set(ctx context.Context, tx pgx.Tx, settings []string) error {
	for _, setting := range settings {
		if _, err := tx.Exec(ctx, setting); err != nil {
			return fmt.Errorf("set up the read of the source: %w", err)
		}
	}
	return nil
}

// rollback ends a transaction that wrote nothing; a connection that fails here
// is closed by the pool.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// WindowStart is when the snapshot's transaction began.
func (p *Snapshot) WindowStart() time.Time { return p.window }

// Close ends the snapshot. Readers that have joined it keep their view.
func (p *Snapshot) Close(ctx context.Context) { rollback(ctx, p.tx) }

func (p *Snapshot) count(ctx context.Context, limit int64) (int64, error) {
	sql, args := p.source.pick(p.rng, p.source.sql.count, p.source.sql.countOne)
	var n int64
	if err := p.tx.QueryRow(ctx, sql, append(args, limit)...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the rows of the source: %w", err)
	}
	return n, nil
}

// notReplaced refuses a table that could not be locked before the snapshot, and
// was truncated or rewritten between the two: the snapshot sees none of its rows.
// Counting has locked it by now.
func (p *Snapshot) notReplaced(ctx context.Context) error {
	if p.source.sql.lock != "" {
		return nil
	}
	var replaced bool
	if err := p.tx.QueryRow(ctx, p.source.sql.replaced, p.source.table.Ident).Scan(&replaced); err != nil {
		return fmt.Errorf("look whether the source was replaced: %w", err)
	}
	if replaced {
		return fault.New(fault.Unavailable, "the source was replaced while its read began; it is read again later")
	}
	return nil
}

// Export gives the snapshot's name to those who join it.
func (p *Snapshot) Export(ctx context.Context) (name string, err error) {
	if err := p.tx.QueryRow(ctx, "SELECT pg_export_snapshot()").Scan(&name); err != nil {
		return "", fmt.Errorf("export the snapshot of the source: %w", err)
	}
	if strings.Trim(name, "0123456789ABCDEFabcdef-") != "" {
		return "", fmt.Errorf("export the snapshot of the source: the server gave a name of another form")
	}
	return name, nil
}

// Reader reads parts of a snapshot on one connection, one after another.
type Reader struct {
	*Snapshot

	own bool // the connection is the reader's
	tx  pgx.Tx
	set bool
}

// Reader is the one on the snapshot's own connection.
func (p *Snapshot) Reader() *Reader { return &Reader{Snapshot: p, tx: p.tx} }

// Join makes a reader with a connection of its own, for as long as the
// exporting snapshot is open; it waits where the pool has none to give.
func (p *Snapshot) Join(ctx context.Context, name string) (*Reader, error) {
	tx, err := p.source.begin(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := set(ctx, tx, readSettings); err != nil {
		rollback(ctx, tx)
		return nil, err
	}
	return &Reader{Snapshot: p, tx: tx, own: true}, nil
}

// Leave ends a reader that joined.
func (r *Reader) Leave(ctx context.Context) {
	if r.own {
		rollback(ctx, r.tx)
	}
}

// Read calls fn for every row of a part, in no order. fn must not keep the row:
// row and content are overwritten by the next one. A key outside of the part,
// or in a spelling that is none, is ORDER_VIOLATION. Content longer than
// canon.MaxBytes comes as a text that is no JSON. Where fn fails, the rest is
// not read, which may cost the reader its connection.
func (r *Reader) Read(ctx context.Context, part Part, fn func(*Row) error) error {
	if err := r.use(ctx, partSettings); err != nil {
		return err
	}
	sql, args := r.part(part, false)
	return r.stream(ctx, sql, args, func(row *Row) error {
		if row.Key <= part.After && part.After != "" || row.Key > part.UpTo && part.UpTo != "" {
			return fault.New(fault.OrderViolation, "the source gave a key outside of the range it was asked for")
		}
		return fn(row)
	})
}

// ReadOrdered is Read for all rows, in strictly ascending key order; keys out
// of order, or one key twice, are ORDER_VIOLATION.
func (r *Reader) ReadOrdered(ctx context.Context, fn func(*Row) error) error {
	previous, first := "", true
	sql, args := r.part(Part{}, true)
	return r.stream(ctx, sql, args, func(row *Row) error {
		if !first && row.Key <= previous {
			return errOrder()
		}
		previous, first = row.Key, false
		return fn(row)
	})
}

// use sets the reader up for its way of reading; it has one.
func (r *Reader) use(ctx context.Context, settings []string) error {
	if r.set {
		return nil
	}
	r.set = true
	return set(ctx, r.tx, settings)
}

func (r *Reader) stream(ctx context.Context, sql string, args []any, fn func(*Row) error) error {
	reading, enough := context.WithCancel(ctx)
	defer enough()
	rows, err := r.tx.Query(reading, sql, args...)
	if err != nil {
		return fmt.Errorf("read the source: %w", err)
	}
	defer func() {
		enough() // or closing would read all that is left
		rows.Close()
	}()
	var row Row
	for rows.Next() {
		raw := rows.RawValues()
		if err := r.source.scanRow(&row, raw, raw[contentColumn]); err != nil {
			return err
		}
		if err := fn(&row); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the source: %w", err)
	}
	return nil
}
