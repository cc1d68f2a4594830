package evidence

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"

	"lockstep.dev/pkg/canon"
)

// Row is one row of a manifest as the tree sees it.
type Row struct {
	Key      string // raw bytes whose order is the order of the keys
	Revision int64
	Hash     canon.Hash
	Deleted  bool
}

// Node is a node of the tree: a leaf, an inner node or a root.
type Node [sha256.Size]byte

// RFC 6962, section 2.1: no leaf can be taken for an inner node.
const (
	leafPrefix  = 0x00
	childPrefix = 0x01
)

// leafFixed is what a leaf has beside its key: prefix, key length, revision, hash, deleted.
const leafFixed = 1 + 4 + 8 + sha256.Size + 1

// LeafHash is SHA-256 over 0x00, the key's length (4 bytes, big-endian), the key, the revision
// (8 bytes, big-endian, two's complement), the content hash and one byte for deleted (0 or 1).
func LeafHash(r *Row) Node {
	var room [leafFixed + 64]byte // keys are short; a longer one moves to the heap
	b := append(room[:0], leafPrefix)
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Key))) //nolint:gosec // a key is far below 4 GiB
	b = append(b, r.Key...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Revision)) //nolint:gosec // two's complement is the format
	b = append(b, r.Hash[:]...)
	deleted := byte(0)
	if r.Deleted {
		deleted = 1
	}
	return sha256.Sum256(append(b, deleted))
}

// HashChildren is the node above l and r.
func HashChildren(l, r Node) Node {
	var b [1 + 2*sha256.Size]byte
	b[0] = childPrefix
	copy(b[1:], l[:])
	copy(b[1+sha256.Size:], r[:])
	return sha256.Sum256(b[:])
}

// EmptyRoot is the root of the tree without rows: SHA-256 of nothing.
func EmptyRoot() Node { return sha256.Sum256(nil) }

// Builder computes a root from a stream of nodes. It keeps the roots of the complete subtrees seen
// so far, one for each bit set in the size, and never allocates. The zero value is an empty tree.
type Builder struct {
	size uint64
	full [64]Node // full[k] is the root of a complete subtree of 2^k nodes, if bit k of size is set
}

// Add puts n to the right of everything added before.
func (b *Builder) Add(n Node) {
	level := bits.TrailingZeros64(^b.size)
	for i := range level {
		n = HashChildren(b.full[i], n)
	}
	b.full[level] = n
	b.size++
}

// Size is the number of nodes added.
func (b *Builder) Size() uint64 { return b.size }

// Root is the root over everything added so far; more may be added afterwards.
func (b *Builder) Root() Node {
	if b.size == 0 {
		return EmptyRoot()
	}
	rest := b.size
	root := b.full[bits.TrailingZeros64(rest)]
	for rest &= rest - 1; rest != 0; rest &= rest - 1 {
		root = HashChildren(b.full[bits.TrailingZeros64(rest)], root)
	}
	return root
}

// Reset makes b an empty tree again.
func (b *Builder) Reset() { b.size = 0 }

// PageRoot is the root over the rows of one page.
func PageRoot(rows []Row) Node {
	var b Builder
	for i := range rows {
		b.Add(LeafHash(&rows[i]))
	}
	return b.Root()
}

// Fold gives the root of the whole tree from the roots of its pages. It is exact because a page is
// an aligned subtree: every page but the last has the same number of rows, a power of two, and the
// last has at least one and at most as many.
func Fold(pages []Node) Node {
	var b Builder
	for _, p := range pages {
		b.Add(p)
	}
	return b.Root()
}
