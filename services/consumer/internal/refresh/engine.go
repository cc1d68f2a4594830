package refresh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/fault"
)

// Site is where workers take refresh tasks. RUNNING stands in the task; the
// database sees to it that the two go together.
var Site = claim.Site{Name: "refresh", Table: "lockstep.refresh_progress", ID: "task_id", Held: "claim_token IS NOT NULL"}

// Options of an engine.
type Options struct {
	// Pool works: scopes, claims, submissions of its own.
	Pool *pgxpool.Pool
	// Leases renews claims and sends notifications; long work can't take its connections away.
	Leases *pgxpool.Pool
	// Worker is this process's name in claims.
	Worker      string
	Settings    Settings
	Projections []Projection
	Log         *zap.Logger
}

// Engine accepts requests and works them off. It is safe for concurrent use.
type Engine struct {
	pool, leases *pgxpool.Pool
	worker       string
	set          Settings
	projections  map[string]Projection
	names        []string // of the projections, for the claims' condition
	log          *zap.Logger
	newID        func() uuid.UUID
	now          func() time.Time

	kicker *Kicker
	notify chan uuid.UUID // committed requests that other replicas are to be told of
	scan   chan struct{}  // holds one wake-up of the scan
}

// New makes an engine; Run starts it.
func New(o Options) (*Engine, error) {
	if err := o.Settings.Validate(); err != nil {
		return nil, fmt.Errorf("refresh settings: %w", err)
	}
	e := &Engine{
		pool: o.Pool, leases: o.Leases, worker: o.Worker, set: o.Settings, projections: map[string]Projection{},
		log: o.Log, newID: uuid.New, now: time.Now,
		notify: make(chan uuid.UUID, notifyQueue), scan: make(chan struct{}, 1),
	}
	for _, p := range o.Projections {
		if _, twice := e.projections[p.Name()]; twice {
			return nil, fmt.Errorf("projection %s is there twice", p.Name())
		}
		e.projections[p.Name()] = p
		e.names = append(e.names, p.Name())
	}
	for stage := range o.Settings.Kick.Stages {
		if !slices.Contains(e.names, stage) {
			return nil, fmt.Errorf("kick.stages.%s: there is no such projection", stage)
		}
	}
	e.kicker = NewKicker(o.Settings.Kick, e.kicked)
	return e, nil
}

// projection finds one by its name.
func (e *Engine) projection(name string) (Projection, error) {
	p, ok := e.projections[name]
	if !ok {
		return nil, fault.New(fault.InvalidArgument, "there is no projection of that name").WithField("projection", "is one of %v", e.names)
	}
	return p, nil
}

// errStopped: the run was stopped from outside, by a shutdown or by its caller's deadline.
var errStopped = errors.New("stopped before its end")

// concludeTimeout bounds the writes that end a claim, which are made even while the process stops.
const concludeTimeout = 8 * time.Second

func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), concludeTimeout)
}
