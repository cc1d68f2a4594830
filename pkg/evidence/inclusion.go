package evidence

import (
	"fmt"
	"math/bits"
)

// PageRef points at one row: row Offset of page PageNo, whose rows are Rows, all of them.
type PageRef struct {
	PageNo int
	Rows   []Row
	Offset int
}

// ProveInclusion gives the path from the row that ref points at to the root of a tree of size rows.
// It is the path within the page followed by the path of the page among the page roots. pageRows is
// the number of rows in every page but the last, a power of two. What would not verify is not
// returned: ErrSize if the figures do not fit one another, ErrNotProven if the rows are not those of
// their page root.
func ProveInclusion(ref PageRef, size uint64, pageRows int, pageRoots []Node) ([]Node, error) {
	if err := CheckPages(size, pageRows, uint64(len(pageRoots))); err != nil {
		return nil, err
	}
	if ref.PageNo < 0 || ref.PageNo >= len(pageRoots) {
		return nil, fmt.Errorf("%w: no page %d", ErrSize, ref.PageNo)
	}
	rows := pageRows
	if ref.PageNo == len(pageRoots)-1 {
		rows = lastPageRows(size, pageRows)
	}
	if len(ref.Rows) != rows || ref.Offset < 0 || ref.Offset >= len(ref.Rows) {
		return nil, fmt.Errorf("%w: row %d of %d in page %d", ErrSize, ref.Offset, len(ref.Rows), ref.PageNo)
	}
	leaves := make([]Node, len(ref.Rows))
	for i := range ref.Rows {
		leaves[i] = LeafHash(&ref.Rows[i])
	}
	if Fold(leaves) != pageRoots[ref.PageNo] {
		return nil, fmt.Errorf("%w: rows of page %d", ErrNotProven, ref.PageNo)
	}
	path := appendPath(nil, leaves, ref.Offset)
	return appendPath(path, pageRoots, ref.PageNo), nil
}

// CheckPages holds the size of a tree against its division into pages.
func CheckPages(size uint64, pageRows int, pages uint64) error {
	if pageRows < 1 || pageRows&(pageRows-1) != 0 {
		return fmt.Errorf("%w: %d rows a page is no power of two", ErrSize, pageRows)
	}
	per := uint64(pageRows)
	if want := size/per + min(size%per, 1); pages != want {
		return fmt.Errorf("%w: %d rows are not %d pages", ErrSize, size, pages)
	}
	return nil
}

// lastPageRows is how many rows the last page of a tree with rows has.
func lastPageRows(size uint64, pageRows int) int {
	return int((size-1)%uint64(pageRows)) + 1 //nolint:gosec // CheckPages saw pageRows above 0
}

// appendPath appends the path from nodes[i] to the root over nodes, the lowest first: RFC 6962,
// section 2.1.1, with the recursion turned into steps from the top, which come out in reverse.
func appendPath(path, nodes []Node, i int) []Node {
	from := len(path)
	for len(nodes) > 1 {
		split := 1 << (bits.Len(uint(len(nodes)-1)) - 1) // the largest power of two below the length
		left, right := nodes[:split], nodes[split:]
		if i < split {
			path, nodes = append(path, Fold(right)), left
		} else {
			path, nodes, i = append(path, Fold(left)), right, i-split
		}
	}
	for a, b := from, len(path)-1; a < b; a, b = a+1, b-1 {
		path[a], path[b] = path[b], path[a]
	}
	return path
}

// VerifyInclusion reports whether leaf stands at index in a tree of size leaves with this root.
func VerifyInclusion(leaf Node, index, size uint64, path []Node, root Node) bool {
	got, ok := rootFrom(leaf, index, size, path)
	return ok && got == root
}

// rootFrom is RFC 9162, section 2.1.3.2. It wants exactly the path that index and size call for.
func rootFrom(leaf Node, index, size uint64, path []Node) (Node, bool) {
	if index >= size {
		return Node{}, false
	}
	node, last := leaf, size-1
	for _, p := range path {
		if last == 0 {
			return Node{}, false // more steps than the tree is high
		}
		if index&1 == 1 || index == last {
			node = HashChildren(p, node)
			// The last node of a level without a sibling is passed up as it is.
			for index&1 == 0 && index != 0 {
				index, last = index>>1, last>>1
			}
		} else {
			node = HashChildren(node, p)
		}
		index, last = index>>1, last>>1
	}
	return node, last == 0
}
