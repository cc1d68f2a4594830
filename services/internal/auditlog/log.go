// Package auditlog seals and shows the audit log of a service. Both services
// have one, in their own database and with the same tables.
//
// Rows are written by those who do what they tell, in the same transaction.
// This package only adds: the seals that chain them, and one row a minute for
// what was refused to whom. It promises that no row is skipped by a seal and
// that none can come behind one.
package auditlog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/audit"
)

// Query filters a list of rows; zero values do not.
type Query struct {
	Actor, Action, Object string
	From, Before          time.Time
	OldestFirst           bool
	After                 int64 // the last id of the page before
	Limit                 int
}

// List lists rows by id.
func List(ctx context.Context, pool *pgxpool.Pool, q Query) ([]audit.Row, error) {
	const newest, oldest = `($6 = 0 OR audit_id < $6) ORDER BY audit_id DESC`, `audit_id > $6 ORDER BY audit_id`
	order := newest
	if q.OldestFirst {
		order = oldest
	}
	rows, err := pool.Query(ctx, `SELECT audit_id, at, actor, action, object, decision, reason FROM lockstep.audit
		WHERE ($1 = '' OR actor = $1) AND ($2 = '' OR action = $2) AND ($3 = '' OR object = $3)
		AND ($4::timestamptz IS NULL OR at >= $4) AND ($5::timestamptz IS NULL OR at < $5) AND `+order+` LIMIT $7`,
		q.Actor, q.Action, q.Object, orNull(q.From), orNull(q.Before), q.After, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list audit rows: %w", err)
	}
	out, err := pgx.CollectRows(rows, rowToRow)
	if err != nil {
		return nil, fmt.Errorf("list audit rows: %w", err)
	}
	return out, nil
}

func rowToRow(row pgx.CollectableRow) (r audit.Row, err error) {
	err = row.Scan(&r.ID, &r.At, &r.Actor, &r.Action, &r.Object, &r.Decision, &r.Reason)
	return r, err
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Stored is a seal as it stands in the database.
type Stored struct {
	Seal            int64
	FirstID, LastID int64
	Rows            int
	Previous, Hash  []byte
	Head            []byte // the envelope, serialised
	SealedAt        time.Time
}

// Seals lists seals by number.
func Seals(ctx context.Context, pool *pgxpool.Pool, oldestFirst bool, after int64, limit int) ([]Stored, error) {
	order := `($1 = 0 OR seal_id < $1) ORDER BY seal_id DESC`
	if oldestFirst {
		order = `seal_id > $1 ORDER BY seal_id`
	}
	rows, err := pool.Query(ctx, `SELECT seal_id, first_id, last_id, row_count, previous, hash, head, sealed_at FROM lockstep.audit_seal
		WHERE `+order+` LIMIT $2`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list audit seals: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Stored, err error) {
		err = row.Scan(&s.Seal, &s.FirstID, &s.LastID, &s.Rows, &s.Previous, &s.Hash, &s.Head, &s.SealedAt)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("list audit seals: %w", err)
	}
	return out, nil
}

// Tail is what no seal covers yet.
type Tail struct {
	Rows   int64
	Oldest time.Duration // 0 where there is none
}

// Unsealed looks at the tail.
func Unsealed(ctx context.Context, pool *pgxpool.Pool) (t Tail, err error) {
	var seconds float64
	err = pool.QueryRow(ctx, `SELECT count(*), coalesce(extract(epoch FROM now() - min(at)), 0)::float8 FROM lockstep.audit
		WHERE audit_id > (SELECT coalesce(max(last_id), 0) FROM lockstep.audit_seal)`).Scan(&t.Rows, &seconds)
	if err != nil {
		return Tail{}, fmt.Errorf("look at the unsealed audit rows: %w", err)
	}
	t.Oldest = time.Duration(seconds * float64(time.Second))
	return t, nil
}
