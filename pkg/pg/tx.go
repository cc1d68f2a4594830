package pg

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	maxConflictRetries = 5
	firstConflictPause = 5 * time.Millisecond // doubles each time, so at most 0.3 s in all
	commitTimeout      = 5 * time.Second      // half of what a shutdown may take
	rollbackTimeout    = 2 * time.Second
)

// InTx runs fn in a READ COMMITTED transaction; see InTxOptions.
func InTx(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error {
	return InTxOptions(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, fn)
}

// InTxOptions runs fn in a transaction and commits it if fn returns nil.
//
// A serialization failure or a deadlock runs the whole of fn again, at most five
// times, after a jittered pause: fn must have no effect outside its transaction.
// Any other error rolls back and is returned as it is. A lost answer to COMMIT
// is ErrUnknownCommit; every other error means that nothing was committed.
//
// A context that ends before COMMIT is sent rolls back. Once it is sent, its
// answer is awaited for five seconds whatever the context says: giving up on it
// would only turn a known outcome into an unknown one.
func InTxOptions(ctx context.Context, pool *pgxpool.Pool, options pgx.TxOptions, fn func(pgx.Tx) error) error {
	pause := firstConflictPause
	for retry := 0; ; retry++ {
		err := once(ctx, pool, options, fn)
		if !isConflict(err) || retry == maxConflictRetries {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("retry transaction: %w", ctx.Err())
		case <-time.After(pause/2 + rand.N(pause)): //nolint:gosec // jitter needs no secrecy
		}
		pause *= 2
	}
}

func isConflict(err error) bool {
	if errors.Is(err, ErrUnknownCommit) {
		return false
	}
	code := Code(err)
	return code == codeSerializationFailure || code == codeDeadlockDetected
}

func once(ctx context.Context, pool *pgxpool.Pool, options pgx.TxOptions, fn func(pgx.Tx) error) error {
	tx, err := pool.BeginTx(ctx, options)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	// After a commit this does nothing; it also runs when fn panics.
	defer rollback(ctx, tx)
	if err := fn(tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before commit: %w", err)
	}
	return commit(ctx, tx)
}

func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	// A rollback that fails closes the connection, which rolls back too.
	_ = tx.Rollback(ctx)
}

func commit(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	err := tx.Commit(ctx)
	if err == nil || refusedCommit(err) {
		return wrapCommit(err)
	}
	return &UnknownCommitError{cause: err}
}

func wrapCommit(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("commit: %w", err)
}

// refusedCommit reports whether the transaction surely did not commit: COMMIT was
// never sent, was answered by ROLLBACK, or was answered by an error of the
// statement itself. A FATAL or PANIC may come after the commit was made durable.
func refusedCommit(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err) {
		return true
	}
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refused.SeverityUnlocalized == "ERROR" && refused.Code != codeCompletionUnknown
}
