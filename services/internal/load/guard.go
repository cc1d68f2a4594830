// Package load keeps a service from pressing on a database that others use: a
// Rate bounds the rows it reads in a second, a Guard says when it should not
// read at all for now.
//
// It promises that a guard asks rarely, however many workers ask it, that it
// needs no more than the right to see other sessions, and that one which can't
// be asked counts as busy. It stops nothing itself: its callers decide where
// they can wait, and show RATE_LIMITED or LOAD_GUARD while they do.
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/config"
)

// Config of a guard; one without any bound is none.
type Config struct {
	// MaxReplicationLag of the farthest standby; 0 looks at none.
	MaxReplicationLag time.Duration `koanf:"max_replication_lag"`
	// MaxActive sessions of others that run a statement in this database; 0 looks at none.
	MaxActive int `koanf:"max_active"`
	// Query is a statement of one boolean: true where the database has enough to
	// do. It runs read-only.
	Query string `koanf:"query"`
	// Interval between two looks, which is also how long a look holds.
	Interval time.Duration `koanf:"interval"`
}

// Defaults look at nothing.
func Defaults() Config { return Config{Interval: 5 * time.Second} }

// Enabled says whether there is anything to look at.
func (c Config) Enabled() bool {
	return c.MaxReplicationLag > 0 || c.MaxActive > 0 || c.Query != ""
}

const (
	leastInterval = 100 * time.Millisecond // a look is a statement; ten a second are no load
	mostInterval  = time.Minute            // what waits should see an end
	// lookTimeout: a database that does not answer so little in time is busy.
	lookTimeout = 3 * time.Second
)

// Validate tells everything that is wrong.
func (c Config) Validate() error {
	var p config.Problems
	p.Check(c.MaxReplicationLag >= 0, "max_replication_lag is not negative; 0 looks at no standby")
	p.Check(c.MaxActive >= 0, "max_active is not negative; 0 counts no sessions")
	p.Check(c.Interval >= leastInterval && c.Interval <= mostInterval, "interval is %s to %s, not %s", leastInterval, mostInterval, c.Interval)
	return p.Err()
}

// Guard looks at one database. A nil Guard finds nothing busy.
type Guard struct {
	pool *pgxpool.Pool
	c    Config
	now  func() time.Time

	mu     sync.Mutex
	looked time.Time
	why    string
}

// Open makes a guard, nil where the settings look at nothing, and tries every
// look once: what can never be answered stops the start.
func Open(ctx context.Context, pool *pgxpool.Pool, c Config) (*Guard, error) {
	if !c.Enabled() {
		return nil, nil //nolint:nilnil // a nil Guard is a guard
	}
	g := &Guard{pool: pool, c: c, now: time.Now}
	if c.MaxReplicationLag > 0 || c.MaxActive > 0 {
		var may bool
		if err := pool.QueryRow(ctx, `SELECT pg_has_role('pg_read_all_stats', 'USAGE')`).Scan(&may); err != nil {
			return nil, fmt.Errorf("load guard: %w", err)
		}
		if !may {
			return nil, errors.New("load guard: max_replication_lag and max_active need a role that sees other sessions: grant it pg_read_all_stats")
		}
	}
	if _, err := g.look(ctx); err != nil {
		return nil, fmt.Errorf("load guard: %w", err)
	}
	return g, nil
}

// Interval is how long to wait before asking again.
func (g *Guard) Interval() time.Duration { return g.c.Interval }

// Busy says in words why nothing should be read for now; "" where something may.
func (g *Guard) Busy(ctx context.Context) (why string) {
	if g == nil {
		return ""
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); g.looked.IsZero() || now.Sub(g.looked) >= g.c.Interval {
		why, err := g.look(ctx)
		if ctx.Err() != nil {
			return "the look was cut off" // of this caller only; not kept
		}
		if err != nil {
			why = "the database does not say how busy it is"
		}
		g.looked, g.why = now, why
	}
	return g.why
}

// The looks. Lockstep's own sessions, in other processes too, are not others'.
const (
	lagSQL    = `SELECT coalesce(max(extract(epoch FROM replay_lag)), 0)::float8 FROM pg_stat_replication`
	activeSQL = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
		AND state = 'active' AND pid <> pg_backend_pid() AND application_name NOT LIKE 'lockstep-%'`
)

func (g *Guard) look(ctx context.Context) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err = pgx.BeginTxFunc(ctx, g.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		for _, look := range []func(context.Context, pgx.Tx) (string, error){g.lag, g.active, g.query} {
			if why, err = look(ctx, tx); why != "" || err != nil {
				return err
			}
		}
		return nil
	})
	return why, err
}

func (g *Guard) lag(ctx context.Context, tx pgx.Tx) (string, error) {
	if g.c.MaxReplicationLag == 0 {
		return "", nil
	}
	var seconds float64
	if err := tx.QueryRow(ctx, lagSQL).Scan(&seconds); err != nil {
		return "", fmt.Errorf("read the replication lag: %w", err)
	}
	if lag := time.Duration(seconds * float64(time.Second)); lag > g.c.MaxReplicationLag {
		return fmt.Sprintf("a standby is more than %s behind", g.c.MaxReplicationLag), nil
	}
	return "", nil
}

func (g *Guard) active(ctx context.Context, tx pgx.Tx) (string, error) {
	if g.c.MaxActive == 0 {
		return "", nil
	}
	var n int
	if err := tx.QueryRow(ctx, activeSQL).Scan(&n); err != nil {
		return "", fmt.Errorf("count the active sessions: %w", err)
	}
	if n > g.c.MaxActive {
		return fmt.Sprintf("more than %d sessions of others are active", g.c.MaxActive), nil
	}
	return "", nil
}

func (g *Guard) query(ctx context.Context, tx pgx.Tx) (string, error) {
	if g.c.Query == "" {
		return "", nil
	}
	var busy bool
	if err := tx.QueryRow(ctx, g.c.Query).Scan(&busy); err != nil {
		return "", fmt.Errorf("ask the guard's query: %w", err)
	}
	if busy {
		return "the guard's query says so", nil
	}
	return "", nil
}
