package refresh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
)

// RunResult is what a run did. A run that returned may have failed every task
// of it: Err says so.
type RunResult struct {
	Claims       int // pages worked off, tasks failed at once included
	Succeeded    int // tasks that ended SUCCESS
	Continued    int // tasks that have scopes left, or a newer generation
	Failed       int // tasks that ended FAILED
	Fenced       int // claims that somebody else owns now
	Scopes       int64
	FailedScopes int64
	Counts       Counts
}

// Err is not nil where a task or a scope failed.
func (r RunResult) Err() error {
	if r.Failed == 0 && r.FailedScopes == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d claims failed, with %d failed scopes", r.Failed, r.Claims, r.FailedScopes)
}

func (r *RunResult) add(p pageResult) {
	r.Claims++
	switch p.event {
	case AllDone:
		r.Succeeded++
	case Broken:
		r.Failed++
	case PageDone, Superseded, GivenBack:
		r.Continued++
	default: // fenced: nothing was concluded
		r.Fenced++
	}
	r.Scopes += p.scopes
	r.FailedScopes += p.failed
	r.Counts.Add(p.counts)
}

// pageResult is what one claim did; the event it concluded with, "" if fenced.
type pageResult struct {
	event  Event
	scopes int64
	failed int64
	counts Counts
}

// Run scans, listens and works on wake-ups until ctx ends.
func (e *Engine) Run(ctx context.Context) {
	if !e.set.Enabled || len(e.projections) == 0 {
		<-ctx.Done()
		return
	}
	var loops sync.WaitGroup
	loops.Go(func() { e.scanLoop(ctx) })
	loops.Go(func() { e.kicker.Run(ctx) })
	loops.Go(func() { e.listen(ctx) })
	loops.Go(func() { e.sendNotifications(ctx) })
	loops.Wait()
}

// scanLoop is the durable way: whatever was not woken is found here.
func (e *Engine) scanLoop(ctx context.Context) {
	failures := 0
	for {
		result, err := e.RunDue(ctx, e.set.ClaimsPerRun)
		wait := e.set.Scan
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if failures == 0 {
				e.log.Error("the refresh scan failed; tried again until it works", zap.Error(err))
			}
			wait = min(wait, reconnectMin<<min(failures, 10))
			failures++
		default:
			failures = 0
			e.logRun(result)
			if result.Claims >= e.set.ClaimsPerRun {
				continue
			}
		}
		if !e.rest(ctx, wait/2+rand.N(wait/2+1), failures == 0) { //nolint:gosec // jitter needs no secrecy
			return
		}
	}
}

// rest waits; a wake-up must not defeat the back-off.
func (e *Engine) rest(ctx context.Context, d time.Duration, wakeable bool) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	scan := e.scan
	if !wakeable {
		scan = nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-scan:
	}
	return true
}

func (e *Engine) logRun(r RunResult) {
	if err := r.Err(); err != nil {
		e.log.Warn("refresh run had failures", zap.Error(err), zap.Int("succeeded", r.Succeeded), zap.Int("continued", r.Continued))
	}
}

// RunDue works off what is due, one claim after another, at most limit claims.
func (e *Engine) RunDue(ctx context.Context, limit int) (RunResult, error) {
	return e.runDue(ctx, limit, time.Time{})
}

// RunSelected works off those of the selected tasks that may be claimed now: the
// claim asks for due time and budget as ever.
func (e *Engine) RunSelected(ctx context.Context, actor string, s Selector, limit int) (RunResult, error) {
	var result RunResult
	ids, err := e.Retry(ctx, actor, s)
	if err != nil {
		return result, err
	}
	for _, id := range ids {
		for result.Claims < min(limit, maxClaimsPerRun) && ctx.Err() == nil {
			j, err := e.claimTask(ctx, id)
			if err != nil {
				return result, err
			}
			if j == nil {
				break
			}
			page, err := e.work(ctx, j, time.Time{})
			result.add(page)
			if err != nil {
				return result, err
			}
		}
	}
	return result, nil
}

// RunInTime is RunDue for a caller who waits: it begins nothing more shortly
// before the caller's deadline, so that the answer arrives.
func (e *Engine) RunInTime(ctx context.Context, limit int) (RunResult, error) {
	return e.runDue(ctx, limit, lastStart(ctx))
}

func (e *Engine) runDue(ctx context.Context, limit int, until time.Time) (RunResult, error) {
	var result RunResult
	for result.Claims < min(limit, maxClaimsPerRun) && ctx.Err() == nil && (until.IsZero() || e.now().Before(until)) {
		j, err := e.claimDue(ctx)
		if err != nil || j == nil {
			return result, err
		}
		page, err := e.work(ctx, j, until)
		result.add(page)
		if err != nil {
			return result, err
		}
	}
	return result, nil
}

// kicked works on a woken task: one claim, one page. Its tail is kicked again.
func (e *Engine) kicked(ctx context.Context, _ string, id uuid.UUID) {
	j, err := e.claimTask(ctx, id)
	if err == nil && j != nil {
		var result RunResult
		var page pageResult
		page, err = e.work(ctx, j, time.Time{})
		result.add(page)
		e.logRun(result)
	}
	if err != nil && ctx.Err() == nil {
		e.log.Error("a woken refresh failed; the scan finds it", zap.Stringer("task", id), zap.Error(err))
	}
}

// work does one page of a held task and ends its claim. until, if set, is when
// to stop taking further scopes. The error is one of the database's: what failed
// otherwise is concluded, and in the result.
func (e *Engine) work(ctx context.Context, j *job, until time.Time) (pageResult, error) {
	held, keeper := claim.Keep(ctx, e.set.Lease, e.set.Stall, func(ctx context.Context) error { return e.renew(ctx, j.claim) })
	result, end := e.workPage(held, keeper, j, until)
	cause := context.Cause(held)
	keeper.Stop()
	if errors.Is(end.err, claim.ErrFenced) || errors.Is(cause, claim.ErrFenced) {
		e.log.Info("fenced: another worker owns the refresh task now", zap.Stringer("task", j.claim))
		return result, nil
	}
	switch {
	case end.event != Broken || cause == nil:
	case errors.Is(cause, claim.ErrLeaseLost) && end.err != nil:
		// Given back for nothing it would stand still again, for ever.
		end = broken(fault.Wrap(end.err, fault.LeaseExpired, "the run stood still"))
	default:
		end.ending = ending{event: GivenBack} // stopped from outside: neither a failure nor a retry
	}
	event, err := e.conclude(ctx, j, end.ending)
	if errors.Is(err, claim.ErrFenced) {
		e.log.Info("fenced: another worker owns the refresh task now", zap.Stringer("task", j.claim))
		return result, nil
	}
	if err != nil {
		return result, err // the lease runs out, and the scan takes the task over
	}
	result.event = event
	if event == PageDone || event == Superseded || event == GivenBack {
		e.kicker.Offer(j.projection.Name(), j.claim.ID)
	}
	return result, nil
}

// pageEnd is how a page ended, and the error behind it.
type pageEnd struct {
	ending

	err error
}

func broken(err error) pageEnd {
	code, message := failure(err)
	return pageEnd{ending: ending{event: Broken, code: string(code), message: message}, err: err}
}

func (e *Engine) workPage(ctx context.Context, keeper *claim.Keeper, j *job, until time.Time) (pageResult, pageEnd) {
	var result pageResult
	if j.lapses >= maxLapses {
		return result, broken(fault.New(fault.LeaseExpired, "%d claims in a row ended by their lease", j.lapses))
	}
	if err := e.prepare(ctx, j); err != nil {
		return result, broken(err)
	}
	keeper.Tick()
	scopes, err := e.page(ctx, j)
	if err != nil {
		return result, broken(err)
	}
	p := pageRun{engine: e, job: j, keeper: keeper, until: until}
	err = p.run(ctx, scopes)
	result = p.result
	if err != nil && !errors.Is(err, errStopped) {
		return result, broken(err)
	}
	pending, failed, err := e.left(ctx, j.claim.ID, j.generation)
	switch {
	case err != nil:
		return result, broken(err)
	case pending > 0:
		return result, pageEnd{ending: ending{event: PageDone}}
	case failed > 0:
		return result, pageEnd{ending: p.failedEnding(ctx)}
	default:
		return result, pageEnd{ending: ending{event: AllDone}}
	}
}

// prepare holds the frozen payload to what the task stands for, asks whether the
// stored facts allow the work, and resolves the scopes if nobody has.
func (e *Engine) prepare(ctx context.Context, j *job) error {
	req, err := j.projection.Parse(j.payload, "")
	if err != nil {
		return fmt.Errorf("parse the frozen payload: %w", err)
	}
	if !j.customKey && TaskCode(j.projection.Name(), storedKey(req.BusinessKey)) != j.code {
		return fault.New(fault.KeyRangeMismatch, "the frozen payload has another business key than its task")
	}
	err = pg.InTx(ctx, e.pool, func(tx pgx.Tx) error { return j.projection.Check(ctx, tx, j.payload) })
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if j.resolved {
		return nil
	}
	return e.resolve(ctx, j)
}

// pageRun works a page's scopes off, several at once.
type pageRun struct {
	engine *Engine
	job    *job
	keeper *claim.Keeper
	until  time.Time

	mu     sync.Mutex
	result pageResult
}

func (p *pageRun) run(ctx context.Context, scopes []Scope) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(p.engine.set.ScopesAtOnce)
	stopped := false
	for _, s := range scopes {
		// SetLimit makes Go wait for a free place, so that this is asked right before a scope starts.
		if ctx.Err() != nil || (!p.until.IsZero() && p.engine.now().After(p.until)) {
			stopped = true
			break
		}
		group.Go(func() error { return p.one(ctx, s) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if stopped {
		return errStopped
	}
	return nil
}

// one refreshes a scope. A scope that fails is marked and takes no other with
// it; only a lost claim, a stop, or a database that takes no mark ends the page.
func (p *pageRun) one(ctx context.Context, s Scope) error {
	counts, err := p.engine.refreshScope(ctx, p.job, s)
	p.keeper.Tick()
	if err == nil {
		p.note(counts, 0)
		return nil
	}
	if errors.Is(err, claim.ErrFenced) || ctx.Err() != nil {
		return err
	}
	code, message := failure(err)
	if err := p.engine.markFailed(ctx, p.job, s, string(code), message); err != nil {
		return err
	}
	p.engine.log.Warn("a refresh scope failed", zap.Stringer("task", p.job.claim), zap.Stringer("scope", s), zap.String("code", string(code)))
	p.note(Counts{}, 1)
	return nil
}

func (p *pageRun) note(counts Counts, failed int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.result.scopes++
	p.result.failed += failed
	p.result.counts.Add(counts)
}

// failedEnding gives the task the code of its first failed scope.
func (p *pageRun) failedEnding(ctx context.Context) ending {
	end := ending{event: Broken, code: string(fault.Internal), message: "some of its scopes failed"}
	rows, err := p.engine.pool.Query(ctx, `SELECT code, left('scope ' || scope_id || ':' || month || ': ' || error, 1000) FROM lockstep.refresh_scope
		WHERE task_id = $1 AND generation = $2 AND state = 'FAILED' ORDER BY position LIMIT 1`, p.job.claim.ID, p.job.generation)
	if err != nil {
		return end
	}
	first, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[struct{ Code, Message string }])
	if err != nil {
		return end
	}
	end.code, end.message = first.Code, first.Message
	return end
}
