package manifest

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store/frozen"
)

// batchRows go into one COPY: about a megabyte of packed pages, a transaction
// of a few milliseconds.
const batchRows = 16_384

// desk is where one reader puts the rows of a part in order and makes pages of
// them. Its memory is used again for the next part.
type desk struct {
	z      *freezer
	hasher canon.Hasher
	rows   []evidence.PageRow // of the part, as they came
	order  []place
	page   []evidence.PageRow
	pages  []frozen.Page
	buf    []byte // of a part that was kept
}

// place is a row by the first bytes of its key, so that few comparisons have to
// look at the keys themselves.
type place struct {
	head uint64
	at   int
}

func newDesk(z *freezer) *desk {
	return &desk{z: z, page: make([]evidence.PageRow, 0, z.m.Limits.PageRows)}
}

// add hashes a row as it comes; its content is not kept.
func (d *desk) add(ctx context.Context, r *source.Row, most int) error {
	if len(d.rows) == most {
		return errCount()
	}
	if err := d.z.pace.row(ctx, len(d.rows), most); err != nil {
		return err
	}
	if d.rows == nil {
		d.rows = make([]evidence.PageRow, 0, min(most, d.z.partRows))
		d.order = make([]place, 0, cap(d.rows))
	}
	d.order = append(d.order, place{head(r.Key), len(d.rows)})
	d.rows = append(d.rows, frozenRow(&d.hasher, r))
	return nil
}

// load takes a part's rows from where they were kept.
func (d *desk) load(kept *spill, part int) (err error) {
	if d.rows, d.buf, err = kept.read(part, d.rows, d.buf); err != nil {
		return err
	}
	for i := range d.rows {
		d.order = append(d.order, place{head(d.rows[i].Key), i})
	}
	return nil
}

// frozenRow is a row as its page has it.
func frozenRow(h *canon.Hasher, r *source.Row) evidence.PageRow {
	return evidence.PageRow{
		Row:           evidence.Row{Key: r.Key, Revision: r.Revision, Hash: hash(h, r.Content), Deleted: r.Deleted},
		SchemaVersion: r.SchemaVersion, Sequence: r.Sequence,
	}
}

// head of a key sorts as its first eight bytes do; a short key is filled with
// zeros, which is why equal heads are no equal keys.
func head(key string) uint64 {
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
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

// finish orders the part, writes its pages and hands on their roots. A key that
// occurs twice is ORDER_VIOLATION.
func (d *desk) finish(ctx context.Context, part int) error {
	slices.SortFunc(d.order, func(a, b place) int {
		if a.head != b.head {
			return cmp.Compare(a.head, b.head)
		}
		return cmp.Compare(d.rows[a.at].Key, d.rows[b.at].Key)
	})
	for i := 1; i < len(d.order); i++ {
		if d.order[i].head == d.order[i-1].head && d.rows[d.order[i].at].Key == d.rows[d.order[i-1].at].Key {
			return fault.New(fault.OrderViolation, "the source gave one key twice")
		}
	}
	pageRows := d.z.m.Limits.PageRows
	number := part * (d.z.partRows / pageRows)
	roots := make([]evidence.Node, 0, (len(d.order)+pageRows-1)/pageRows)
	for places := range slices.Chunk(d.order, max(pageRows, batchRows)) {
		d.pages = d.pages[:0]
		for chunk := range slices.Chunk(places, pageRows) {
			page := d.pack(chunk)
			page.Number = number + len(roots)
			roots = append(roots, page.Root)
		}
		if err := d.z.m.Frozen.Write(ctx, d.z.set, d.pages); err != nil {
			return err
		}
		d.z.pace.tick()
	}
	d.z.fold.add(part, roots, len(d.order))
	d.rows, d.order = d.rows[:0], d.order[:0]
	return nil
}

// pack appends the page of some rows, with the memory of one that was written.
func (d *desk) pack(places []place) *frozen.Page {
	d.page = d.page[:0]
	for _, p := range places {
		d.page = append(d.page, d.rows[p.at])
	}
	if len(d.pages) < cap(d.pages) {
		d.pages = d.pages[:len(d.pages)+1]
	} else {
		d.pages = append(d.pages, frozen.Page{})
	}
	p := &d.pages[len(d.pages)-1]
	p.Rows = len(d.page)
	p.LastKey = append(p.LastKey[:0], d.page[len(d.page)-1].Key...)
	p.Root = evidence.PageRowsRoot(d.page)
	p.Body = evidence.AppendPage(p.Body[:0], d.page)
	return p
}
