package pg_test

import (
	"bytes"
	"errors"
	"net"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
)

// cutter stands between a client and PostgreSQL, and cuts the connection around
// a COMMIT while it is armed.
type cutter struct {
	armed atomic.Value // where
}

type where string

const (
	nowhere      where = ""
	beforeCommit where = "before" // COMMIT never reaches the server
	afterCommit  where = "after"  // the server's answer never reaches the client
)

// behindCutter returns a DSN that goes through a cutter.
func behindCutter(t *testing.T, dsn string) (string, *cutter) {
	t.Helper()
	socket := pgtest.SocketFile(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	c := &cutter{}
	c.armed.Store(nowhere)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", socket)
			if err != nil {
				_ = client.Close()
				return
			}
			go c.pass(client, server)
		}
	}()
	parsed, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	parsed.Host, parsed.RawQuery = listener.Addr().String(), "sslmode=disable"
	return parsed.String(), c
}

func (c *cutter) pass(client, server net.Conn) {
	hangUp := func() {
		_ = client.Close()
		_ = server.Close()
	}
	defer hangUp()
	var cutAnswer atomic.Bool
	go func() {
		defer hangUp()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			// An answer to COMMIT says that it is done; it goes no further.
			if err != nil || cutAnswer.Load() {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if bytes.Contains(buffer[:n], []byte("commit\x00")) {
			switch c.armed.Swap(nowhere) {
			case beforeCommit:
				return
			case afterCommit:
				cutAnswer.Store(true)
			}
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func TestALostAnswerToCommitIsUnknown(t *testing.T) {
	for cut, committed := range map[where]int{beforeCommit: 0, afterCommit: 5} {
		t.Run(string(cut), func(t *testing.T) {
			dsn := pgtest.Empty(t)
			pool := open(t, pg.PoolConfig{DSN: dsn})
			exec(t, pool, `CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)`)
			cutDSN, proxy := behindCutter(t, dsn)
			cutPool := open(t, pg.PoolConfig{DSN: cutDSN})
			runs := 0
			proxy.armed.Store(cut)
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
