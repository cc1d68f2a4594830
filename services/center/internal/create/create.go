// Package create makes tasks at an operator's wish.
//
// It promises that a task exists only where the grant was effective when it
// was written, that an open task is returned instead of a second one, and that
// a refusal for grant, scope or resources is a fact: one FAILED task with its
// code, never dispatched. A malformed request leaves nothing. It never creates
// or widens a grant.
package create

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// Request is what an operator wants reconciled.
type Request struct {
	store.Scope
	What            protocol.Scope
	Key             string // of a RECORD, as in the API
	Mode            protocol.Mode
	BreakerOverride bool
	OverrideReason  string
	Actor           string
	// Tenants the operator may see, nil for all: what ALL spans.
	Tenants []int64
}

// Created is a task of the answer; Existing where it was open before.
type Created struct {
	Task     *task.Task
	Existing bool
}

// Outcome of a request. LeftOut are the subscriptions of an ALL request above
// the cap.
type Outcome struct {
	Tasks   []Created
	LeftOut []store.Scope
}

// Creator makes tasks.
type Creator struct {
	Store *store.Store
	// MaxTasks of one ALL request.
	MaxTasks int
	// Oversize says why a collection has too many rows, "" where it has not.
	Oversize func(ctx context.Context, sc store.Scope) (reason string, err error)
	// Elsewhere says whether a record lives in another tenant or collection.
	Elsewhere func(ctx context.Context, sc store.Scope, key string) (bool, error)
	// Wake is called after the commit of a task that is to be worked.
	Wake  func()
	NewID func() uuid.UUID
}

// Create makes the tasks of a request.
func (c *Creator) Create(ctx context.Context, r Request) (*Outcome, error) {
	if r.Mode == "" {
		r.Mode = protocol.Repair
	}
	if err := check(r); err != nil {
		return nil, err
	}
	if r.What == protocol.All {
		return c.all(ctx, r)
	}
	one, err := c.one(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Outcome{Tasks: []Created{one}}, nil
}

// all makes a task for each subscription, oldest-proven first, each in its own
// transaction: what was made stays made.
func (c *Creator) all(ctx context.Context, r Request) (*Outcome, error) {
	scopes, err := c.Store.Subscriptions(ctx, r.Consumer, r.Tenants)
	if err != nil {
		return nil, err
	}
	if len(scopes) == 0 {
		return nil, fault.New(fault.GrantRevoked, "%s has no effective subscription", r.Consumer)
	}
	out := &Outcome{}
	r.What = protocol.Collection
	made := 0
	for _, sc := range scopes {
		if made == c.MaxTasks {
			out.LeftOut = append(out.LeftOut, sc)
			continue
		}
		r.Scope = sc
		one, err := c.one(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("create a task for %s: %w", sc, err)
		}
		out.Tasks = append(out.Tasks, one)
		if !one.Existing {
			made++
		}
	}
	return out, nil
}

// errAgain: what was read before the transaction no longer holds.
var errAgain = errors.New("the grant or the open task changed meanwhile")

// maxAgain bounds how often a request meets a change in the same moment.
const maxAgain = 5

func (c *Creator) one(ctx context.Context, r Request) (out Created, err error) {
	for range maxAgain {
		out, err = c.try(ctx, r)
		if !errors.Is(err, errAgain) {
			break
		}
	}
	if errors.Is(err, errAgain) {
		return Created{}, fault.Wrap(err, fault.Unavailable, "the grant keeps changing; try again")
	}
	if err == nil && out.Task.State == protocol.Queued && !out.Existing {
		c.Wake()
	}
	return out, err
}

// try decides from what it reads first, cheapest first; the transaction that
// writes the task looks again.
func (c *Creator) try(ctx context.Context, r Request) (Created, error) {
	g, err := c.Store.Grant(ctx, r.Scope)
	if err != nil {
		return Created{}, err
	}
	refusal, err := c.gate(ctx, r, g)
	if err != nil {
		return Created{}, err
	}
	if refusal == nil {
		open, err := c.Store.OpenTask(ctx, r.Scope, r.What, r.Key)
		switch {
		case err != nil:
			return Created{}, err
		case open != nil && g.Lost(open.GrantEpoch, open.CenterEpoch) != fault.None:
			// It is about to be cancelled, and is no answer to this request.
			if _, _, err := c.Store.CancelLost(ctx, open.ID); err != nil {
				return Created{}, err
			}
			return Created{}, errAgain
		case open != nil:
			return Created{Task: open, Existing: true}, nil
		}
		if refusal, err = c.fits(ctx, r); err != nil {
			return Created{}, err
		}
	}
	return c.write(ctx, r, g, refusal)
}

// gate refuses by grant and tenant.
func (c *Creator) gate(ctx context.Context, r Request, g store.Grant) (*fault.Error, error) {
	if g.Effective() {
		return nil, nil
	}
	tenants, err := c.Store.Tenants(ctx, r.Consumer, []int64{r.TenantID})
	switch {
	case err != nil:
		return nil, err
	case len(tenants) == 0:
		return fault.New(fault.ScopeMismatch, "the consumer does not serve the tenant"), nil
	}
	return fault.New(fault.GrantRevoked, "the grant is not effective"), nil
}

// fits refuses by what the source holds.
func (c *Creator) fits(ctx context.Context, r Request) (*fault.Error, error) {
	if r.What == protocol.Record {
		elsewhere, err := c.Elsewhere(ctx, r.Scope, r.Key)
		if err == nil && elsewhere {
			return fault.New(fault.ScopeMismatch, "the record lives in another tenant or collection"), nil
		}
		return nil, err
	}
	reason, err := c.Oversize(ctx, r.Scope)
	if err == nil && reason != "" {
		return fault.New(fault.ResourceLimit, "%s", reason), nil
	}
	return nil, err
}

func (c *Creator) write(ctx context.Context, r Request, g store.Grant, refusal *fault.Error) (out Created, err error) {
	n := store.NewTask{
		ID: c.NewID(), Scope: r.Scope, What: r.What, Key: r.Key, Mode: r.Mode, GrantEpoch: g.Epoch,
		BreakerOverride: r.BreakerOverride, OverrideReason: r.OverrideReason, CreatedBy: r.Actor,
	}
	if refusal != nil {
		n.Code, n.Reason = string(refusal.Reason), refusal.Message
	}
	err = c.Store.InTx(ctx, func(tx *store.Tx) error {
		tk, ok, err := tx.InsertTask(ctx, n)
		if err != nil {
			return err
		}
		if !ok { // another request made one in this very moment
			return errAgain
		}
		if refusal == nil {
			now, err := tx.ShareGrant(ctx, r.Scope)
			if err != nil {
				return err
			}
			if now.Lost(n.GrantEpoch, tk.CenterEpoch) != fault.None {
				return errAgain
			}
		}
		out = Created{Task: tk}
		failpoint.Hit(failpoint.CenterCreateBeforeCommit)
		return nil
	})
	if err == nil {
		failpoint.Hit(failpoint.CenterCreateAfterCommit)
	}
	return out, err
}
