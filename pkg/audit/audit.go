// Package audit is the hash chain over an audit log: what a seal hashes, what
// its signed head states, and how a chain is verified from the rows alone.
//
// A seal covers a range of ids without a hole between it and the seal before.
// Its hash is over the hash before and the canonical bytes of every row in the
// range, so a row that was changed, removed or put in shows, and so does a seal.
// What no seal covers yet is the tail: it is named, and nothing is said of it.
//
// The package does no I/O and knows no clock.
package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"time"

	"lockstep.dev/pkg/evidence"
)

// TypeSealHead is the payload type of a signed head.
const TypeSealHead = "application/vnd.lockstep.audit-seal.v1+protobuf"

// Row is one row of the log.
type Row struct {
	ID                                      int64
	At                                      time.Time // to the microsecond
	Actor, Action, Object, Decision, Reason string
}

// Hash is the state of a chain; the zero Hash is its beginning.
type Hash [sha256.Size]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Head is what a service signs of a seal.
type Head struct {
	AppKey          string
	Seal            int64 // counts from 1
	FirstID, LastID int64
	Rows            int
	Previous, Hash  Hash
	SealedAt        time.Time // never before the seal before
}

// Seal is a head and its envelope as stored.
type Seal struct {
	Head
	Envelope evidence.Envelope
}

// Domains keep the two uses of the hash apart.
const (
	sealDomain = "lockstep.audit.seal.v1\x00"
	rowDomain  = "row\x00"
)

// Hasher hashes the rows of one seal, in the order of their ids.
type Hasher struct {
	sum  hash.Hash
	rows int
}

// NewHasher begins the hash of a seal over the ids [first, last].
func NewHasher(previous Hash, first, last int64) *Hasher {
	h := &Hasher{sum: sha256.New()}
	h.write([]byte(sealDomain))
	h.write(previous[:])
	h.number(first)
	h.number(last)
	return h
}

// Add hashes the next row. Lengths stand before texts: no two rows have the same bytes.
func (h *Hasher) Add(r Row) {
	h.rows++
	h.write([]byte(rowDomain))
	h.number(r.ID)
	h.number(r.At.UnixMicro())
	for _, text := range []string{r.Actor, r.Action, r.Object, r.Decision, r.Reason} {
		h.number(int64(len(text)))
		h.write([]byte(text))
	}
}

// Sum ends the seal with the number of its rows.
func (h *Hasher) Sum() Hash {
	h.number(int64(h.rows))
	return Hash(h.sum.Sum(nil))
}

// Rows is how many were added.
func (h *Hasher) Rows() int { return h.rows }

func (h *Hasher) write(b []byte) { _, _ = h.sum.Write(b) } // a hash takes everything

func (h *Hasher) number(n int64) {
	h.write(binary.BigEndian.AppendUint64(nil, uint64(n))) //nolint:gosec // the bits, whatever they mean
}
