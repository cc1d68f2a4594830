package manifest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"lockstep.dev/pkg/canon"
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

const (
	// leastParts is from where on a table may be read as it lies. Few parts visit
	// each of its pages a few times only, and need no file.
	leastParts = 4
	// A statement reads mostSlice pages of the table, 16 MB, or fewer, so that each
	// reader gets several, but at least leastSlice.
	mostSlice, leastSlice, slicesEach = 2048, 64, 8
)

// made is a written set, not yet adopted.
type made struct {
	rows        int64
	pages       int
	root        evidence.Node
	windowStart time.Time
	way         way
}

// way is how the rows of a set were read.
type way string

const (
	byRanges way = "ranges"  // part after part
	inOrder  way = "ordered" // as one stream
	asLying  way = "heap"    // the table as it lies, over a file
)

// freezer is one read of the source into one set. Its readers take part after
// part; where a part's pages stand in the manifest is known before it is read.
type freezer struct {
	m    *Materialiser
	set  frozen.Set
	snap *source.Snapshot
	plan source.Plan
	pace *pace

	partRows int
	way      way
	pages    int64        // of the table, where it is read as it lies
	slice    int64        // of them are read by one statement
	next     atomic.Int64 // what is taken next: a part, or some pages
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
	return made{rows: rows, pages: pages, root: root, windowStart: snap.WindowStart(), way: z.way}, nil
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

// run reads all rows, in the cheapest of three ways.
func (z *freezer) run(ctx context.Context) error {
	if z.plan.Ordered {
		z.way = inOrder
		return z.stream(ctx)
	}
	kept, err := z.spill(ctx)
	if err != nil {
		return err
	}
	if kept == nil {
		z.way = byRanges
		return z.share(ctx, len(z.plan.Parts), z.work)
	}
	defer kept.close()
	z.way = asLying
	slices := int((z.pages + z.slice - 1) / z.slice)
	err = z.share(ctx, slices, func(ctx context.Context, reader *source.Reader) error { return z.gather(ctx, reader, kept) })
	if err != nil {
		return err
	}
	z.snap.Close(ctx) // the source may clean up while the rows are put in order
	z.next.Store(0)
	group, ctx := errgroup.WithContext(ctx)
	for range max(1, z.m.Readers) {
		group.Go(func() error { return z.settle(ctx, kept) })
	}
	return group.Wait()
}

// spill gives a place for the rows where reading the table as it lies is
// cheaper than finding the rows of part after part in it: of each page, a part
// has a row or two, so that every page is visited about as often as it has rows.
// nil where it isn't, or where there is no place for them.
func (z *freezer) spill(ctx context.Context) (*spill, error) {
	// A rate is of the rows that are taken; those that are passed would go beside it.
	if len(z.plan.Parts) < leastParts || z.m.Rate != nil {
		return nil, nil //nolint:nilnil // not an error: there is nothing to be kept
	}
	pages, err := z.snap.HeapPages(ctx, z.plan.Rows)
	if err != nil || pages == 0 {
		return nil, err
	}
	kept, err := newSpill(z.m.SpillDir, z.m.spillInMemory, z.plan)
	if errors.Is(err, errNoSpill) {
		z.m.Log.Info("a large manifest is read range by range, which takes longer: its rows can't be kept in a file meanwhile",
			zap.Stringer("task", z.pace.claim.ID), zap.Error(err))
		return nil, nil //nolint:nilnil // it is done in another way
	}
	z.pages = pages
	z.slice = min(max(pages/(slicesEach*int64(max(1, z.m.Readers))), leastSlice), mostSlice)
	return kept, err
}

// share gives the reading of some pieces to as many readers as have work and a
// connection. The snapshot's own one never waits for the others.
func (z *freezer) share(ctx context.Context, pieces int, read func(context.Context, *source.Reader) error) error {
	helpers := min(z.m.Readers, pieces) - 1
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
		defer enough() // all is taken: whoever has not joined has nothing to do
		return read(ctx, z.snap.Reader())
	})
	for range helpers {
		group.Go(func() error {
			reader, err := z.snap.Join(joining, name)
			if err != nil {
				return nil // the others read its share
			}
			defer reader.Leave(ctx)
			return read(ctx, reader)
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

// gather takes pages of the table until none is left, and keeps their rows.
func (z *freezer) gather(ctx context.Context, reader *source.Reader, kept *spill) error {
	defer z.pace.reader()()
	t := kept.tray()
	var hasher canon.Hasher
	rows := 0
	for {
		from := (z.next.Add(1) - 1) * z.slice
		if from >= z.pages {
			return t.finish()
		}
		// A slice may have no row of the set.
		z.pace.tick()
		if err := z.pace.guard(ctx); err != nil {
			return err
		}
		err := reader.ReadPages(ctx, from, from+z.slice, func(r *source.Row) error {
			if err := z.pace.row(ctx, rows, rows+paceRows); err != nil {
				return err
			}
			rows++
			row := frozenRow(&hasher, r)
			return t.add(&row)
		})
		if err != nil {
			return err
		}
	}
}

// settle takes parts that were kept until none is left.
func (z *freezer) settle(ctx context.Context, kept *spill) error {
	d := newDesk(z)
	for {
		number := int(z.next.Add(1)) - 1
		if number >= len(z.plan.Parts) {
			return nil
		}
		if err := d.load(kept, number); err != nil {
			return err
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
