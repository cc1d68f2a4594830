package worker

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/lockstep"
	"lockstep.dev/services/consumer/internal/repair"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/internal/tracing"
)

// A scan is three stages that overlap, and one order:
//
//	reader ──rounds──▶ preparer ──pieces──▶ scan
//	both sides' rows   differences in       effects, checkpoints,
//	and pages          batches, the words   reports
//	                   asked for
//
// The first two only read. Whatever they are ahead by is forgotten where the
// run ends, and is read again from the checkpoint.

// piece is a batch whose words were asked for, or the end of some rounds.
type piece struct {
	asked *repair.Asked
	// upTo is the checkpoint once everything before it has an outcome; nil while
	// differences of its rounds are still to come.
	upTo   *store.Progress
	rounds int
	err    error
}

// preparer turns rounds into pieces, one ahead of the one that takes effect.
type preparer struct {
	*job
	x      *lockstep.Index
	ctx    context.Context
	cancel context.CancelFunc
	rounds *reader
	out    chan piece
	done   sync.WaitGroup

	batch  []lockstep.Difference
	wanted int            // of the batch, whose words have to be asked for
	at     store.Progress // behind the last round that was merged
	// Rounds, and batches of differences, since the last checkpoint that was handed on.
	held, asked int
	words       bool // some of those batches were about words of the center
}

func newPreparer(j *job, x *lockstep.Index, h *hashed) *preparer {
	p := &preparer{job: j, x: x, out: make(chan piece), at: j.saved}
	p.ctx, p.cancel = context.WithCancel(j.ctx)
	p.rounds = newReader(j, x, h)
	p.done.Go(func() {
		if err := p.run(); err != nil {
			p.hand(piece{err: err})
		}
	})
	return p
}

func (p *preparer) stop() {
	p.cancel()
	p.rounds.stop()
	p.done.Wait()
}

// hand passes a piece on; false where nobody takes it any more.
func (p *preparer) hand(next piece) bool {
	select {
	case p.out <- next:
		return true
	case <-p.ctx.Done():
		return false
	}
}

func (p *preparer) run() error {
	for p.at.NextPage < p.x.Ranges() {
		r, err := p.rounds.next(p.ctx)
		if err != nil {
			return unproven(err)
		}
		if err := p.merge(r); err != nil {
			return err
		}
		p.at.NextPage = r.to
		p.at.CenterScanned += p.x.RowsOf(r.from, r.to)
		p.at.LocalScanned += r.scanned
		if last := p.x.Span(r.from, r.to).UpTo; last != nil {
			p.at.CursorKey = []byte(*last)
		}
		if p.at.NextPage == p.x.Ranges() {
			p.at.CenterComplete, p.at.LocalComplete = true, true
		}
		if p.held++; !p.enough() {
			continue
		}
		if err := p.ask(); err != nil {
			return err
		}
		upTo := p.at
		if !p.hand(piece{upTo: &upTo, rounds: p.held}) {
			return context.Cause(p.ctx)
		}
		if !p.words || p.at.LocalComplete {
			p.task.Unlimited()
		}
		p.held, p.asked, p.words = 0, 0, false
	}
	return nil
}

// enough says that the rounds held are worth a checkpoint, before which the batch
// has to be asked about as it is: they are many, or have filled some batches.
func (p *preparer) enough() bool {
	return p.asked >= heldBatches || p.held == heldRounds || p.at.LocalComplete
}

// merge finds the differences of a round.
func (p *preparer) merge(r round) error {
	if len(r.parts) == 0 {
		return nil
	}
	_, ended := p.Tracer.Start(p.ctx, "round", tracing.Count("pages", r.to-r.from), tracing.Count("differing_pages", len(r.parts)))
	defer ended(nil)
	for _, part := range r.parts {
		err := lockstep.Merge(p.x.Range(part.Range), r.pages[part.Range], p.local(part), func(d lockstep.Difference) error {
			p.batch = append(p.batch, d)
			if !repair.OnlyNoted(d.Class, p.row.Mode) {
				p.wanted++
			}
			if p.wanted == repair.MaxBatch || len(p.batch) == repair.MaxNoted {
				return p.ask()
			}
			return nil
		})
		if err != nil {
			return unproven(err)
		}
	}
	return nil
}

// local is a part's local side: held already, or too large to be and read again.
func (p *preparer) local(part lockstep.Part) iter.Seq2[evidence.Row, error] {
	if !part.Overflow {
		return lockstep.Rows(part.Rows)
	}
	return p.Projection.Stream(p.ctx, p.chunk(p.x.Range(part.Range)))
}

// ask asks about the batch and hands it on, in as many pieces as there are answers.
func (p *preparer) ask() error {
	if len(p.batch) == 0 {
		return nil
	}
	p.asked++
	p.words = p.words || p.wanted > 0
	err := p.Repairer.Ask(p.ctx, p.task, p.batch, func(a *repair.Asked) error {
		if !p.hand(piece{asked: a}) {
			return context.Cause(p.ctx)
		}
		return nil
	})
	p.batch, p.wanted = p.batch[:0], 0
	return err
}

// scan compares both sides from the checkpoint on.
func (j *job) scan(x *lockstep.Index) error {
	if j.saved.NextPage > x.Ranges() {
		return &hopelessError{fault.ManifestIncomplete, fmt.Errorf("the checkpoint is at page %d of %d", j.saved.NextPage, x.Ranges())}
	}
	due := time.NewTicker(min(j.Set.Lease/6, j.Set.ScanInterval))
	defer due.Stop()
	h, err := j.hash(x, due.C)
	if err != nil {
		return err
	}
	ahead := newPreparer(j, x, h)
	defer ahead.stop()
	stored := false // a checkpoint, and nothing took effect since
	for !j.saved.LocalComplete {
		select {
		case <-j.stopping.Done():
			return errStopping
		case <-j.ctx.Done():
			return context.Cause(j.ctx)
		case <-due.C:
			if err := j.rest(); err != nil {
				return err
			}
		case next := <-ahead.out:
			if next.err != nil {
				return next.err
			}
			if err := j.proceed(next, stored); err != nil {
				return err
			}
			stored = next.upTo != nil
		}
		if err := j.tellIfDue(protocol.Scanning); err != nil {
			return err
		}
	}
	if h != nil {
		j.Log.Info("contents that were hashed once more in the scan", zap.String("task", j.row.ID()), zap.Int64("rows", j.rehashed.Load()))
	}
	return nil
}

// rest ends the run where an operator paused the row: a checkpoint may be far.
func (j *job) rest() error {
	row, err := j.Store.Work(j.ctx, j.row.TaskID)
	if err != nil {
		return err
	}
	if row.Paused {
		return errStopping
	}
	return nil
}

// proceed takes a piece as the load guard allows: the row is given back where that
// costs nothing, right behind a checkpoint, and is held in place elsewhere.
func (j *job) proceed(next piece, stored bool) error {
	guard := j.hold
	if stored {
		guard = j.yield
	}
	if next.asked != nil {
		if err := guard(); err != nil {
			return err
		}
	}
	j.keeper.Tick()
	if err := j.take(next); err != nil {
		return err
	}
	j.keeper.Tick()
	if next.upTo != nil {
		return j.yield()
	}
	return nil
}

// take brings a piece's differences to an outcome, or stores its checkpoint.
func (j *job) take(next piece) error {
	if next.asked != nil {
		ctx, ended := j.Tracer.Start(j.ctx, "repair batch", tracing.Count("differences", next.asked.Differences()))
		err := j.Repairer.Apply(ctx, j.task, next.asked)
		ended(err)
		return err
	}
	j.rounds += next.rounds
	return j.checkpoint(*next.upTo)
}

// checkpoint stores the finished prefix. A newer attempt that was accepted
// meanwhile is adopted with it, and told at once.
func (j *job) checkpoint(p store.Progress) error {
	p.WireBytes, p.Fetched = j.saved.WireBytes, j.saved.Fetched
	before, attempt := j.saved, j.row.Attempt
	j.saved = p
	if err := j.step(work.RoundDone, ""); err != nil {
		j.saved = before
		return err
	}
	if j.row.Paused {
		return errStopping
	}
	if j.row.Attempt != attempt {
		return j.tell(protocol.Scanning)
	}
	return nil
}
