package identity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// principal is who was verified to call: a service or an operator.
type principal struct {
	appKey   string
	operator Operator
}

// name is stable, and tells the two kinds apart.
func (p principal) name() string {
	if p.appKey != "" {
		return "app:" + p.appKey
	}
	return "operator:" + p.operator.ID
}

type principalKey struct{}

func withPrincipal(ctx context.Context, p principal) context.Context {
	recordPrincipal(ctx, p)
	return context.WithValue(ctx, principalKey{}, p)
}

func principalOf(ctx context.Context) (principal, bool) {
	p, ok := ctx.Value(principalKey{}).(principal)
	return p, ok
}

// PeerFrom returns the app key of the service that signed the call, "" if none did.
func PeerFrom(ctx context.Context) string {
	p, _ := principalOf(ctx)
	return p.appKey
}

// OperatorFrom returns the operator who calls, if one does.
func OperatorFrom(ctx context.Context) (Operator, bool) {
	p, ok := principalOf(ctx)
	return p.operator, ok && p.operator.ID != ""
}

// WithPeer and WithOperator state a caller for a test of a handler without a server.
func WithPeer(ctx context.Context, appKey string) context.Context {
	return withPrincipal(ctx, principal{appKey: appKey})
}

// WithOperator is WithPeer for an operator.
func WithOperator(ctx context.Context, operator Operator) context.Context {
	return withPrincipal(ctx, principal{operator: operator})
}

type recorderKey struct{}

// Record lets an interceptor around the guard learn afterwards who called:
// "app:<app key>", "operator:<id>", or "" where nobody was verified.
func Record(ctx context.Context) (context.Context, func() string) {
	var name string // one call, one goroutine until the handler runs
	return context.WithValue(ctx, recorderKey{}, &name), func() string { return name }
}

func recordPrincipal(ctx context.Context, p principal) {
	if name, ok := ctx.Value(recorderKey{}).(*string); ok {
		*name = p.name()
	}
}

// Rates are the calls that a caller may make in a second in the long run. A
// service fetches a page set at a time, a person clicks; both stay far below
// the defaults.
type Rates struct {
	// PeerCallsPerSecond of each service, twice as many at once.
	PeerCallsPerSecond int `koanf:"peer_calls_per_second"`
	// OperatorCallsPerSecond of each operator, three times as many at once.
	OperatorCallsPerSecond int `koanf:"operator_calls_per_second"`
}

// DefaultRates are those of a guard that is told no others.
func DefaultRates() Rates { return Rates{PeerCallsPerSecond: 500, OperatorCallsPerSecond: 20} }

const (
	peerBurst     = 2
	operatorBurst = 3
	// mostCalls: above it a bound is none.
	mostCalls = 1_000_000
)

// Validate tells everything that is wrong.
func (r Rates) Validate() error {
	var problems []error
	for _, rate := range []struct {
		name  string
		calls int
	}{{"peer_calls_per_second", r.PeerCallsPerSecond}, {"operator_calls_per_second", r.OperatorCallsPerSecond}} {
		if rate.calls < 1 || rate.calls > mostCalls {
			problems = append(problems, fmt.Errorf("%s is 1 to %d, not %d", rate.name, mostCalls, rate.calls))
		}
	}
	return errors.Join(problems...)
}

// maxBuckets bounds the callers that are remembered: an issuer may know many.
const maxBuckets = 10_000

// buckets holds one token bucket a verified caller. Those that are full again
// are forgotten when there are too many.
type buckets struct {
	rates  Rates
	mu     sync.Mutex
	byName map[string]*rate.Limiter
}

func newBuckets(rates Rates) *buckets {
	return &buckets{rates: rates, byName: map[string]*rate.Limiter{}}
}

func (b *buckets) allow(p principal, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket, ok := b.byName[p.name()]
	if !ok {
		calls, burst := b.rates.OperatorCallsPerSecond, operatorBurst
		if p.appKey != "" {
			calls, burst = b.rates.PeerCallsPerSecond, peerBurst
		}
		bucket = rate.NewLimiter(rate.Limit(calls), burst*calls)
		if len(b.byName) >= maxBuckets {
			maps.DeleteFunc(b.byName, func(_ string, full *rate.Limiter) bool { return full.TokensAt(now) >= float64(full.Burst()) })
		}
		b.byName[p.name()] = bucket
	}
	return bucket.AllowN(now, 1)
}
