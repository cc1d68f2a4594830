// Package pg opens PostgreSQL pools with bounds on everything, and runs
// transactions so that their outcome is never guessed: a conflict is retried
// from the start, and an answer that was lost at COMMIT is reported as unknown.
//
// It never logs, never builds SQL, and takes no session advisory lock outside
// migrations.
package pg

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// PoolConfig says how a pool reaches its database. A zero bound takes its default.
type PoolConfig struct {
	// DSN is a connection string or URL as libpq takes it.
	DSN string
	// MaxConns is the most connections held at once; 10 by default.
	MaxConns int32
	// StatementTimeout ends a statement that runs longer; 15 s by default.
	StatementTimeout time.Duration
	// LockTimeout ends a wait for a lock; 5 s by default.
	LockTimeout time.Duration
	// IdleInTxTimeout ends a session that holds a transaction open and does nothing; 15 s by default.
	IdleInTxTimeout time.Duration
	// AppName is what pg_stat_activity shows.
	AppName string
}

const (
	defaultMaxConns         = 10
	defaultStatementTimeout = 15 * time.Second // half of the 30 s a call may take
	defaultLockTimeout      = 5 * time.Second
	defaultIdleInTxTimeout  = 15 * time.Second
	connectTimeout          = 5 * time.Second
	maxConnLifetime         = 30 * time.Minute // a failover or a changed role is noticed in the end
)

// Open makes a pool. It does not connect: a service starts, and reports itself
// not ready, while its database is away.
func Open(ctx context.Context, c PoolConfig) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		return nil, fmt.Errorf("parse database DSN: %w", err)
	}
	config.MaxConns = or(c.MaxConns, defaultMaxConns)
	config.MaxConnLifetime = maxConnLifetime
	config.MaxConnLifetimeJitter = maxConnLifetime / 10
	config.ConnConfig.ConnectTimeout = connectTimeout
	params := config.ConnConfig.RuntimeParams
	params["statement_timeout"] = millis(or(c.StatementTimeout, defaultStatementTimeout))
	params["lock_timeout"] = millis(or(c.LockTimeout, defaultLockTimeout))
	params["idle_in_transaction_session_timeout"] = millis(or(c.IdleInTxTimeout, defaultIdleInTxTimeout))
	// One spelling of times and floats, whatever the server's own settings say.
	params["timezone"] = "UTC"
	if c.AppName != "" {
		params["application_name"] = c.AppName
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open database pool: %w", err)
	}
	return pool, nil
}

func or[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
