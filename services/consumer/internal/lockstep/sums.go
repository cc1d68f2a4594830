package lockstep

import (
	"encoding/binary"
	"math/bits"
	"sort"
	"sync"

	"lockstep.dev/pkg/evidence"
)

// Sums notes which rows were seen in each range of an index, in whatever order
// they come: the sum of their leaf hashes. Two sets of rows of a range have one
// sum only if they are the same set. A row that was seen twice, or as it was before
// a write, makes another sum.
//
// It takes 24 bytes a range. Add is safe for concurrent use.
type Sums struct {
	index *Index
	heads []uint64 // the first bytes of each page's last key

	mu   sync.Mutex
	sums []sum // of each range, the tail's is the last
}

// NewSums starts with no row.
func NewSums(x *Index) *Sums {
	s := &Sums{index: x, heads: make([]uint64, len(x.entries)), sums: make([]sum, len(x.entries)+1)}
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
	}
}

// rangeOf finds the range of a raw key. The heads lie side by side, the keys don't.
func (s *Sums) rangeOf(key string) int {
	h := head(key)
	i := sort.Search(len(s.heads), func(i int) bool { return s.heads[i] >= h })
	for i < len(s.heads) && s.heads[i] == h && key > s.index.entries[i].LastKey {
		i++
	}
	return i
}

// head orders keys by their first bytes.
func head(key string) uint64 {
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// sum adds up leaf hashes, which no accident makes cancel each other.
type sum struct{ low, high uint64 }

func sumOf(leaf evidence.Node) sum {
	return sum{binary.LittleEndian.Uint64(leaf[:8]), binary.LittleEndian.Uint64(leaf[8:16])}
}

func (s *sum) add(other sum) {
	var carry uint64
	s.low, carry = bits.Add64(s.low, other.low, 0)
	s.high, _ = bits.Add64(s.high, other.high, carry)
}
