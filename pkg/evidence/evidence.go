// Package evidence holds what lets somebody believe a statement without trusting who passed it on:
// signed envelopes, the Merkle tree over a manifest's rows, proofs that a row is in it or that a key
// is not, and the packed pages in which rows travel.
//
// It promises that what verifies here verifies the same in any implementation of
// docs/protocol/evidence.md, that a page is an exact subtree of the tree (so page roots fold into
// the root), and that a decoder refuses every body it would not itself have written. It is pure: no
// I/O, no clock, no keys of its own. It never decides whether a signer was allowed to sign, whether
// a key was valid then, or whether a statement is fresh; its callers do.
package evidence

import "errors"

// Every failure of this package is one of these. They are verdicts on what was received; repeating
// the call with the same bytes gives the same one.
var (
	// ErrDocumentType: the envelope is for another kind of statement; its signature was not looked at.
	ErrDocumentType = errors.New("the envelope's payload type is another one")
	// ErrSignature: no signature of the envelope verifies under any of the keys.
	ErrSignature = errors.New("no signature verifies")
	// ErrEnvelope: the text is no DSSE envelope in JSON.
	ErrEnvelope = errors.New("not a DSSE envelope")

	// ErrOrder: keys are not strictly ascending, or a key is not between its neighbours.
	ErrOrder = errors.New("keys are not strictly ascending")
	// ErrPage: the body is no packed page: cut off, too long, or not as AppendPage writes it.
	ErrPage = errors.New("not a packed page")
	// ErrPageRows: the page holds more rows than were allowed.
	ErrPageRows = errors.New("too many rows in a page")

	// ErrNotProven: rows, path and root do not belong together.
	ErrNotProven = errors.New("not proven into the root")
	// ErrGap: the neighbours are not next to each other, or an open end is not an end.
	ErrGap = errors.New("the neighbours leave a gap")
	// ErrSize: the evidence is about a tree of another size, or its parts do not add up to one.
	ErrSize = errors.New("the tree has another size")
)
