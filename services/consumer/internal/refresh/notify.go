package refresh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// Channel carries the wake-ups between replicas: a task's id, or nothing for
// "look at the tables".
const Channel = "lockstep_refresh"

const (
	notifyQueue   = 128 // lossy, like the kicks
	notifyTimeout = 5 * time.Second
	reconnectMin  = 500 * time.Millisecond
	reconnectMax  = 30 * time.Second
)

// tell asks for a notification of the other replicas; it never waits.
func (e *Engine) tell(id uuid.UUID) {
	select {
	case e.notify <- id:
	default: // the scan finds it
	}
}

// sendNotifications runs apart from whoever submits, after the commit and in a
// transaction of its own: a notification in the caller's would queue its commit
// behind every other one that notifies.
func (e *Engine) sendNotifications(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-e.notify:
			e.send(ctx, id)
		}
	}
}

func (e *Engine) send(ctx context.Context, id uuid.UUID) {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if _, err := e.leases.Exec(ctx, `SELECT pg_notify($1, $2)`, Channel, id.String()); err != nil && ctx.Err() == nil {
		e.log.Warn("the other replicas were not told of a refresh; their scan finds it", zap.Error(err))
	}
}

// listen hears the other replicas over a connection of its own, and makes a new
// one when it is lost.
func (e *Engine) listen(ctx context.Context) {
	for pause := reconnectMin; ctx.Err() == nil; pause = min(2*pause, reconnectMax) {
		heard, err := e.hear(ctx)
		if ctx.Err() != nil {
			return
		}
		if heard {
			pause = reconnectMin
		}
		e.log.Warn("refresh notifications were lost; connecting again", zap.Error(err))
		timer := time.NewTimer(pause/2 + rand.N(pause/2)) //nolint:gosec // jitter needs no secrecy
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// hear listens on one connection until it fails. heard says whether it worked at all.
func (e *Engine) hear(ctx context.Context) (heard bool, err error) {
	conn, err := pgx.ConnectConfig(ctx, e.leases.Config().ConnConfig)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	defer func() {
		closing, cancel := detached(ctx)
		defer cancel()
		err = errors.Join(err, conn.Close(closing))
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+Channel); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	e.wakeScan() // whatever was said while nobody listened
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, fmt.Errorf("wait for a notification: %w", err)
		}
		e.heard(ctx, n.Payload)
	}
}

// heard wakes what a notification names. Whatever it can't be sure of, the scan looks at.
func (e *Engine) heard(ctx context.Context, payload string) {
	id, err := uuid.Parse(payload)
	if err != nil {
		e.wakeScan()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	var projection string
	if err := e.leases.QueryRow(ctx, `SELECT projection FROM lockstep.refresh_task WHERE task_id = $1`, id).Scan(&projection); err != nil {
		e.wakeScan()
		return
	}
	e.kicker.Offer(projection, id)
}

// wakeScan makes the scan look now; wake-ups merge.
func (e *Engine) wakeScan() {
	select {
	case e.scan <- struct{}{}:
	default:
	}
}
