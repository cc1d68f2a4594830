package lockstep

import (
	"fmt"

	"lockstep.dev/pkg/evidence"
)

// maxPageRows bounds what one page makes a consumer hold and verify; the
// protocol's own page is 128 rows.
const maxPageRows = 1 << 14

// Shape is what the signed header says about the set.
type Shape struct {
	Root      evidence.Node
	RowCount  int64
	PageRows  int // a power of two, so that pages are aligned subtrees
	PageCount int
	// Record is the raw key of a record's task; empty for a whole collection.
	Record string
}

// Entry is one page of the index.
type Entry struct {
	LastKey string // raw
	Root    evidence.Node
	Rows    int
}

// Range bounds raw keys: After < key <= UpTo, a nil bound is open.
type Range struct{ After, UpTo *string }

// Contains says whether a raw key lies in the range.
func (r Range) Contains(key string) bool {
	return (r.After == nil || key > *r.After) && (r.UpTo == nil || key <= *r.UpTo)
}

// IndexBuilder checks a page index as it arrives.
type IndexBuilder struct {
	shape   Shape
	entries []Entry
	rows    int64
}

// NewIndexBuilder refuses a header whose own numbers contradict each other (ErrIncomplete).
func NewIndexBuilder(shape Shape) (*IndexBuilder, error) {
	size := shape.PageRows
	if size < 1 || size > maxPageRows || size&(size-1) != 0 {
		return nil, fmt.Errorf("%w: a page of %d rows is no aligned subtree of at most %d", ErrIncomplete, size, maxPageRows)
	}
	if shape.RowCount < 0 || int64(shape.PageCount) != (shape.RowCount+int64(size)-1)/int64(size) {
		return nil, fmt.Errorf("%w: %d pages of %d can't hold %d rows", ErrIncomplete, shape.PageCount, size, shape.RowCount)
	}
	if shape.Record != "" && shape.RowCount > 1 {
		return nil, fmt.Errorf("%w: %d rows for one record", ErrIncomplete, shape.RowCount)
	}
	return &IndexBuilder{shape: shape}, nil
}

// Add takes the next page's entry. ErrIncomplete: too many pages, a page of the
// wrong size, a foreign record; ErrOrder: last keys do not ascend.
func (b *IndexBuilder) Add(e Entry) error {
	page := len(b.entries)
	if page >= b.shape.PageCount {
		return fmt.Errorf("%w: the index has more than %d pages", ErrIncomplete, b.shape.PageCount)
	}
	want := int64(b.shape.PageRows)
	if page == b.shape.PageCount-1 {
		want = b.shape.RowCount - b.rows
	}
	switch {
	case int64(e.Rows) != want:
		return fmt.Errorf("%w: page %d has %d rows instead of %d", ErrIncomplete, page, e.Rows, want)
	case e.LastKey == "":
		return fmt.Errorf("%w: page %d has no last key", ErrIncomplete, page)
	case b.shape.Record != "" && e.LastKey != b.shape.Record:
		return fmt.Errorf("%w: the manifest of one record holds another", ErrIncomplete)
	case page > 0 && e.LastKey <= b.entries[page-1].LastKey:
		return fmt.Errorf("%w: the last key of page %d does not ascend", ErrOrder, page)
	}
	b.entries = append(b.entries, e)
	b.rows += int64(e.Rows)
	return nil
}

// Index yields the checked index. ErrIncomplete: pages are missing;
// ErrNotProven: the page roots do not fold into the signed root.
func (b *IndexBuilder) Index() (*Index, error) {
	if len(b.entries) != b.shape.PageCount {
		return nil, fmt.Errorf("%w: the index has %d of %d pages", ErrIncomplete, len(b.entries), b.shape.PageCount)
	}
	root := evidence.EmptyRoot()
	if len(b.entries) > 0 {
		roots := make([]evidence.Node, len(b.entries))
		for i := range b.entries {
			roots[i] = b.entries[i].Root
		}
		root = evidence.Fold(roots)
	}
	if root != b.shape.Root {
		return nil, fmt.Errorf("%w: the index does not fold into it", ErrNotProven)
	}
	return &Index{shape: b.shape, entries: b.entries}, nil
}

// Index is a page index that folds into the signed root. It is read-only and
// safe for concurrent use.
type Index struct {
	shape   Shape
	entries []Entry
}

// Pages is the number of pages.
func (x *Index) Pages() int { return len(x.entries) }

// PageRows is the number of rows of every page but the last.
func (x *Index) PageRows() int { return x.shape.PageRows }

// Rows is the number of rows of the set.
func (x *Index) Rows() int64 { return x.shape.RowCount }

// Entry is the entry of a page.
func (x *Index) Entry(page int) Entry { return x.entries[page] }

// RowsOf counts the center's rows in the ranges [from, to).
func (x *Index) RowsOf(from, to int) int64 {
	var n int64
	for i := from; i < min(to, len(x.entries)); i++ {
		n += int64(x.entries[i].Rows)
	}
	return n
}

// Ranges is the number of ranges: the pages, and the tail above the last key.
// A record's task has exactly one. Range numbers below Pages are page numbers.
func (x *Index) Ranges() int {
	if x.shape.Record != "" {
		return 1
	}
	return len(x.entries) + 1
}

// Range gives the bounds of range i. All ranges together cover every key of a
// collection exactly once.
func (x *Index) Range(i int) Range { return x.Span(i, i+1) }

// Span gives the bounds of the ranges [from, to) as one; of no range, bounds that hold nothing.
func (x *Index) Span(from, to int) Range {
	if to <= from {
		return Range{UpTo: new(string)}
	}
	if x.shape.Record != "" {
		return only(x.shape.Record)
	}
	var r Range
	if from > 0 {
		r.After = &x.entries[from-1].LastKey
	}
	if to <= len(x.entries) {
		r.UpTo = &x.entries[to-1].LastKey
	}
	return r
}

// only is the range that holds one key: the keys of a kind have one length, so
// the greatest key below it is the number below it.
func only(key string) Range {
	below := []byte(key)
	for i := len(below) - 1; i >= 0; i-- {
		below[i]--
		if below[i] != 0xff {
			after := string(below)
			return Range{After: &after, UpTo: &key}
		}
	}
	return Range{UpTo: &key}
}

// VerifyPage accepts the fetched rows of a page only if they give the page's
// signed root (ErrNotProven), ascend (ErrOrder) and fill exactly the page's
// range (ErrIncomplete).
func (x *Index) VerifyPage(page int, rows []evidence.PageRow) error {
	if page < 0 || page >= len(x.entries) {
		return fmt.Errorf("%w: there is no page %d", ErrIncomplete, page)
	}
	entry := &x.entries[page]
	if len(rows) != entry.Rows {
		return fmt.Errorf("%w: page %d came with %d rows instead of %d", ErrNotProven, page, len(rows), entry.Rows)
	}
	if evidence.PageRowsRoot(rows) != entry.Root {
		return fmt.Errorf("%w: page %d has another root", ErrNotProven, page)
	}
	for i := 1; i < len(rows); i++ {
		if rows[i].Key <= rows[i-1].Key {
			return fmt.Errorf("%w: row %d of page %d does not ascend", ErrOrder, i, page)
		}
	}
	if page > 0 && rows[0].Key <= x.entries[page-1].LastKey {
		return fmt.Errorf("%w: page %d overlaps the page before it", ErrIncomplete, page)
	}
	if rows[len(rows)-1].Key != entry.LastKey {
		return fmt.Errorf("%w: page %d does not end at its last key", ErrIncomplete, page)
	}
	return nil
}
