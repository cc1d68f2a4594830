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

	index    *Index
	at, end  int // the range being filled, the end of the round
	bound    int
	tree     evidence.Builder
	rows     []evidence.Row // of range at, while they are at most bound
	inRange  int            // rows seen in range at
	unhashed bool           // range at has a row without a hash
	span     Range
	last     string
	started  bool
	scanned  int64
	parts    []Part
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
	d.last, d.started, d.scanned, d.parts = "", false, 0, nil
	d.clearRange()
}

// Add takes the next local rows in key order, in pieces of any size. ErrOrder:
// a key does not ascend or is not of the round. The rows are copied.
func (d *Digest) Add(rows []evidence.Row) error {
	for i := range rows {
		row := &rows[i]
		if (d.started && row.Key <= d.last) || !d.span.Contains(row.Key) {
			return fmt.Errorf("%w: local row %d of the round", ErrOrder, d.scanned)
		}
		for d.at < d.index.Pages() && row.Key > d.index.entries[d.at].LastKey {
			d.closeRange()
		}
		d.addToRange(row)
		d.last, d.started = row.Key, true
		d.scanned++
	}
	return nil
}

func (d *Digest) addToRange(row *evidence.Row) {
	d.inRange++
	// More rows than the page has can't give its root: no need to hash them.
	if d.at < d.index.Pages() && d.inRange <= d.index.entries[d.at].Rows {
		d.tree.Add(evidence.LeafHash(row))
	}
	d.unhashed = d.unhashed || row.Hash.IsZero()
	if d.inRange <= d.bound {
		d.rows = append(d.rows, *row)
	}
}

// closeRange decides range at and goes on to the next.
func (d *Digest) closeRange() {
	if d.Every || !d.rangeEqual() {
		part := Part{Range: d.at, Overflow: d.inRange > d.bound}
		if !part.Overflow {
			part.Rows = slices.Clone(d.rows)
		}
		d.parts = append(d.parts, part)
	}
	d.at++
	d.clearRange()
}

func (d *Digest) clearRange() {
	d.tree.Reset()
	d.rows, d.inRange, d.unhashed = d.rows[:0], 0, false
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

// Scanned is the number of local rows added.
func (d *Digest) Scanned() int64 { return d.scanned }
