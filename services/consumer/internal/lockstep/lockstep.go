// Package lockstep compares a signed, frozen set of rows with a local image of
// it and names every difference exactly once, in key order. It is pure: no
// database, no network, no clock.
//
// The set's rows are the leaves of one Merkle tree. A page is an aligned
// subtree, so page roots fold into the signed root and the same page root can
// be computed from local rows. The set's key space is cut into ranges, each
// open below and closed above at a page's last key, and one tail range above
// the last page that is open at both ends:
//
//	page 0        page 1              page n-1        tail
//	(-∞, last0]   (last0, last1]  …   (…, last(n-1)]  (last(n-1), +∞)
//
// The algorithm:
//
//  1. IndexBuilder takes the page index entry by entry, refuses gaps, overlaps
//     and wrong counts, and yields an Index only if the entries fold into the
//     signed root. Nothing is compared before that.
//  2. Index.Range gives the local keys of each range. A record's task has one
//     range that holds nothing but that key.
//  3. Digest takes a round's local rows in key order, computes each range's
//     root and compares it with the signed one. Equal: every row of the page is
//     equal, and the page need not be fetched.
//  4. Otherwise the range is a Part: its local rows are kept if they are at
//     most a page and one, else it is marked as overflowed and is read again.
//  5. Index.VerifyPage accepts a fetched page only if its rows give the signed
//     page root and fill exactly their range.
//  6. Merge walks the page and the range's local rows once, both ascending, and
//     emits a Difference for each key that Classify finds to differ.
//  7. Rows of the tail, and of an empty set, exist on the local side only; they
//     go through the same Merge with no center rows.
//
// The package promises that memory is bounded by the pages of a round and never
// by the number of rows or differences (the index itself takes about 80 bytes a
// page), and that keys out of order are an error and never a difference: a row
// that was not seen is never called extra.
package lockstep

import "errors"

// What is wrong with a side. None of them gets better by trying again.
var (
	// ErrIncomplete: the set's pages or rows do not add up to its signed header.
	ErrIncomplete = errors.New("the manifest does not add up")
	// ErrNotProven: the index or a page does not give the signed root.
	ErrNotProven = errors.New("the page is not proven by the signed root")
	// ErrOrder: a side yielded keys that do not ascend, or that lie outside the range asked for.
	ErrOrder = errors.New("keys are out of order")
)
