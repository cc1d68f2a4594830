package lockstep

import (
	"encoding/binary"
	"math/bits"
	"sort"
	"sync"

	"lockstep.dev/pkg/evidence"
)

// Sums notes which rows were seen in each range of an index, in whatever order
// they come: the sum of their leaf hashes. Other rows make another sum, as does a
// row that is seen twice, or as it was before a write of its hash or revision. A
// row without a hash, for its content does not have it, spoils its range.
//
// It is made against accidents: rows can be chosen so that their sums are equal.
// But a row counts only by the hash that its content has, and the rows compared
// with them must have the center's.
//
// It takes 25 bytes a range. Add is safe for concurrent use.
type Sums struct {
	index *Index
	heads []uint64 // the first bytes of each page's last key

	mu      sync.Mutex
	sums    []sum // of each range, the tail's is the last
	spoiled []bool
	rows    int64
	unsound int64
}

// NewSums starts with no row.
func NewSums(x *Index) *Sums {
	ranges := len(x.entries) + 1
	s := &Sums{index: x, heads: make([]uint64, len(x.entries)), sums: make([]sum, ranges), spoiled: make([]bool, ranges)}
	for i := range x.entries {
		s.heads[i] = head(x.entries[i].LastKey)
	}
	return s
}

// Add notes rows.
func (s *Sums) Add(rows []evidence.Row) {
	ranges, leaves := make([]int, len(rows)), make([]sum, len(rows))
	for i := range rows {
		ranges[i], leaves[i] = s.rangeOf(rows[i].Key), sumOf(evidence.LeafHash(&rows[i]))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range ranges {
		s.sums[r].add(leaves[i])
		if rows[i].Hash.IsZero() {
			s.spoiled[r] = true
			s.unsound++
		}
	}
	s.rows += int64(len(rows))
}

// Count gives the rows seen so far, and those of them without a hash.
func (s *Sums) Count() (rows, unsound int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows, s.unsound
}

// vouches says whether the rows seen in a range are those of a sum, and all sound.
func (s *Sums) vouches(r int, of sum) bool { return !s.spoiled[r] && s.sums[r] == of }

// rangeOf finds the range of a raw key. The heads lie side by side, which the
// keys do not; those are looked at among equal heads only.
func (s *Sums) rangeOf(key string) int {
	h := head(key)
	from := sort.Search(len(s.heads), func(i int) bool { return s.heads[i] >= h })
	if from == len(s.heads) || s.heads[from] > h {
		return from
	}
	same := sort.Search(len(s.heads)-from, func(i int) bool { return s.heads[from+i] > h })
	return from + sort.Search(same, func(i int) bool { return s.index.entries[from+i].LastKey >= key })
}

// head orders keys by their first bytes.
func head(key string) uint64 {
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// sum adds up leaf hashes.
type sum struct{ low, high uint64 }

func sumOf(leaf evidence.Node) sum {
	return sum{binary.LittleEndian.Uint64(leaf[:8]), binary.LittleEndian.Uint64(leaf[8:16])}
}

func (s *sum) add(other sum) {
	var carry uint64
	s.low, carry = bits.Add64(s.low, other.low, 0)
	s.high, _ = bits.Add64(s.high, other.high, carry)
}
