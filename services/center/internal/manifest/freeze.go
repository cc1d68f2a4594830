package manifest

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store/frozen"
)

const (
	// batchRows go into one COPY: about a megabyte of packed pages, a
	// transaction of a few milliseconds. Two batches are in flight, one being
	// written while the other one fills: this is what bounds the memory.
	batchRows = 16_384
	// maxArena bounds the content that waits to be hashed in one frame. What
	// goes beyond it is hashed by the reader at once, without a copy.
	maxArena = 1 << 20
)

// made is a written set, not yet adopted.
type made struct {
	rows        int64
	pages       int
	root        evidence.Node
	windowStart time.Time
}

// frame is one page on its way from rows to a packed, proven body.
type frame struct {
	rows     []evidence.PageRow
	contents []span // of the rows whose content waits in arena
	arena    []byte
	page     frozen.Page
	ready    chan struct{} // tells the writer that the workers are done with it
}

// span is a row's content in the arena; null contents are spans of length 0,
// which no JSON text has.
type span struct{ row, from, to int }

// freezer is one run of the pipeline: a reader, workers that may finish in any
// order, and a writer that takes the frames in the reader's order.
type freezer struct {
	ctx      context.Context // of the run
	pageRows int
	batch    int // pages in one COPY
	limit    int64
	tooMany  func() error
	tick     func()

	free    chan *frame // frames nobody uses
	arenas  chan []byte // scratch for contents; fewer than frames, they are the big part
	work    chan *frame // to the workers
	ordered chan *frame // to the writer
	hasher  canon.Hasher

	current *frame
	rows    int64
	pages   int
}

// freeze reads the range once and writes its pages.
func (m *Materialiser) freeze(ctx context.Context, keeper *claim.Keeper, rng source.Range, set frozen.Set, limit int64) (made, error) {
	workers := runtime.GOMAXPROCS(0)
	group, ctx := errgroup.WithContext(ctx)
	_, name := m.Limits.rows()
	batch := max(1, batchRows/m.Limits.PageRows)
	frames := 2 * batch
	z := &freezer{
		ctx: ctx, pageRows: m.Limits.PageRows, batch: batch, limit: limit, tick: keeper.Tick,
		tooMany: func() error { return m.tooMany(name) },
		free:    make(chan *frame, frames), arenas: make(chan []byte, 2*workers+2),
		work: make(chan *frame, frames), ordered: make(chan *frame, frames),
	}
	for range cap(z.free) {
		z.free <- nil // made when they are first used
	}
	for range cap(z.arenas) {
		z.arenas <- nil
	}
	var out made
	var tree evidence.Builder
	group.Go(func() error {
		defer close(z.ordered)
		defer close(z.work)
		var err error
		if out.windowStart, err = m.Source.Read(ctx, rng, z.add); err != nil {
			return err
		}
		return z.flush()
	})
	for range workers {
		group.Go(func() error { z.digest(); return nil })
	}
	group.Go(func() error {
		return z.write(&tree, func(pages []frozen.Page) error { return m.Frozen.Write(ctx, set, pages) })
	})
	if err := group.Wait(); err != nil {
		return made{}, err
	}
	out.rows, out.pages, out.root = z.rows, z.pages, tree.Root()
	return out, nil
}

// add takes the reader's next row.
func (z *freezer) add(r *source.Row) error {
	if z.rows++; z.rows > z.limit {
		return z.tooMany()
	}
	if z.current == nil {
		if err := z.open(); err != nil {
			return err
		}
	}
	f := z.current
	f.rows = append(f.rows, evidence.PageRow{
		Row:           evidence.Row{Key: r.Key, Revision: r.Revision, Deleted: r.Deleted},
		SchemaVersion: r.SchemaVersion, Sequence: r.Sequence,
	})
	last := len(f.rows) - 1
	if from := len(f.arena); from+len(r.Content) <= maxArena {
		f.arena = append(f.arena, r.Content...)
		f.contents = append(f.contents, span{last, from, len(f.arena)})
	} else {
		f.rows[last].Hash = hash(&z.hasher, r.Content)
	}
	if len(f.rows) < z.pageRows {
		return nil
	}
	return z.flush()
}

// open takes a free frame, waiting for the writer, and an arena, waiting for
// the workers: this is what bounds the memory.
func (z *freezer) open() error {
	var f *frame
	select {
	case f = <-z.free:
	case <-z.ctx.Done():
		return context.Cause(z.ctx)
	}
	if f == nil {
		f = &frame{rows: make([]evidence.PageRow, 0, z.pageRows), contents: make([]span, 0, z.pageRows), ready: make(chan struct{}, 1)}
	}
	select {
	case f.arena = <-z.arenas:
	case <-z.ctx.Done():
		return context.Cause(z.ctx)
	}
	z.current = f
	return nil
}

// flush passes the current frame on, if there is one. The channels have room
// for every frame.
func (z *freezer) flush() error {
	f := z.current
	if f == nil {
		return nil
	}
	z.tick()
	z.current = nil
	f.page.Number = z.pages
	z.pages++
	z.work <- f
	z.ordered <- f
	return nil
}

// digest is a worker: it hashes contents, folds the page's root and packs it.
func (z *freezer) digest() {
	var h canon.Hasher
	for f := range z.work {
		for _, c := range f.contents {
			f.rows[c.row].Hash = hash(&h, f.arena[c.from:c.to])
		}
		z.arenas <- f.arena[:0]
		f.arena = nil
		p := &f.page
		p.Rows = len(f.rows)
		p.LastKey = append(p.LastKey[:0], f.rows[len(f.rows)-1].Key...)
		p.Root = evidence.PageRowsRoot(f.rows)
		p.Body = evidence.AppendPage(p.Body[:0], f.rows)
		f.ready <- struct{}{}
	}
}

// hash of a content; all zeros where it has none, so that one bad row never
// fails its collection.
func hash(h *canon.Hasher, content []byte) canon.Hash {
	sum, err := h.Sum(content)
	if err != nil {
		return canon.Hash{}
	}
	return sum
}

// write folds the pages in order and hands them on in batches.
func (z *freezer) write(tree *evidence.Builder, write func([]frozen.Page) error) error {
	batch := make([]*frame, 0, z.batch)
	pages := make([]frozen.Page, 0, z.batch)
	send := func() error {
		if len(batch) == 0 {
			return nil
		}
		if err := write(pages); err != nil {
			return err
		}
		z.tick()
		for _, f := range batch {
			f.rows, f.contents = f.rows[:0], f.contents[:0]
			z.free <- f
		}
		batch, pages = batch[:0], pages[:0]
		return nil
	}
	for f := range z.ordered {
		select {
		case <-f.ready:
		case <-z.ctx.Done():
			return context.Cause(z.ctx)
		}
		tree.Add(f.page.Root)
		batch, pages = append(batch, f), append(pages, f.page)
		if len(batch) == z.batch {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if err := z.ctx.Err(); err != nil {
		return err
	}
	return send()
}
