package evidence

import (
	"fmt"
	"math"
)

// Neighbour is a row that stands beside the place where a key would be, with its path to the root.
type Neighbour struct {
	Row   Row
	Index uint64
	Path  []Node
}

// Absence is the evidence that no row of a tree has a certain key. The rows are in strictly
// ascending order, so two that stand next to each other leave room for nothing between them. Without
// Left the key sorts before the first row, without Right after the last; without both the tree has
// no rows.
type Absence struct {
	Size        uint64
	Left, Right *Neighbour
}

// ProveAbsence makes the evidence for key. left and right point at the rows before and after the
// place of key, nil at an open end; both may be in one page. The result has passed Verify against
// the root that the page roots fold into, so a wrong neighbour gives an error and never bad evidence.
func ProveAbsence(key string, size uint64, pageRows int, pageRoots []Node, left, right *PageRef) (Absence, error) {
	if err := CheckPages(size, pageRows, uint64(len(pageRoots))); err != nil {
		return Absence{}, err
	}
	a := Absence{Size: size}
	for _, side := range []struct {
		ref *PageRef
		to  **Neighbour
	}{{left, &a.Left}, {right, &a.Right}} {
		if side.ref == nil {
			continue
		}
		path, err := ProveInclusion(*side.ref, size, pageRows, pageRoots)
		if err != nil {
			return Absence{}, err
		}
		// ProveInclusion saw that the page and the offset are there.
		index := uint64(side.ref.PageNo)*uint64(pageRows) + uint64(side.ref.Offset) //nolint:gosec // so none is negative
		*side.to = &Neighbour{
			Row:   side.ref.Rows[side.ref.Offset],
			Index: index,
			Path:  path,
		}
	}
	if err := a.Verify(key, size, Fold(pageRoots)); err != nil {
		return Absence{}, err
	}
	return a, nil
}

// Verify reports, as an error, why a does not show that key is in no row of the tree of size rows
// with this root. Both come from the signed manifest header: a path fixes what stands left and right
// of a row, and so adjacency and the ends, but a wrong size can share a path's shape with the true
// one, so the size is compared with what was signed.
func (a Absence) Verify(key string, size uint64, root Node) error {
	if a.Size != size {
		return ErrSize
	}
	if size == 0 {
		if a.Left != nil || a.Right != nil {
			return fmt.Errorf("%w: an empty tree has no rows", ErrSize)
		}
		if root != EmptyRoot() {
			return fmt.Errorf("%w: an empty tree has another root", ErrNotProven)
		}
		return nil
	}
	if err := a.adjacent(); err != nil {
		return err
	}
	if a.Left != nil && a.Left.Row.Key >= key || a.Right != nil && a.Right.Row.Key <= key {
		return fmt.Errorf("%w: the key is not between its neighbours", ErrOrder)
	}
	for _, n := range []*Neighbour{a.Left, a.Right} {
		if n != nil && !VerifyInclusion(LeafHash(&n.Row), n.Index, size, n.Path, root) {
			return fmt.Errorf("%w: row %d", ErrNotProven, n.Index)
		}
	}
	return nil
}

// adjacent checks that no row stands between the neighbours, nor outside an open end.
func (a Absence) adjacent() error {
	switch l, r := a.Left, a.Right; {
	case l == nil && r == nil:
		return fmt.Errorf("%w: no neighbour in a tree with rows", ErrGap)
	case l == nil && r.Index != 0:
		return fmt.Errorf("%w: the first row is not row 0", ErrGap)
	case r == nil && l.Index != a.Size-1:
		return fmt.Errorf("%w: the last row is not the last", ErrGap)
	case l != nil && r != nil && (l.Index == math.MaxUint64 || l.Index+1 != r.Index):
		return fmt.Errorf("%w: rows %d and %d", ErrGap, l.Index, r.Index)
	}
	return nil
}
