package manifest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store/frozen"
)

// defaultPartRows are read, hashed and put in order as one: about 4 MB of rows
// without their contents, for each reader. Larger parts are read a little
// cheaper, because more of their rows lie in the same page of the table.
const defaultPartRows = 32_768

// made is a written set, not yet adopted.
type made struct {
	rows        int64
	pages       int
	root        evidence.Node
	windowStart time.Time
}

// freezer is one read of the source into one set. Its readers take part after
// part; where a part's pages stand in the manifest is known before it is read.
type freezer struct {
	m    *Materialiser
	set  frozen.Set
	snap *source.Snapshot
	plan source.Plan
	pace *pace

	partRows int
	next     atomic.Int64 // the part that is taken next
	fold     fold
}

// freeze reads the range once and writes its pages, if there are not too many rows.
func (m *Materialiser) freeze(ctx context.Context, keeper *claim.Keeper, c claim.Claim, rng source.Range, set frozen.Set) (made, error) {
	ctx, cancel := context.WithTimeout(ctx, source.MaxReadTime)
	defer cancel()
	snap, err := m.Source.Begin(ctx, rng)
	if err != nil {
		return made{}, err
	}
	defer snap.Close(ctx)
	z := &freezer{m: m, set: set, snap: snap, partRows: m.partRows(), pace: m.newPace(c, keeper), fold: fold{waiting: map[int][]evidence.Node{}}}
	limit, name := m.Limits.rows()
	stop := z.pace.alive()
	z.plan, err = snap.Plan(ctx, limit, z.partRows)
	stop()
	if err != nil {
		return made{}, err
	}
	if z.plan.Rows > limit {
		return made{}, m.tooMany(name)
	}
	if err := m.tooSlow(z.plan.Rows); err != nil {
		return made{}, err
	}
	done, err := m.turn(z.plan.Rows)
	if err != nil {
		return made{}, err
	}
	defer done()
	if m.counted != nil {
		m.counted()
	}
	if err := m.Frozen.Begin(ctx, c, set); err != nil {
		return made{}, err
	}
	if err := z.run(ctx); err != nil {
		return made{}, err
	}
	rows, pages, root := z.fold.result()
	if rows != z.plan.Rows {
		return made{}, errCount()
	}
	return made{rows: rows, pages: pages, root: root, windowStart: snap.WindowStart()}, nil
}

// partRows is a whole number of pages, so that no page has rows of two parts.
func (m *Materialiser) partRows() int {
	rows := m.PartRows
	if rows == 0 {
		rows = defaultPartRows
	}
	return max(rows/m.Limits.PageRows, 1) * m.Limits.PageRows
}

// errCount: in one snapshot a range has as many rows as were counted, unless
// keys occur twice, or an index is damaged.
func errCount() error {
	return fault.New(fault.OrderViolation, "the source gave another number of rows than it counted, or one key twice")
}

// run reads all parts, with as many readers as have work and a connection. The
// snapshot's own one never waits for the others.
func (z *freezer) run(ctx context.Context) error {
	if z.plan.Ordered {
		return z.stream(ctx)
	}
	helpers := min(z.m.Readers, len(z.plan.Parts)) - 1
	name := ""
	if helpers > 0 {
		var err error
		if name, err = z.snap.Export(ctx); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	joining, enough := context.WithCancel(ctx)
	defer enough()
	group.Go(func() error {
		err := z.work(ctx, z.snap.Reader())
		// Every part is taken: whoever has not joined has nothing to do, and the
		// snapshot need not stay open for those who have.
		enough()
		z.snap.Close(ctx)
		return err
	})
	for range helpers {
		group.Go(func() error {
			reader, err := z.snap.Join(joining, name)
			if err != nil {
				return nil // the others read its share
			}
			defer reader.Leave(ctx)
			return z.work(ctx, reader)
		})
	}
	return group.Wait()
}

// work takes parts until none is left.
func (z *freezer) work(ctx context.Context, reader *source.Reader) error {
	defer z.pace.reader()()
	d := newDesk(z)
	for {
		number := int(z.next.Add(1)) - 1
		if number >= len(z.plan.Parts) {
			return nil
		}
		part := z.plan.Parts[number]
		if err := reader.Read(ctx, part, func(r *source.Row) error { return d.add(ctx, r, int(part.Rows)) }); err != nil {
			return err
		}
		if int64(len(d.rows)) != part.Rows {
			return errCount()
		}
		if err := d.finish(ctx, number); err != nil {
			return err
		}
	}
}

// stream reads all rows in the order in which the source sorts them, and parts
// them as they come.
func (z *freezer) stream(ctx context.Context) error {
	defer z.pace.reader()()
	d, number := newDesk(z), 0
	sorted := z.pace.alive()
	defer sorted()
	err := z.snap.Reader().ReadOrdered(ctx, func(r *source.Row) error {
		sorted()
		if err := d.add(ctx, r, z.partRows); err != nil || len(d.rows) < z.partRows {
			return err
		}
		number++
		return d.finish(ctx, number-1)
	})
	if err != nil {
		return err
	}
	return d.finish(ctx, number)
}

// fold gives the root of the pages, whose parts may come in any order; no more
// of them wait than there are readers.
type fold struct {
	mu      sync.Mutex
	next    int
	waiting map[int][]evidence.Node
	tree    evidence.Builder
	rows    int64
	pages   int
}

func (f *fold) add(part int, roots []evidence.Node, rows int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows += int64(rows)
	f.waiting[part] = roots
	for {
		ready, ok := f.waiting[f.next]
		if !ok {
			return
		}
		delete(f.waiting, f.next)
		f.next++
		f.pages += len(ready)
		for _, root := range ready {
			f.tree.Add(root)
		}
	}
}

func (f *fold) result() (rows int64, pages int, root evidence.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows, f.pages, f.tree.Root()
}

// errBusy: the source had too much to do for too long while its snapshot was open.
func errBusy() error {
	return fault.New(fault.LoadGuard, "the source has too much to do for others")
}
