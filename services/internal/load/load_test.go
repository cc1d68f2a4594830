package load_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/services/internal/load"
)

func TestRate(t *testing.T) {
	t.Run("none bounds nothing", func(t *testing.T) {
		r := load.NewRate(0)
		if waited, err := r.Take(t.Context(), 1<<40); waited != 0 || err != nil || r.Least(1<<40) != 0 {
			t.Errorf("waited %s, %v", waited, err)
		}
	})
	t.Run("holds over all takers, after a burst", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := load.NewRate(500)
			if waited, err := r.Take(t.Context(), 1000); waited != 0 || err != nil {
				t.Errorf("the burst waited %s, %v", waited, err)
			}
			start := time.Now()
			done := make(chan error)
			for range 4 {
				go func() {
					_, err := r.Take(t.Context(), 5000)
					done <- err
				}()
			}
			for range 4 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			if took := time.Since(start).Round(time.Second); took != 40*time.Second {
				t.Errorf("20 000 rows at 500 a second took %s", took)
			}
		})
	})
	t.Run("refuses at once what no deadline leaves room for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := load.NewRate(100)
			_, err := r.Take(t.Context(), 1000)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			if _, err := r.Take(ctx, 500); fault.ReasonOf(err) != fault.RateLimited {
				t.Errorf("got %v", err)
			}
			// What was refused took nothing away.
			if waited, err := r.Take(ctx, 300); waited.Round(time.Millisecond) != 3*time.Second || err != nil {
				t.Errorf("waited %s, %v", waited, err)
			}
		})
	})
	t.Run("a caller that goes gives its place back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := load.NewRate(100)
			if _, err := r.Take(t.Context(), 1000); err != nil {
				t.Fatal(err)
			}
			gone := errors.New("gone")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(gone) })
			if _, err := r.Take(ctx, 500); !errors.Is(err, gone) {
				t.Errorf("got %v", err)
			}
			if waited, _ := r.Take(t.Context(), 200); waited.Round(time.Millisecond) != time.Second {
				t.Errorf("the next one waited %s", waited)
			}
		})
	})
	t.Run("knows what a read takes at least", func(t *testing.T) {
		if least := load.NewRate(1000).Least(61_000); least != time.Minute {
			t.Errorf("%s", least)
		}
	})
	for rows, ok := range map[int]bool{0: true, 100: true, 1_000_000: true, 99: false, -1: false} {
		if err := load.CheckRate(rows); (err == nil) != ok {
			t.Errorf("%d: %v", rows, err)
		}
	}
}

func database(t *testing.T, app string) *pgxpool.Pool {
	t.Helper()
	return open(t, pgtest.Empty(t), app)
}

func open(t *testing.T, dsn, app string) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), pg.PoolConfig{DSN: dsn, AppName: app})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func TestGuard(t *testing.T) {
	t.Run("looks at nothing unless told to", func(t *testing.T) {
		g, err := load.Open(t.Context(), nil, load.Defaults())
		if g != nil || err != nil || g.Busy(t.Context()) != "" {
			t.Errorf("%v, %v", g, err)
		}
	})
	t.Run("a query decides, and a look holds for the interval", func(t *testing.T) {
		pool := database(t, "lockstep-test")
		exec(t, pool, `CREATE TABLE busy AS SELECT false AS state`)
		g, err := load.Open(t.Context(), pool, load.Config{Query: `SELECT state FROM busy`, Interval: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		load.SetClock(g, func() time.Time { return now })
		if why := g.Busy(t.Context()); why != "" {
			t.Errorf("busy: %s", why)
		}
		exec(t, pool, `UPDATE busy SET state = true`)
		if why := g.Busy(t.Context()); why != "" {
			t.Errorf("looked again within the interval: %s", why)
		}
		now = now.Add(time.Minute)
		if why := g.Busy(t.Context()); why != "the guard's query says so" {
			t.Errorf("busy: %q", why)
		}
		exec(t, pool, `DROP TABLE busy`)
		now = now.Add(time.Minute)
		if why := g.Busy(t.Context()); why != "the database does not say how busy it is" {
			t.Errorf("a look that fails: %q", why)
		}
	})
	t.Run("counts the statements of others, and none of Lockstep's", func(t *testing.T) {
		pool := database(t, "lockstep-test")
		dsn := pool.Config().ConnString()
		host, ours := open(t, dsn, "host"), open(t, dsn, "lockstep-other")
		g, err := load.Open(t.Context(), pool, load.Config{MaxActive: 1, Interval: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		exec(t, pool, `CREATE TABLE gate ()`)
		now := time.Now()
		load.SetClock(g, func() time.Time { now = now.Add(time.Minute); return now })
		hold, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer hold.Rollback(t.Context()) //nolint:errcheck // it holds a lock only
		if _, err := hold.Exec(t.Context(), `LOCK TABLE gate`); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		wait := func(pool *pgxpool.Pool, waiting int) {
			go pool.Exec(ctx, `TABLE gate`) //nolint:errcheck // it waits until the test ends
			for n := 0; n < waiting; {
				if err := hold.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted`).Scan(&n); err != nil {
					t.Fatal(err)
				}
			}
		}
		wait(host, 1)
		wait(ours, 2)
		wait(ours, 3)
		if why := g.Busy(t.Context()); why != "" {
			t.Errorf("one session of others: %s", why)
		}
		wait(host, 4)
		if why := g.Busy(t.Context()); why != "more than 1 sessions of others are active" {
			t.Errorf("two sessions of others: %q", why)
		}
	})
	t.Run("looks at the standbys", func(t *testing.T) {
		pool := database(t, "lockstep-test")
		g, err := load.Open(t.Context(), pool, load.Config{MaxReplicationLag: time.Second, Interval: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if why := g.Busy(t.Context()); why != "" {
			t.Errorf("without a standby: %s", why)
		}
		// A view of the same name, found first, stands for a standby that is late.
		config := pool.Config().Copy()
		exec(t, pool, `CREATE SCHEMA fake; CREATE VIEW fake.pg_stat_replication AS SELECT interval '2 s' AS replay_lag`)
		config.ConnConfig.RuntimeParams["search_path"] = "fake, pg_catalog"
		late, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(late.Close)
		if g, err = load.Open(t.Context(), late, load.Config{MaxReplicationLag: time.Second, Interval: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if why := g.Busy(t.Context()); why != "a standby is more than 1s behind" {
			t.Errorf("a late standby: %q", why)
		}
	})
	t.Run("does not start with what can never be answered", func(t *testing.T) {
		pool := database(t, "lockstep-test")
		for _, query := range []string{`SELECT missing FROM nowhere`, `SELECT 'perhaps'`, `SELECT NULL::boolean`, `CREATE TABLE made ()`} {
			if _, err := load.Open(t.Context(), pool, load.Config{Query: query, Interval: time.Minute}); err == nil {
				t.Errorf("%s: no error", query)
			}
		}
		exec(t, pool, `CREATE ROLE lockstep_load_test`)
		defer exec(t, pool, `DROP ROLE lockstep_load_test`)
		config := pool.Config().Copy()
		config.ConnConfig.RuntimeParams["role"] = "lockstep_load_test"
		blind, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer blind.Close()
		if _, err := load.Open(t.Context(), blind, load.Config{MaxActive: 1, Interval: time.Minute}); err == nil || !strings.Contains(err.Error(), "pg_read_all_stats") {
			t.Errorf("a role that sees no sessions: %v", err)
		}
	})
	t.Run("settings", func(t *testing.T) {
		for text, c := range map[string]load.Config{
			"":                    {Interval: 5 * time.Second},
			"max_replication_lag": {Interval: time.Second, MaxReplicationLag: -1},
			"max_active":          {Interval: time.Second, MaxActive: -1},
			"interval":            {},
		} {
			err := c.Validate()
			if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v", text, err)
			}
		}
	})
}
