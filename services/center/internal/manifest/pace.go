package manifest

import (
	"cmp"
	"context"
	"sync"
	"time"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/source"
)

const (
	// paceRows are read between two looks at the rate and the guard.
	paceRows = 256
	// maxPause is how long a guard may hold an open snapshot up, in all: it keeps
	// the source from cleaning up behind it. After that the try is given up.
	maxPause = 30 * time.Second
	// look is how long a pause lasts before the guard is asked again; it holds its
	// last look for a while.
	look = time.Second
	// noteEvery is how often a task's row says at most that its read is held up.
	noteEvery = 5 * time.Second
)

// pace holds a read up: for the rate in any case, for the guard as long as a
// snapshot may be kept open for it.
type pace struct {
	m      *Materialiser
	claim  claim.Claim
	keeper *claim.Keeper

	mu      sync.Mutex
	readers int // at work
	paused  time.Duration
	noted   time.Time
}

func (m *Materialiser) newPace(c claim.Claim, keeper *claim.Keeper) *pace {
	return &pace{m: m, claim: c, keeper: keeper}
}

// reader counts one that is at work, until gone.
func (p *pace) reader() (gone func()) {
	p.count(1)
	return func() { p.count(-1) }
}

func (p *pace) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers += n
}

func (p *pace) tick() { p.keeper.Tick() }

// alive shows signs of life until stop, while the source works on a statement
// that has a time-out of its own: counting and sorting give nothing for a while.
func (p *pace) alive() (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(look)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.tick()
			case <-done:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(done); <-stopped })
}

// row is called before each row of a part that has at most most of them, with
// the number of those before it.
func (p *pace) row(ctx context.Context, n, most int) error {
	if n%paceRows != 0 {
		return nil
	}
	p.tick()
	waited, err := p.m.Rate.Take(ctx, min(paceRows, most-n))
	if waited > 0 && err == nil {
		err = p.note(ctx, fault.RateLimited)
	}
	if err != nil {
		return err
	}
	return p.guard(ctx)
}

// guard waits until the source is not busy.
func (p *pace) guard(ctx context.Context) error {
	for p.m.Guard.Busy(ctx) != "" {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		pause := min(look, p.m.Guard.Interval())
		if !p.spend(pause) {
			return errBusy()
		}
		if err := p.note(ctx, fault.LoadGuard); err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		p.tick()
	}
	return nil
}

// spend takes a pause from what is left of maxPause. Readers at work pause at
// the same time, so each counts its share.
func (p *pace) spend(pause time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused += pause / time.Duration(max(1, p.readers))
	return p.paused <= cmp.Or(p.m.mayPause, maxPause)
}

// note says on the task's row what the read waits for.
func (p *pace) note(ctx context.Context, code fault.Reason) error {
	p.mu.Lock()
	now := p.m.Now()
	due := p.noted.IsZero() || now.Sub(p.noted) >= noteEvery
	if due {
		p.noted = now
	}
	p.mu.Unlock()
	if !due {
		return nil
	}
	return p.m.Frozen.Note(ctx, p.claim, code)
}

// tooSlow refuses a set that the rate would keep a snapshot open for too long for.
func (m *Materialiser) tooSlow(rows int64) error {
	if least := m.Rate.Least(rows); least > maxRateTime {
		return fault.New(fault.ResourceLimit, "reading %d rows takes %s at limits.source_rows_per_second, more than one read may last (%s)",
			rows, least.Round(time.Second), maxRateTime)
	}
	return nil
}

// turn gives the rate to one long read at a time: two that share it would keep
// their snapshots open for longer than either was judged by.
func (m *Materialiser) turn(rows int64) (done func(), err error) {
	if m.Rate.Least(rows) <= shortRead {
		return func() {}, nil
	}
	if !m.longRead.CompareAndSwap(false, true) {
		return nil, fault.New(fault.RateLimited, "another long read has the limit of rows read a second")
	}
	return func() { m.longRead.Store(false) }, nil
}

// shortRead at the rate goes on beside a long one.
const shortRead = 10 * time.Second

// maxRateTime leaves a read time for what it does besides waiting.
const maxRateTime = source.MaxReadTime * 2 / 3

// busy says whether nothing should be begun now, and notes it on the tasks that wait.
func (m *Materialiser) busy(ctx context.Context) (bool, error) {
	if m.Guard.Busy(ctx) == "" || ctx.Err() != nil {
		return false, ctx.Err()
	}
	return true, m.Store.HoldUp(ctx, fault.LoadGuard)
}
