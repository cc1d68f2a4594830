package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrAway: the database does not answer.
var ErrAway = errors.New("the database is away")

// The pauses between two looks at a database that is away.
const (
	firstWait = 250 * time.Millisecond
	lastWait  = 5 * time.Second
)

// Reach looks whether the database answers; ErrAway where it does not, whatever
// the reason.
func Reach(ctx context.Context, pool *pgxpool.Pool) error {
	if err := pool.Ping(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	return nil
}

// Await does what a service needs done in its database before it can serve, again
// and again while the database is away: a start at such a moment, or a database that
// goes away in the middle of it, is no crash. told hears of the first time.
func Await(ctx context.Context, told func(error), do func() error) error {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := do()
		if !isAway(err) {
			return err
		}
		if wait == firstWait {
			told(err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait for the database: %w", context.Cause(ctx)), err)
		case <-time.After(wait):
		}
	}
}

// isAway says that a statement failed for its connection, and not for what it said.
// A server that takes no session yet may take one soon, whatever it says of it.
func isAway(err error) bool {
	switch code := Code(err); {
	case err == nil, errors.Is(err, context.Canceled):
		return false
	case errors.Is(err, ErrAway):
		return true
	case code != "":
		return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P0") // connection exceptions; shut down, crashed, starting
	}
	_, network := errors.AsType[net.Error](err)
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	return network || connecting || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
