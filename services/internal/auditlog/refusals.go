package auditlog

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"lockstep.dev/pkg/fault"
)

// maxRefusals bounds the pairs remembered; there are as many as principals and
// codes, and every principal was verified.
const maxRefusals = 4096

// writeTimeout of one row: it is worth no more.
const writeTimeout = 5 * time.Second

// Refusals notes what was refused to whom: at most one row a principal, code
// and minute, which the database holds too. Counting is the metrics' business.
// No call waits for it.
type Refusals struct {
	Pool *pgxpool.Pool
	Now  func() time.Time
	Log  *zap.Logger

	once  sync.Once
	queue chan refusal

	mu    sync.Mutex
	noted map[refusalKey]noted
}

type refusalKey struct {
	principal string
	code      fault.Reason
}

type noted struct {
	minute time.Time
	since  int // refused after the row, and told by the next one
}

type refusal struct {
	refusalKey

	method string
	since  int
}

func (r *Refusals) start() {
	r.once.Do(func() { r.queue, r.noted = make(chan refusal, 64), map[refusalKey]noted{} })
}

// Refused is told of every refused call. caller is as identity.Record names it;
// "" is nobody who was verified. What only says "not now" is no refusal.
func (r *Refusals) Refused(caller, method string, code fault.Reason) {
	switch code {
	case fault.None, fault.Internal, fault.Unavailable, fault.ManifestNotReady:
		return
	default:
	}
	r.start()
	key := refusalKey{principal(caller), code}
	minute := r.Now().UTC().Truncate(time.Minute)
	r.mu.Lock()
	defer r.mu.Unlock()
	was, known := r.noted[key]
	if known && was.minute.Equal(minute) {
		was.since++
		r.noted[key] = was
		return
	}
	if !known && len(r.noted) >= maxRefusals {
		clear(r.noted)
	}
	select {
	case r.queue <- refusal{key, method, was.since}:
		r.noted[key] = noted{minute: minute}
	default: // the database is away or slow; the next one tries again
		was.since++
		r.noted[key] = was
	}
}

// principal is how the log spells a caller.
func principal(caller string) string {
	if caller == "" {
		return "unknown"
	}
	return strings.Replace(caller, ":", "/", 1)
}

// Run writes the rows until ctx ends.
func (r *Refusals) Run(ctx context.Context) error {
	r.start()
	for {
		select {
		case <-ctx.Done():
			return nil
		case one := <-r.queue:
			if err := r.write(ctx, one); err != nil && ctx.Err() == nil {
				r.Log.Error("a refusal is not in the audit log", zap.String("principal", one.principal), zap.String("code", string(one.code)), zap.Error(err))
			}
		}
	}
}

func (r *Refusals) write(ctx context.Context, one refusal) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	reason := ""
	if one.since > 0 {
		reason = fmt.Sprintf("and %d more since the row before", one.since)
	}
	_, err := r.Pool.Exec(ctx, `INSERT INTO lockstep.audit (actor, action, object, decision, reason) VALUES ($1, 'refuse', $2, $3, $4)
		ON CONFLICT (actor, decision, date_trunc('minute', at AT TIME ZONE 'UTC')) WHERE action = 'refuse' DO NOTHING`,
		one.principal, one.method, string(one.code), reason)
	if err != nil {
		return fmt.Errorf("audit a refusal: %w", err)
	}
	return nil
}
