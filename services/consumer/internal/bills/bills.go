// Package bills turns payment facts of several tables into one stored row a
// bill, the bill snapshot, which the pages read.
//
// It promises:
//   - REVIEW_CREATE, allowed by four stored facts of a review, inserts and
//     updates rows; EXISTING_ONLY updates rows that are there, and no others;
//   - every fact of a row is read by one statement, after the scope's guard was
//     waited for; status and amounts come from the same payment results;
//   - a row whose facts did not change is not rewritten;
//   - the number of statements of a scope does not depend on the number of its
//     differences, but by batches of thousands.
//
// It pays nothing, pushes nothing, and changes no bill, difference, order or
// payment result. It writes bill_snapshot and nothing else, and only in the
// transaction of a claimed scope that it is handed. Readers write nothing.
package bills

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/services/consumer/internal/refresh"
)

// Name is what requests call this projection.
const Name = "bills"

const (
	// existingBatch is how many differences one statement computes: long enough
	// to cost nothing per statement, short enough to stay around a second.
	existingBatch = 5_000
	// reviewPage is how many of a review's lines are located, judged and written at a time.
	reviewPage = 500
)

// Options are the policies of a deployment.
type Options struct {
	// PartialPayment: a success beside an open or failed part, or less paid than
	// planned, is "partly paid" (60/4) instead of "paid" (30/5).
	PartialPayment bool
}

// Projection refreshes bill snapshots. It is safe for concurrent use.
type Projection struct {
	options Options
	batch   int
	page    int
	// last is the payload parsed last: all scopes of a generation share one.
	last atomic.Pointer[parsed]
}

type parsed struct {
	payload []byte
	plan    *plan
}

var _ refresh.Projection = (*Projection)(nil)

// New makes the projection.
func New(options Options) *Projection {
	return &Projection{options: options, batch: existingBatch, page: reviewPage}
}

// Name is "bills".
func (p *Projection) Name() string { return Name }

// plan gives the plan of a stored payload.
func (p *Projection) plan(payload []byte) (*plan, error) {
	if last := p.last.Load(); last != nil && bytes.Equal(last.payload, payload) {
		return last.plan, nil
	}
	made, err := parse(payload)
	if err != nil {
		return nil, fmt.Errorf("stored payload: %w", err)
	}
	p.last.Store(&parsed{payload: bytes.Clone(payload), plan: made})
	return made, nil
}

// Check holds a review to its four stored facts; other requests need none.
func (p *Projection) Check(ctx context.Context, tx pgx.Tx, payload []byte) error {
	plan, err := p.plan(payload)
	if err != nil || plan.Review == nil {
		return err
	}
	return plan.Review.check(ctx, tx)
}

// Refresh computes the snapshots of one scope.
func (p *Projection) Refresh(ctx context.Context, tx pgx.Tx, payload []byte, s refresh.Scope) (refresh.Counts, error) {
	plan, err := p.plan(payload)
	if err != nil {
		return refresh.Counts{}, err
	}
	if err := linearPlans(ctx, tx); err != nil {
		return refresh.Counts{}, err
	}
	run := scopeRun{tx: tx, scope: s, source: cmp.Or(plan.Trigger, string(plan.Mode)), partial: p.options.PartialPayment}
	if plan.Review != nil {
		err = run.review(ctx, plan.Review, p.page)
	} else {
		err = run.existing(ctx, p.batch)
	}
	if err != nil {
		return refresh.Counts{}, fmt.Errorf("bills of %s: %w", s, err)
	}
	return run.counts, nil
}

// scopeRun is one scope being refreshed in its transaction.
type scopeRun struct {
	tx      pgx.Tx
	scope   refresh.Scope
	source  string // refresh_source of the rows written
	partial bool
	counts  refresh.Counts
}

// linearPlans keeps the planner, for this transaction, to plans whose cost grows
// with the rows that are refreshed. Facts are looked up by an index, with the
// whole key, by laterals that leave no other choice; what remains to be joined
// is hashed. Left alone, the planner trusts statistics that have never seen the
// newest month, expects one row, and joins thousands with thousands by loops.
// One plan is kept: planning costs more than refreshing a small scope.
func linearPlans(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT set_config('enable_nestloop', 'off', true), set_config('enable_seqscan', 'off', true),
		set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)`)
	if err != nil {
		return fmt.Errorf("choose plans: %w", err)
	}
	return nil
}
