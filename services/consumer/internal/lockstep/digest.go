package lockstep

import (
	"fmt"
	"slices"

	"lockstep.dev/pkg/evidence"
)

// Part is a range whose local rows are not the center's.
type Part struct {
	// Range is its number in the index; a page's number, or the tail's.
	Range int
	// Rows are the range's local rows; nil where Overflow says that they were too
	// many to keep. An overflowed range is read again, as a stream into Merge.
	Rows     []evidence.Row
	Overflow bool
}

// Digest computes the page roots of a round from the local rows. It keeps at
// most a page, an eighth and one row of every differing range. It is not safe for
// concurrent use; rounds are independent of each other.
type Digest struct {
	// Every makes every range a part, as if none were equal: then each row of both
	// sides is compared.
	Every bool
	// Sound, where it is set, is of the rows whose contents were hashed. A range for
	// which it does not vouch is no part: it is in Doubted.
	Sound *Sums

	index    *Index
	at, end  int // the range being filled, the end of the round
	bound    int
	tree     evidence.Builder
	rows     []evidence.Row // of range at, while they are at most bound
	inRange  int            // rows seen in range at
	unhashed bool           // range at has a row without a hash
	sum      sum            // of range at, where Sound wants to know
	span     Range
	last     string
	started  bool
	added    int64 // rows of the round so far
	scanned  int64 // those of ranges that are not doubted
	parts    []Part
	doubted  [][2]int
}

// NewDigest starts the digest of the ranges [from, to) of an index.
func NewDigest(x *Index, from, to int) *Digest {
	d := &Digest{index: x, bound: x.PageRows() + x.PageRows()/8 + 1}
	d.Reset(from, to)
	return d
}

// Reset starts the digest of other ranges, reusing the memory. Parts given out
// before stay valid.
func (d *Digest) Reset(from, to int) {
	d.at, d.end = from, to
	d.span = d.index.Span(from, to)
	d.last, d.started, d.added, d.scanned, d.parts, d.doubted = "", false, 0, 0, nil, nil
	d.clearRange()
}

// Span is the range of the round's local rows.
func (d *Digest) Span() Range { return d.span }

// Add takes the next local rows in key order, in pieces of any size. ErrOrder:
// a key does not ascend or is not of the round. The rows are copied.
func (d *Digest) Add(rows []evidence.Row) error {
	for i := range rows {
		row := &rows[i]
		if (d.started && row.Key <= d.last) || !d.span.Contains(row.Key) {
			return fmt.Errorf("%w: local row %d of the round", ErrOrder, d.added)
		}
		for d.at < d.index.Pages() && row.Key > d.index.entries[d.at].LastKey {
			d.closeRange()
		}
		d.addToRange(row)
		d.last, d.started = row.Key, true
		d.added++
	}
	return nil
}

func (d *Digest) addToRange(row *evidence.Row) {
	d.inRange++
	// More rows than the page has can't give its root: no need to hash them.
	inPage := d.at < d.index.Pages() && d.inRange <= d.index.entries[d.at].Rows
	if inPage || d.Sound != nil {
		leaf := evidence.LeafHash(row)
		if inPage {
			d.tree.Add(leaf)
		}
		d.sum.add(sumOf(leaf))
	}
	d.unhashed = d.unhashed || row.Hash.IsZero()
	if d.inRange <= d.bound {
		d.rows = append(d.rows, *row)
	}
}

// closeRange decides range at and goes on to the next.
func (d *Digest) closeRange() {
	defer func() {
		d.at++
		d.clearRange()
	}()
	if d.Sound != nil && !d.Sound.vouches(d.at, d.sum) {
		d.doubt()
		return
	}
	d.scanned += int64(d.inRange)
	if d.Every || !d.rangeEqual() {
		part := Part{Range: d.at, Overflow: d.inRange > d.bound}
		if !part.Overflow {
			part.Rows = slices.Clone(d.rows)
		}
		d.parts = append(d.parts, part)
	}
}

// doubt notes range at, with the one before it where that is doubted too.
func (d *Digest) doubt() {
	if n := len(d.doubted); n > 0 && d.doubted[n-1][1] == d.at {
		d.doubted[n-1][1]++
		return
	}
	d.doubted = append(d.doubted, [2]int{d.at, d.at + 1})
}

func (d *Digest) clearRange() {
	d.tree.Reset()
	d.rows, d.inRange, d.unhashed, d.sum = d.rows[:0], 0, false, sum{}
}

// rangeEqual never calls a range with an unhashable row equal: the center marks
// such rows with the same all-zero hash, and they have to be reported.
func (d *Digest) rangeEqual() bool {
	if d.at >= d.index.Pages() {
		return d.inRange == 0
	}
	entry := &d.index.entries[d.at]
	return !d.unhashed && d.inRange == entry.Rows && d.tree.Root() == entry.Root
}

// Close says that the round's local rows have all been added, and gives the
// ranges that differ, in order. Call it only where the local read reached the
// round's end: a range that was not read to its end looks as if rows were missing.
func (d *Digest) Close() []Part {
	for d.at < d.end {
		d.closeRange()
	}
	return d.parts
}

// Doubted gives, once Close was called, the ranges [from, to) whose rows are not
// those that Sound is of, in order: their contents have to be hashed.
func (d *Digest) Doubted() [][2]int { return d.doubted }

// Scanned is the number of local rows added, without those of doubted ranges.
func (d *Digest) Scanned() int64 { return d.scanned }
