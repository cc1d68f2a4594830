package evidence_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"lockstep.dev/pkg/evidence"
)

// neighbours gives the references around the absent key i.
func neighbours(pages [][]evidence.Row, pageRows, n, i int) (left, right *evidence.PageRef) {
	if i > 0 {
		left = ref(pages, pageRows, i-1)
	}
	if i < n {
		right = ref(pages, pageRows, i)
	}
	return left, right
}

func TestEveryAbsentKeyIsProvenAbsentAndNoPresentOneIs(t *testing.T) {
	for _, pageRows := range []int{1, 2, 4, 8, 128} {
		for n := 0; n <= 20; n++ {
			all := rows(n)
			pages, roots := paged(all, pageRows)
			root, size := evidence.Fold(roots), uint64(n)
			for i := 0; i <= n; i++ {
				left, right := neighbours(pages, pageRows, n, i)
				a, err := evidence.ProveAbsence(absentKey(i), size, pageRows, roots, left, right)
				if err != nil {
					t.Fatalf("gap %d of %d rows, pages of %d: %v", i, n, pageRows, err)
				}
				if err := a.Verify(absentKey(i), size, root); err != nil {
					t.Fatalf("gap %d of %d rows, pages of %d: %v", i, n, pageRows, err)
				}
				for j := range all {
					if a.Verify(all[j].Key, size, root) == nil {
						t.Fatalf("gap %d of %d rows shows row %d to be absent", i, n, j)
					}
				}
				for j := 0; j <= n; j++ {
					if j != i && !errors.Is(a.Verify(absentKey(j), size, root), evidence.ErrOrder) {
						t.Fatalf("gap %d of %d rows serves gap %d too", i, n, j)
					}
				}
			}
		}
	}
}

// world is one tree of 11 rows in pages of 4, with the evidence for the key between rows 3 and 4,
// which are in different pages.
type world struct {
	pages [][]evidence.Row
	roots []evidence.Node
	root  evidence.Node
	key   string
}

const worldRows, worldPage, worldGap = 11, 4, 4

func setup(t testing.TB) (world, func() evidence.Absence) {
	t.Helper()
	w := world{key: absentKey(worldGap)}
	w.pages, w.roots = paged(rows(worldRows), worldPage)
	w.root = evidence.Fold(w.roots)
	return w, func() evidence.Absence { return w.prove(t, worldGap) }
}

func (w world) prove(t testing.TB, gap int) evidence.Absence {
	t.Helper()
	left, right := neighbours(w.pages, worldPage, worldRows, gap)
	a, err := evidence.ProveAbsence(absentKey(gap), worldRows, worldPage, w.roots, left, right)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestATamperedNeighbourProvesNothing(t *testing.T) {
	w, fresh := setup(t)
	if err := func() error { a := fresh(); return a.Verify(w.key, worldRows, w.root) }(); err != nil {
		t.Fatal(err)
	}
	sides := map[string]func(*evidence.Absence) **evidence.Neighbour{
		"left":  func(a *evidence.Absence) **evidence.Neighbour { return &a.Left },
		"right": func(a *evidence.Absence) **evidence.Neighbour { return &a.Right },
	}
	for name, c := range map[string]struct {
		tamper func(**evidence.Neighbour)
		want   error
	}{
		"revision":               {func(n **evidence.Neighbour) { (*n).Row.Revision++ }, evidence.ErrNotProven},
		"hash":                   {func(n **evidence.Neighbour) { (*n).Row.Hash[0] ^= 1 }, evidence.ErrNotProven},
		"deleted":                {func(n **evidence.Neighbour) { (*n).Row.Deleted = !(*n).Row.Deleted }, evidence.ErrNotProven},
		"key in order":           {func(n **evidence.Neighbour) { (*n).Row.Key += "x" }, evidence.ErrNotProven},
		"the key itself":         {func(n **evidence.Neighbour) { (*n).Row.Key = w.key }, evidence.ErrOrder},
		"index before":           {func(n **evidence.Neighbour) { (*n).Index-- }, evidence.ErrGap},
		"index after":            {func(n **evidence.Neighbour) { (*n).Index++ }, evidence.ErrGap},
		"a step changed":         {func(n **evidence.Neighbour) { (*n).Path[1][7] ^= 1 }, evidence.ErrNotProven},
		"a step missing":         {func(n **evidence.Neighbour) { (*n).Path = (*n).Path[1:] }, evidence.ErrNotProven},
		"the last step missing":  {func(n **evidence.Neighbour) { (*n).Path = (*n).Path[:len((*n).Path)-1] }, evidence.ErrNotProven},
		"a step more":            {func(n **evidence.Neighbour) { (*n).Path = append((*n).Path, evidence.Node{}) }, evidence.ErrNotProven},
		"no path":                {func(n **evidence.Neighbour) { (*n).Path = nil }, evidence.ErrNotProven},
		"steps in another order": {func(n **evidence.Neighbour) { slices.Reverse((*n).Path) }, evidence.ErrNotProven},
		"left out":               {func(n **evidence.Neighbour) { *n = nil }, evidence.ErrGap},
	} {
		for side, of := range sides {
			a := fresh()
			c.tamper(of(&a))
			if err := a.Verify(w.key, worldRows, w.root); !errors.Is(err, c.want) {
				t.Errorf("%s, %s: %v, want %v", side, name, err, c.want)
			}
		}
	}
}

func TestTamperedEvidenceProvesNothing(t *testing.T) {
	w, fresh := setup(t)
	otherRoot := w.root
	otherRoot[31] ^= 1
	for name, c := range map[string]struct {
		tamper func(*evidence.Absence)
		size   uint64
		root   evidence.Node
		want   error
	}{
		"another root":               {func(*evidence.Absence) {}, worldRows, otherRoot, evidence.ErrNotProven},
		"the empty root":             {func(*evidence.Absence) {}, worldRows, evidence.EmptyRoot(), evidence.ErrNotProven},
		"a tree signed larger":       {func(*evidence.Absence) {}, worldRows + 1, w.root, evidence.ErrSize},
		"a tree signed smaller":      {func(*evidence.Absence) {}, worldRows - 1, w.root, evidence.ErrSize},
		"size larger":                {func(a *evidence.Absence) { a.Size++ }, worldRows, w.root, evidence.ErrSize},
		"size smaller":               {func(a *evidence.Absence) { a.Size-- }, worldRows, w.root, evidence.ErrSize},
		"size nothing":               {func(a *evidence.Absence) { a.Size = 0 }, worldRows, w.root, evidence.ErrSize},
		"both sizes nothing":         {func(a *evidence.Absence) { a.Size = 0 }, 0, w.root, evidence.ErrSize},
		"neighbours swapped":         {func(a *evidence.Absence) { a.Left, a.Right = a.Right, a.Left }, worldRows, w.root, evidence.ErrGap},
		"rows swapped":               {func(a *evidence.Absence) { a.Left.Row, a.Right.Row = a.Right.Row, a.Left.Row }, worldRows, w.root, evidence.ErrOrder},
		"paths swapped":              {func(a *evidence.Absence) { a.Left.Path, a.Right.Path = a.Right.Path, a.Left.Path }, worldRows, w.root, evidence.ErrNotProven},
		"one neighbour twice":        {func(a *evidence.Absence) { a.Right = a.Left }, worldRows, w.root, evidence.ErrGap},
		"no neighbour":               {func(a *evidence.Absence) { a.Left, a.Right = nil, nil }, worldRows, w.root, evidence.ErrGap},
		"a gap, both rows proven":    {func(a *evidence.Absence) { a.Left = w.prove(t, worldGap-1).Left }, worldRows, w.root, evidence.ErrGap},
		"a gap, indexes pretended":   {func(a *evidence.Absence) { a.Left = w.prove(t, worldGap-1).Left; a.Left.Index++ }, worldRows, w.root, evidence.ErrNotProven},
		"an open end in the middle":  {func(a *evidence.Absence) { a.Left = nil; a.Right.Index = 0 }, worldRows, w.root, evidence.ErrNotProven},
		"an open end that is no end": {func(a *evidence.Absence) { a.Right = nil; a.Left.Index = worldRows - 1 }, worldRows, w.root, evidence.ErrNotProven},
		"indexes that overflow":      {func(a *evidence.Absence) { a.Left.Index, a.Right.Index = 1<<64-1, 0 }, worldRows, w.root, evidence.ErrGap},
		"indexes beyond the tree":    {func(a *evidence.Absence) { a.Left.Index, a.Right.Index = worldRows, worldRows+1 }, worldRows, w.root, evidence.ErrNotProven},
	} {
		a := fresh()
		c.tamper(&a)
		if err := a.Verify(w.key, c.size, c.root); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestTheEmptyTreeHasTheEmptyRootAndNothingElse(t *testing.T) {
	w, fresh := setup(t)
	a, err := evidence.ProveAbsence("any", 0, 128, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Verify("any", 0, evidence.EmptyRoot()); err != nil {
		t.Error(err)
	}
	if err := a.Verify("any", 0, w.root); !errors.Is(err, evidence.ErrNotProven) {
		t.Errorf("with the root of rows: %v", err)
	}
	if err := a.Verify("any", 0, evidence.Node{}); !errors.Is(err, evidence.ErrNotProven) {
		t.Errorf("with a root of zeros: %v", err)
	}
	a.Left = fresh().Left
	if err := a.Verify("any", 0, evidence.EmptyRoot()); !errors.Is(err, evidence.ErrSize) {
		t.Errorf("with a neighbour: %v", err)
	}
}

func TestProveAbsenceRefusesWrongNeighbours(t *testing.T) {
	w, _ := setup(t)
	at := func(i int) *evidence.PageRef { return ref(w.pages, worldPage, i) }
	wrongRows := at(3)
	wrongRows.Rows = slices.Clone(wrongRows.Rows)
	wrongRows.Rows[0].Revision++
	for name, c := range map[string]struct {
		key         string
		left, right *evidence.PageRef
		size        uint64
		want        error
	}{
		"a key that is there":      {rowKey(4), at(3), at(4), worldRows, evidence.ErrOrder},
		"the gap before":           {w.key, at(2), at(3), worldRows, evidence.ErrOrder},
		"rows apart":               {w.key, at(2), at(4), worldRows, evidence.ErrGap},
		"an open end within":       {w.key, at(3), nil, worldRows, evidence.ErrGap},
		"an open start within":     {w.key, nil, at(4), worldRows, evidence.ErrGap},
		"nothing":                  {w.key, nil, nil, worldRows, evidence.ErrGap},
		"rows of another manifest": {w.key, wrongRows, at(4), worldRows, evidence.ErrNotProven},
		"another size":             {w.key, at(3), at(4), worldRows + 2, evidence.ErrSize},
	} {
		a, err := evidence.ProveAbsence(c.key, c.size, worldPage, w.roots, c.left, c.right)
		if !errors.Is(err, c.want) || a.Left != nil || a.Right != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// Mixing parts of honest evidence, of any gaps and trees, never shows a present key to be absent.
func TestNoMixtureOfHonestPartsHidesARow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "rows")
		pageRows := 1 << rapid.IntRange(0, 4).Draw(t, "page bits")
		all := rows(n)
		pages, roots := paged(all, pageRows)
		root := evidence.Fold(roots)
		neighbour := func(label string) *evidence.Neighbour {
			i := rapid.IntRange(-1, n-1).Draw(t, label)
			if i < 0 {
				return nil
			}
			path, err := evidence.ProveInclusion(*ref(pages, pageRows, i), uint64(n), pageRows, roots)
			if err != nil {
				t.Fatal(err)
			}
			index := uint64(rapid.OneOf(rapid.Just(i), rapid.IntRange(0, n)).Draw(t, label+" index"))
			return &evidence.Neighbour{Row: all[i], Index: index, Path: path}
		}
		a := evidence.Absence{Left: neighbour("left"), Right: neighbour("right"), Size: uint64(n)}
		hidden := all[rapid.IntRange(0, n-1).Draw(t, "hidden")].Key
		size := uint64(rapid.OneOf(rapid.Just(n), rapid.IntRange(0, 50)).Draw(t, "size"))
		a.Size = size
		if a.Verify(hidden, size, root) == nil {
			t.Fatal("a row was hidden")
		}
	})
}
