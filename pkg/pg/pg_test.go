package pg_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
)

// setup opens a pool on a database with one table of one row, id 1 and n 0, and another, id 2.
func setup(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := open(t, pg.PoolConfig{DSN: pgtest.Empty(t)})
	exec(t, pool, `CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL, twin int UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	exec(t, pool, `INSERT INTO counter VALUES (1, 0, 1), (2, 0, 2)`)
	return pool
}

func open(t *testing.T, config pg.PoolConfig) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), config)
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

func number(t *testing.T, pool *pgxpool.Pool, sql string) int {
	t.Helper()
	var n int
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const sum = `SELECT sum(n) FROM counter`

func TestOpenSetsTheBoundsOfEverySession(t *testing.T) {
	pool := open(t, pg.PoolConfig{
		DSN: pgtest.Empty(t), StatementTimeout: 1500 * time.Millisecond, LockTimeout: 250 * time.Millisecond,
		IdleInTxTimeout: 3 * time.Second, AppName: "lockstep-test", MaxConns: 3,
	})
	for setting, want := range map[string]string{
		"statement_timeout": "1500ms", "lock_timeout": "250ms", "idle_in_transaction_session_timeout": "3s",
		"application_name": "lockstep-test", "TimeZone": "UTC",
	} {
		var got string
		if err := pool.QueryRow(t.Context(), `SELECT current_setting($1)`, setting).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s = %s, want %s", setting, got, want)
		}
	}
	if got := pool.Config().MaxConns; got != 3 {
		t.Errorf("MaxConns = %d, want 3", got)
	}
	_, err := pool.Exec(t.Context(), `SELECT pg_sleep(30)`)
	if got := pg.Code(err); got != "57014" {
		t.Errorf("a statement over its time gives %q (%v), want 57014", got, err)
	}
}

func TestOpenDoesNotNeedTheDatabaseToBeThere(t *testing.T) {
	pool := open(t, pg.PoolConfig{DSN: "postgres://postgres@/nothing?host=/nonexistent"})
	if err := pool.Ping(t.Context()); err == nil {
		t.Error("a database that is not there answered")
	}
}

func TestOpenRefusesABrokenDSNWithoutShowingThePassword(t *testing.T) {
	_, err := pg.Open(t.Context(), pg.PoolConfig{DSN: "postgres://u:hunter2@host:notaport/db"})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v, want an error without the password", err)
	}
}

func TestInTx(t *testing.T) {
	t.Run("commits_what_the_function_did", func(t *testing.T) {
		pool := setup(t)
		err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `UPDATE counter SET n = 5 WHERE id = 1`)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := number(t, pool, sum); got != 5 {
			t.Errorf("sum = %d, want 5", got)
		}
	})
	t.Run("runs_in_read_committed", func(t *testing.T) {
		pool := setup(t)
		var level string
		err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), `SELECT current_setting('transaction_isolation')`).Scan(&level)
		})
		if err != nil || level != "read committed" {
			t.Errorf("level %q, error %v", level, err)
		}
	})
	t.Run("rolls_back_and_returns_the_function's_error_as_it_is", func(t *testing.T) {
		pool := setup(t)
		mine := errors.New("mine")
		err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `UPDATE counter SET n = 5`); err != nil {
				return err
			}
			return mine
		})
		if err != mine { //nolint:errorlint // it must be the very error
			t.Errorf("got %v, want the function's own error", err)
		}
		if got := number(t, pool, sum); got != 0 {
			t.Errorf("sum = %d, want 0", got)
		}
	})
	t.Run("does_not_retry_a_constraint_error", func(t *testing.T) {
		pool := setup(t)
		runs := 0
		err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			runs++
			_, err := tx.Exec(t.Context(), `INSERT INTO counter VALUES (1, 0, 9)`)
			return err
		})
		if constraint, ok := pg.IsUniqueViolation(err); !ok || constraint != "counter_pkey" {
			t.Errorf("got %v, want a violation of counter_pkey", err)
		}
		if runs != 1 {
			t.Errorf("the function ran %d times, want once", runs)
		}
	})
	t.Run("reports_a_constraint_that_refuses_the_commit_as_refused", func(t *testing.T) {
		pool := setup(t)
		err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `UPDATE counter SET twin = 1`)
			return err
		})
		if constraint, ok := pg.IsUniqueViolation(err); !ok || constraint != "counter_twin_key" {
			t.Errorf("got %v, want a violation of counter_twin_key", err)
		}
		if errors.Is(err, pg.ErrUnknownCommit) {
			t.Error("a refusal by the server is called unknown")
		}
	})
	t.Run("reports_a_swallowed_statement_error", func(t *testing.T) {
		pool := setup(t)
		err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			_, _ = tx.Exec(t.Context(), `SELECT nothing FROM nowhere`)
			return nil
		})
		if !errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pg.ErrUnknownCommit) {
			t.Errorf("got %v, want the known outcome that it rolled back", err)
		}
	})
	t.Run("rolls_back_when_the_function_panics", func(t *testing.T) {
		pool := setup(t)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), `UPDATE counter SET n = 5`); err != nil {
					return err
				}
				panic("mine")
			})
		}()
		if got := number(t, pool, sum); got != 0 {
			t.Errorf("sum = %d, want 0", got)
		}
		if got := pool.Stat().AcquiredConns(); got != 0 {
			t.Errorf("%d connections are still held", got)
		}
	})
}

func TestConflictsAreRetriedFromTheStart(t *testing.T) {
	t.Run("serialization_failure", func(t *testing.T) {
		pool := setup(t)
		runs := 0
		err := pg.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			runs++
			var n int
			if err := tx.QueryRow(t.Context(), `SELECT n FROM counter WHERE id = 1`).Scan(&n); err != nil {
				return err
			}
			if runs <= 2 { // somebody else is faster, twice
				exec(t, pool, `UPDATE counter SET n = n + 10 WHERE id = 1`)
			}
			_, err := tx.Exec(t.Context(), `UPDATE counter SET n = $1 WHERE id = 1`, n+1)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := number(t, pool, sum); runs != 3 || got != 21 {
			t.Errorf("%d runs and sum %d, want 3 runs and 21", runs, got)
		}
	})
	t.Run("at_most_five_times", func(t *testing.T) {
		pool := setup(t)
		runs := 0
		err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			runs++
			_, err := tx.Exec(t.Context(), `DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$`)
			return err
		})
		if runs != 6 || pg.Code(err) != "40001" {
			t.Errorf("%d runs and %v, want the first and five more, and 40001", runs, err)
		}
	})
	t.Run("deadlock", func(t *testing.T) {
		pool := setup(t)
		firstHeld, secondHeld := make(chan struct{}), make(chan struct{})
		var runs [2]int
		cross := func(who, first, second int, mine, other chan struct{}) error {
			return pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
				runs[who]++
				if _, err := tx.Exec(t.Context(), `UPDATE counter SET n = n + 1 WHERE id = $1`, first); err != nil {
					return err
				}
				if runs[who] == 1 {
					close(mine)
					<-other
				}
				_, err := tx.Exec(t.Context(), `UPDATE counter SET n = n + 1 WHERE id = $1`, second)
				return err
			})
		}
		done := make(chan error)
		go func() { done <- cross(0, 1, 2, firstHeld, secondHeld) }()
		err := cross(1, 2, 1, secondHeld, firstHeld)
		if err := errors.Join(err, <-done); err != nil {
			t.Fatal(err)
		}
		if got := number(t, pool, sum); got != 4 || runs[0]+runs[1] != 3 {
			t.Errorf("sum %d after %v runs, want 4 after three", got, runs)
		}
	})
	t.Run("not_past_the_end_of_the_context", func(t *testing.T) {
		pool := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		runs := 0
		err := pg.InTx(ctx, pool, func(tx pgx.Tx) error {
			runs++
			_, err := tx.Exec(t.Context(), `DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40P01'; END $$`)
			cancel()
			return err
		})
		if runs != 1 || !errors.Is(err, context.Canceled) {
			t.Errorf("%d runs and %v, want one and context.Canceled", runs, err)
		}
	})
}

func TestAContextThatEndsBeforeTheCommitRollsBack(t *testing.T) {
	pool := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := pg.InTx(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE counter SET n = 5`)
		cancel()
		return err
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, pg.ErrUnknownCommit) {
		t.Errorf("got %v, want context.Canceled and a known outcome", err)
	}
	if got := number(t, pool, sum); got != 0 {
		t.Errorf("sum = %d, want 0", got)
	}
}

func TestMigrate(t *testing.T) {
	files := fstest.MapFS{
		"things/0001_one.up.sql":      {Data: []byte(`CREATE TABLE one (id int);`)},
		"things/0001_one.down.sql":    {Data: []byte(`DROP TABLE one;`)},
		"things/0002_broken.up.sql":   {Data: []byte(`CREATE TABLE two (id int); SELECT nothing FROM nowhere;`)},
		"things/0002_broken.down.sql": {Data: []byte(`DROP TABLE two;`)},
	}
	t.Run("a_broken_one_leaves_the_ones_before_it_and_nothing_of_its_own", func(t *testing.T) {
		dsn := pgtest.Empty(t)
		if err := pg.Migrate(t.Context(), dsn, files, "things", "versions"); err == nil {
			t.Fatal("the broken migration was accepted")
		}
		pool := open(t, pg.PoolConfig{DSN: dsn})
		if got := number(t, pool, `SELECT count(*) FROM pg_tables WHERE tablename IN ('one', 'two')`); got != 1 {
			t.Errorf("%d of the tables are there, want the first alone", got)
		}
	})
	t.Run("an_unreachable_database_is_told_in_time", func(t *testing.T) {
		if err := pg.Migrate(t.Context(), "postgres://postgres@/nothing?host=/nonexistent", files, "things", "versions"); err == nil {
			t.Error("a database that is not there was migrated")
		}
	})
	t.Run("two_at_once_do_it_once", func(t *testing.T) {
		dsn := pgtest.Empty(t)
		good := fstest.MapFS{"things/0001_one.up.sql": files["things/0001_one.up.sql"], "things/0001_one.down.sql": files["things/0001_one.down.sql"]}
		done := make(chan error, 4)
		for range cap(done) {
			go func() { done <- pg.Migrate(t.Context(), dsn, good, "things", "versions") }()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}
