package pg_test

import (
	"errors"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
)

// behindRelay returns a DSN that goes through a relay, which cuts the connection
// around the next COMMIT after it was armed.
func behindRelay(t *testing.T, dsn string) (string, *atomic.Int64) {
	t.Helper()
	var armed atomic.Int64
	address := pgtest.Relay(t, pgtest.SocketFile(t), func() pgtest.Cut { return pgtest.Cut(armed.Swap(int64(pgtest.Carry))) })
	parsed, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	parsed.Host, parsed.RawQuery = address, "sslmode=disable"
	return parsed.String(), &armed
}

func TestALostAnswerToCommitIsUnknown(t *testing.T) {
	for cut, committed := range map[pgtest.Cut]int{pgtest.BeforeCommit: 0, pgtest.AfterCommit: 5} {
		t.Run(map[pgtest.Cut]string{pgtest.BeforeCommit: "before", pgtest.AfterCommit: "after"}[cut], func(t *testing.T) {
			dsn := pgtest.Empty(t)
			pool := open(t, pg.PoolConfig{DSN: dsn})
			exec(t, pool, `CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)`)
			cutDSN, armed := behindRelay(t, dsn)
			cutPool := open(t, pg.PoolConfig{DSN: cutDSN})
			runs := 0
			armed.Store(int64(cut))
			err := pg.InTx(t.Context(), cutPool, func(tx pgx.Tx) error {
				runs++
				_, err := tx.Exec(t.Context(), `UPDATE counter SET n = n + 5`)
				return err
			})
			if !errors.Is(err, pg.ErrUnknownCommit) {
				t.Errorf("got %v, want ErrUnknownCommit", err)
			}
			if _, ok := errors.AsType[*pg.UnknownCommitError](err); !ok {
				t.Errorf("got a %T, want *UnknownCommitError", err)
			}
			if runs != 1 {
				t.Errorf("the function ran %d times, want once: an unknown outcome is never redone", runs)
			}
			if got := number(t, pool, sum); got != committed {
				t.Errorf("n = %d, want %d", got, committed)
			}
			// The pool goes on with a new connection.
			if got := number(t, cutPool, sum); got != committed {
				t.Errorf("through the pool n = %d, want %d", got, committed)
			}
		})
	}
}

func TestAServerThatIsGoneBeforeTheCommitCommitsNothing(t *testing.T) {
	pool := setup(t)
	err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
		var pid int
		if err := tx.QueryRow(t.Context(), `UPDATE counter SET n = 5 WHERE id = 1 RETURNING pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		_, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend($1, 5000)`, pid)
		return err
	})
	if err == nil {
		t.Error("a transaction whose server is gone was called committed")
	}
	if got := number(t, pool, sum); got != 0 {
		t.Errorf("sum = %d, want 0", got)
	}
}
