// Package canon gives a JSON value one spelling and one hash, lockstep.canon.v1, so that two
// databases can tell whether they hold the same content without showing it to each other.
//
// It promises that two texts hash alike exactly when they are the same value: member order, white
// space, the choice of escapes and the spelling of a number do not count; every digit does. What it
// can't decide is refused with [ErrRefused], and the error holds a position and a reason.
//
// It never goes through a floating-point number, never normalises Unicode, never repairs bad input
// and never puts content into an error. The rule for other languages, with its test vectors, is in
// docs/protocol/canonical-content.md.
package canon

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"sync"
)

// ID names the canonical form and is part of every hash, so a later form can't collide with it.
const ID = "lockstep.canon.v1"

// What a text may measure. The bounds are part of the form: both sides must refuse the same rows.
const (
	MaxDepth = 64      // arrays and objects inside one another; a scalar has depth 0
	MaxBytes = 8 << 20 // of the text as given; one content must fit a snapshot answer
	MaxNodes = 100_000 // values of any kind, member names not counted
)

// ErrRefused is what every refusal is: the row can't be hashed, and trying again will not help.
var ErrRefused = errors.New("content has no canonical form")

// Error says where a text was refused and why. Reason is one of a fixed set of phrases of this
// package, so an Error is safe to log.
type Error struct {
	Offset int // in bytes of the text as given
	Reason string
}

func (e *Error) Error() string {
	return "canon: offset " + strconv.Itoa(e.Offset) + ": " + e.Reason
}

// Is reports true for ErrRefused.
func (e *Error) Is(target error) bool { return target == ErrRefused }

// Hash is SHA-256 over ID, a newline and the canonical form. The zero Hash is the mark of a row
// that could not be hashed; no content is known to have it.
type Hash [sha256.Size]byte

// String gives 64 lower-case hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// IsZero reports whether h is the mark of a row without a hash.
func (h Hash) IsZero() bool { return h == Hash{} }

// ErrHash is returned for text that is not 64 lower-case hexadecimal digits.
var ErrHash = errors.New("canon: a hash is 64 lower-case hexadecimal digits")

// ParseHash reads what String wrote, and no other spelling.
func ParseHash(s string) (Hash, error) {
	var h Hash
	if len(s) != hex.EncodedLen(len(h)) {
		return Hash{}, ErrHash
	}
	for i := range len(s) {
		if s[i] >= 'A' && s[i] <= 'F' {
			return Hash{}, ErrHash
		}
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return Hash{}, ErrHash
	}
	return h, nil
}

const (
	hashPrefix = ID + "\n"
	sqlNull    = "null" // what an absent text (SQL NULL) hashes as

	// maxKept bounds what a Hasher keeps between rows: one huge row must not stay in memory.
	maxKept = 256 << 10
)

// Append appends the canonical form of one JSON text to dst. An empty text is refused: only the
// hash knows what SQL NULL means. When refused, dst is returned with its old length.
func Append(dst, json []byte) ([]byte, error) {
	h := hashers.Get().(*Hasher)
	defer hashers.Put(h)
	out, err := h.w.write(dst, json)
	h.w.trim()
	return out, err
}

// Sum hashes one JSON text; see [Hasher.Sum].
func Sum(json []byte) (Hash, error) {
	h := hashers.Get().(*Hasher)
	defer hashers.Put(h)
	return h.Sum(json)
}

// hashers only saves Append and Sum from allocating scratch space at every call.
var hashers = sync.Pool{New: func() any { return new(Hasher) }}

// Hasher hashes one text after another and reuses its memory: after the first few rows it does not
// allocate. It is fastest where rows have the member names of the row before; what a text hashes as
// does not depend on any other. The zero value is ready. It is not safe for concurrent use.
type Hasher struct {
	w   writer
	buf []byte
}

// Sum hashes one JSON text. A nil or empty text, which is how SQL NULL arrives, hashes as null.
func (h *Hasher) Sum(json []byte) (Hash, error) {
	if len(json) == 0 {
		h.buf = append(append(h.buf[:0], hashPrefix...), sqlNull...)
		return sha256.Sum256(h.buf), nil
	}
	var err error
	h.buf, err = h.w.write(append(h.buf[:0], hashPrefix...), json)
	var sum Hash
	if err == nil {
		sum = sha256.Sum256(h.buf)
	}
	h.w.trim()
	if cap(h.buf) > 2*maxKept { // the outermost object is written behind what its members wrote
		h.buf = nil
	}
	return sum, err
}

// write appends the canonical form of json to dst.
func (w *writer) write(dst, json []byte) ([]byte, error) {
	if len(json) > MaxBytes {
		return dst, &Error{Offset: MaxBytes, Reason: "text is longer than 8 MiB"}
	}
	w.in, w.pos, w.nodes = json, 0, 0
	w.out = slices.Grow(dst, len(json))
	w.members, w.slots = w.members[:0], w.slots[:0]
	err := w.text()
	out := w.out
	w.in, w.out = nil, nil // the caller's memory is not held between rows
	if err != nil {
		return out[:len(dst)], err
	}
	return out, nil
}

// trim gives back scratch space that an unusually large row needed.
func (w *writer) trim() {
	if cap(w.members) > maxKept/memberSize {
		w.members = nil
	}
	if cap(w.slots) > maxKept/memberSize {
		w.slots = nil
	}
}
