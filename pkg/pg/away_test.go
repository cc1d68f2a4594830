package pg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
)

// What fails for its connection is tried again; what the server refused is not.
func TestAwait(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		away bool
	}{
		"said by the caller":        {fmt.Errorf("store: %w", pg.ErrAway), true},
		"no place for a session":    {fmt.Errorf("store: %w: %w", pg.ErrAway, &pgconn.PgError{Code: "53300"}), true},
		"cut off":                   {fmt.Errorf("read: %w", io.ErrUnexpectedEOF), true},
		"closed":                    {&net.OpError{Op: "write", Err: net.ErrClosed}, true},
		"shutting down":             {&pgconn.PgError{Code: "57P01"}, true},
		"starting":                  {fmt.Errorf("x: %w", &pgconn.PgError{Code: "57P03"}), true},
		"a connection failure":      {&pgconn.PgError{Code: "08006"}, true},
		"no such table":             {&pgconn.PgError{Code: "42P01"}, false},
		"cancelled for its time":    {&pgconn.PgError{Code: "57014"}, false},
		"a setting that is no good": {errors.New("no such column"), false},
		"the service stops":         {fmt.Errorf("x: %w", context.Canceled), false},
	} {
		t.Run(name, func(t *testing.T) {
			tries, told := 0, 0
			err := pg.Await(t.Context(), func(error) { told++ }, func() error {
				if tries++; tries == 1 {
					return c.err
				}
				return nil
			})
			if c.away && (err != nil || tries != 2 || told != 1) || !c.away && (!errors.Is(err, c.err) || tries != 1 || told != 0) {
				t.Errorf("%d tries, told %d times, %v", tries, told, err)
			}
		})
	}
	t.Run("it ends with the service", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := pg.Await(ctx, func(error) {}, func() error { return pg.ErrAway })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, pg.ErrAway) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a session that is ended by the server", func(t *testing.T) {
		pool, err := pg.Open(t.Context(), pg.PoolConfig{DSN: pgtest.Center(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		tries := 0
		err = pg.Await(t.Context(), func(error) {}, func() error {
			if err := pg.Reach(t.Context(), pool); err != nil {
				return err
			}
			if tries++; tries > 1 {
				return nil
			}
			_, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(pg_backend_pid())`)
			return err
		})
		if err != nil || tries != 2 {
			t.Errorf("%d tries, %v", tries, err)
		}
	})
}
