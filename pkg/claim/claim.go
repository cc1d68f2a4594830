// Package claim is the one way in which a worker takes a row, keeps it, writes
// under it and lets it go.
//
// The clock decides who may try; the token decides whose write counts. Taking a
// row writes a fresh random token; every later write of that worker names the
// token in its condition and looks at the rows changed. No time value stands in
// an ownership condition, so two claims made in the same instant are still
// different claims and the older one is powerless. Leaving a claim by any way
// clears the token and the lease.
//
//	claimable ──Take──▶ held ──Renew, Write, Check──▶ held ──Leave──▶ (site's next state)
//	                      └──lease over──▶ Sweep ──▶ claimable again
//
// A site's table has the columns claim_token, claimed_by, claimed_at and
// lease_until; everything else about it is in its Site and in the fragments
// that the site's store passes. The package never decides what a state means.
package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrFenced: somebody else owns the row now. Drop the work; it is neither a
// failure nor a retry.
var ErrFenced = errors.New("fenced: the claim is no longer ours")

// DB is a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Site is a place where workers take rows. Its strings are SQL written in this
// repository, never input.
type Site struct {
	// Name of the site in logs and metrics.
	Name string
	// Table and its uuid key column.
	Table, ID string
	// Held is the condition, besides the token, of a row that a claim of this
	// site holds.
	Held string
}

// Claim is a held row. The token is a secret of the pair (row, worker): it is
// in no log, error, metric or answer; String hides it.
type Claim struct {
	ID    uuid.UUID
	token uuid.UUID
}

// String names the row only.
func (c Claim) String() string { return c.ID.String() }

// Taking is how a site takes its next row. Args of the fragments start at $4.
type Taking struct {
	Worker string
	Lease  time.Duration
	// Where is the condition of a claimable row; re-checked under the row lock.
	Where string
	// Order in which rows are tried: the partial index's order.
	Order string
	// Set is what else taking changes, without a trailing comma; may be empty.
	Set  string
	Args []any
}

// Take claims the first claimable row that nobody has locked. ok is false
// where there is none.
func (s Site) Take(ctx context.Context, db DB, t Taking) (c Claim, ok bool, err error) {
	token, err := uuid.NewRandom()
	if err != nil {
		return Claim{}, false, fmt.Errorf("make a claim token: %w", err)
	}
	set := ""
	if t.Set != "" {
		set = ", " + t.Set
	}
	sql := fmt.Sprintf(`WITH next AS MATERIALIZED (
		SELECT %[2]s AS taken FROM %[1]s WHERE %[3]s ORDER BY %[4]s LIMIT 1 FOR UPDATE SKIP LOCKED)
		UPDATE %[1]s SET claim_token = $1, claimed_by = $2, claimed_at = now(), lease_until = now() + $3::interval%[5]s
		FROM next WHERE %[2]s = next.taken RETURNING %[2]s`, s.Table, s.ID, t.Where, t.Order, set)
	args := append([]any{token, t.Worker, t.Lease}, t.Args...)
	err = db.QueryRow(ctx, sql, args...).Scan(&c.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return Claim{}, false, nil
	}
	if err != nil {
		return Claim{}, false, fmt.Errorf("take a %s claim: %w", s.Name, err)
	}
	c.token = token
	return c, true, nil
}

// Renew moves the lease; ErrFenced where the claim is not ours any more.
func (s Site) Renew(ctx context.Context, db DB, c Claim, lease time.Duration) error {
	return s.Write(ctx, db, c, "lease_until = now() + $3::interval", lease)
}

// Write changes the held row and keeps the claim. Args start at $3.
func (s Site) Write(ctx context.Context, db DB, c Claim, set string, args ...any) error {
	return s.update(ctx, db, c, set, "true", args)
}

// Leave changes the row and ends the claim with it. Args start at $3.
func (s Site) Leave(ctx context.Context, db DB, c Claim, set string, args ...any) error {
	return s.LeaveIf(ctx, db, c, set, "true", args...)
}

// LeaveIf is Leave under one more condition, such as the generation that was
// started. ErrFenced says that the token or the condition did not hold; the
// caller may then give the row back with Leave, which tells the two apart.
func (s Site) LeaveIf(ctx context.Context, db DB, c Claim, set, also string, args ...any) error {
	set += ", claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL"
	return s.update(ctx, db, c, set, also, args)
}

// Become changes the row, ends the claim and gives the row a lease without a
// token (the peer works now). Args start at $4; lease is $3.
func (s Site) Become(ctx context.Context, db DB, c Claim, set string, lease time.Duration, args ...any) error {
	set += ", claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = now() + $3::interval"
	return s.update(ctx, db, c, set, "true", append([]any{lease}, args...))
}

func (s Site) update(ctx context.Context, db DB, c Claim, set, also string, args []any) error {
	sql := fmt.Sprintf(`UPDATE %s SET %s WHERE %s = $1 AND claim_token = $2 AND (%s) AND (%s)`, s.Table, set, s.ID, s.Held, also)
	tag, err := db.Exec(ctx, sql, append([]any{c.ID, c.token}, args...)...)
	if err != nil {
		return fmt.Errorf("write under the %s claim of %s: %w", s.Name, c, err)
	}
	if tag.RowsAffected() != 1 {
		return s.Fenced()
	}
	return nil
}

// Check is the last statement before the commit of every transaction with an
// effect: it holds the row until the commit, so that a take-over can't slip
// between, and fails with ErrFenced where the claim is not ours any more.
func (s Site) Check(ctx context.Context, tx pgx.Tx, c Claim) error {
	var one int
	err := tx.QueryRow(ctx, fmt.Sprintf(`SELECT 1 FROM %s WHERE %s = $1 AND claim_token = $2 AND (%s) FOR SHARE`, s.Table, s.ID, s.Held),
		c.ID, c.token).Scan(&one)
	if errors.Is(err, pgx.ErrNoRows) {
		return s.Fenced()
	}
	if err != nil {
		return fmt.Errorf("check the %s claim of %s: %w", s.Name, c, err)
	}
	return nil
}

// Sweep turns at most limit expired claims into claimable rows by set and
// returns their ids. Args start at $2. It decides nothing else.
func (s Site) Sweep(ctx context.Context, db DB, set string, limit int, args ...any) ([]uuid.UUID, error) {
	sql := fmt.Sprintf(`WITH expired AS MATERIALIZED (
		SELECT %[2]s AS swept FROM %[1]s WHERE claim_token IS NOT NULL AND lease_until < now() AND (%[3]s)
		ORDER BY lease_until LIMIT $1 FOR UPDATE SKIP LOCKED)
		UPDATE %[1]s SET claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL, %[4]s
		FROM expired WHERE %[2]s = expired.swept RETURNING %[2]s`, s.Table, s.ID, s.Held, set)
	rows, err := db.Query(ctx, sql, append([]any{limit}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("sweep %s claims: %w", s.Name, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("sweep %s claims: %w", s.Name, err)
	}
	return ids, nil
}
