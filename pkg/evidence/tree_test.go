package evidence_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"testing"

	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"pgregory.net/rapid"

	"lockstep.dev/pkg/evidence"
)

const largest = 600

func TestRootIsThatOfRFC6962AtEverySize(t *testing.T) {
	all := rows(largest)
	tree := reference(all)
	var b evidence.Builder
	for n := 0; n <= largest; n++ {
		want := tree.HashAt(uint64(n))
		if got := b.Root(); !bytes.Equal(got[:], want) || b.Size() != uint64(n) {
			t.Fatalf("%d rows, size %d: root %x, want %x", n, b.Size(), got, want)
		}
		if n < largest {
			b.Add(evidence.LeafHash(&all[n]))
		}
	}
	b.Reset()
	if b.Size() != 0 || b.Root() != evidence.EmptyRoot() {
		t.Errorf("after Reset: size %d, root %x", b.Size(), b.Root())
	}
}

func TestEmptyRootIsTheHashOfNothing(t *testing.T) {
	want := node(t, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
	if evidence.EmptyRoot() != want || evidence.PageRoot(nil) != want || evidence.Fold(nil) != want {
		t.Error("an empty tree, page or index has another root")
	}
}

func TestPageRootsFoldIntoTheRoot(t *testing.T) {
	all := rows(largest)
	tree := reference(all)
	for _, pageRows := range []int{1, 2, 4, 8, 128} {
		for n := 0; n <= largest; n++ {
			_, roots := paged(all[:n], pageRows)
			if got, want := evidence.Fold(roots), tree.HashAt(uint64(n)); !bytes.Equal(got[:], want) {
				t.Fatalf("%d rows in pages of %d: %x, want %x", n, pageRows, got, want)
			}
		}
	}
}

func TestEveryFieldOfARowIsInItsLeaf(t *testing.T) {
	base := evidence.Row{Key: "ab", Revision: 1}
	want := evidence.LeafHash(&base)
	for name, change := range map[string]func(*evidence.Row){
		"key":                  func(r *evidence.Row) { r.Key = "ac" },
		"a longer key":         func(r *evidence.Row) { r.Key = "ab\x00" },
		"a shorter key":        func(r *evidence.Row) { r.Key = "a" },
		"revision":             func(r *evidence.Row) { r.Revision = 2 },
		"sign of the revision": func(r *evidence.Row) { r.Revision = -1 },
		"hash":                 func(r *evidence.Row) { r.Hash[31] = 1 },
		"deleted":              func(r *evidence.Row) { r.Deleted = true },
	} {
		row := base
		change(&row)
		if evidence.LeafHash(&row) == want {
			t.Errorf("%s does not change the leaf", name)
		}
	}
	for _, size := range []int{0, 63, 64, 65, 4096} { // around the room that leaves are built in
		row := evidence.Row{Key: string(bytes.Repeat([]byte{0xff}, size)), Revision: -1, Deleted: true}
		if got := evidence.LeafHash(&row); !bytes.Equal(got[:], rfc6962.DefaultHasher.HashLeaf(leafBytes(&row))) {
			t.Errorf("a key of %d bytes: another leaf than RFC 6962", size)
		}
	}
}

func TestInclusionPathsAreThoseOfRFC6962(t *testing.T) {
	all := rows(71)
	tree := reference(all)
	for _, pageRows := range []int{1, 2, 4, 8, 128} {
		for n := 1; n <= len(all); n++ {
			pages, roots := paged(all[:n], pageRows)
			root := evidence.Fold(roots)
			for i := range n {
				path, err := evidence.ProveInclusion(*ref(pages, pageRows, i), uint64(n), pageRows, roots)
				if err != nil {
					t.Fatal(err)
				}
				want, err := tree.InclusionProof(uint64(i), uint64(n))
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(path, nodes(want)) {
					t.Fatalf("row %d of %d, pages of %d: another path", i, n, pageRows)
				}
				if !evidence.VerifyInclusion(evidence.LeafHash(&all[i]), uint64(i), uint64(n), path, root) {
					t.Fatalf("row %d of %d, pages of %d: not verified", i, n, pageRows)
				}
			}
		}
	}
}

// Whatever is done to a proof, the verdict is the one of transparency-dev's verifier.
func TestVerdictsOnInclusionAreThoseOfTheReference(t *testing.T) {
	all := rows(130)
	tree := reference(all)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, len(all)).Draw(t, "size")
		i := rapid.IntRange(0, n-1).Draw(t, "index")
		raw, err := tree.InclusionProof(uint64(i), uint64(n))
		if err != nil {
			t.Fatal(err)
		}
		path, root, leaf := nodes(raw), evidence.Node(tree.HashAt(uint64(n))), evidence.LeafHash(&all[i])
		index, size := uint64(i), uint64(n)
		switch rapid.IntRange(0, 7).Draw(t, "tamper") {
		case 0:
			index = rapid.Uint64Range(0, 140).Draw(t, "other index")
		case 1:
			size = rapid.Uint64Range(0, 140).Draw(t, "other size")
		case 2:
			path = append(path, leaf)
		case 3:
			path = path[:max(0, len(path)-1)]
		case 4:
			if len(path) > 0 {
				path[rapid.IntRange(0, len(path)-1).Draw(t, "step")][5] ^= 1
			}
		case 5:
			root[0] ^= 1
		case 6:
			leaf[0] ^= 1
		}
		var rawPath [][]byte
		for _, p := range path {
			rawPath = append(rawPath, p[:])
		}
		want := proof.VerifyInclusion(rfc6962.DefaultHasher, index, size, leaf[:], rawPath, root[:]) == nil
		if got := evidence.VerifyInclusion(leaf, index, size, path, root); got != want {
			t.Fatalf("%d of %d: %v, the reference says %v", index, size, got, want)
		}
	})
}

func TestVerifyInclusionEndsOnHugeNumbers(t *testing.T) {
	path := make([]evidence.Node, 200)
	for _, index := range []uint64{0, 1, 1<<63 - 1, 1 << 63, 1<<64 - 2, 1<<64 - 1} {
		if evidence.VerifyInclusion(evidence.Node{}, index, 1<<64-1, path, evidence.Node{}) {
			t.Errorf("index %d: verified", index)
		}
	}
}

func TestProveInclusionRefusesWhatDoesNotAddUp(t *testing.T) {
	all := rows(10)
	pages, roots := paged(all, 4)
	other := slices.Clone(pages[1])
	other[2].Revision++
	for name, c := range map[string]struct {
		ref      evidence.PageRef
		size     uint64
		pageRows int
		roots    []evidence.Node
		want     error
	}{
		"another row in the page":         {evidence.PageRef{PageNo: 1, Rows: other}, 10, 4, roots, evidence.ErrNotProven},
		"the rows of another page":        {evidence.PageRef{PageNo: 0, Rows: pages[1]}, 10, 4, roots, evidence.ErrNotProven},
		"a page too short":                {evidence.PageRef{PageNo: 1, Rows: pages[1][:3]}, 10, 4, roots, evidence.ErrSize},
		"a last page too long":            {evidence.PageRef{PageNo: 2, Rows: pages[1]}, 10, 4, roots, evidence.ErrSize},
		"a page beyond the last":          {evidence.PageRef{PageNo: 3, Rows: pages[1]}, 10, 4, roots, evidence.ErrSize},
		"a page before the first":         {evidence.PageRef{PageNo: -1, Rows: pages[1]}, 10, 4, roots, evidence.ErrSize},
		"an offset beyond the page":       {evidence.PageRef{PageNo: 2, Rows: pages[2], Offset: 2}, 10, 4, roots, evidence.ErrSize},
		"an offset before the page":       {evidence.PageRef{PageNo: 2, Rows: pages[2], Offset: -1}, 10, 4, roots, evidence.ErrSize},
		"three rows a page":               {evidence.PageRef{PageNo: 0, Rows: pages[0]}, 10, 3, roots, evidence.ErrSize},
		"no rows a page":                  {evidence.PageRef{PageNo: 0, Rows: pages[0]}, 10, 0, roots, evidence.ErrSize},
		"more rows than the pages hold":   {evidence.PageRef{PageNo: 0, Rows: pages[0]}, 13, 4, roots, evidence.ErrSize},
		"fewer rows than the pages begin": {evidence.PageRef{PageNo: 0, Rows: pages[0]}, 8, 4, roots, evidence.ErrSize},
		"a page root missing":             {evidence.PageRef{PageNo: 0, Rows: pages[0]}, 10, 4, roots[:2], evidence.ErrSize},
	} {
		if path, err := evidence.ProveInclusion(c.ref, c.size, c.pageRows, c.roots); !errors.Is(err, c.want) || path != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestBuildingATreeDoesNotAllocate(t *testing.T) {
	all := rows(128)
	var b evidence.Builder
	if n := testing.AllocsPerRun(100, func() {
		b.Reset()
		for i := range all {
			b.Add(evidence.LeafHash(&all[i]))
		}
		_ = b.Root()
	}); n != 0 {
		t.Errorf("%v allocations for 128 rows, want none", n)
	}
}

func TestNodesOfTwoChildren(t *testing.T) {
	l, r := node(t, exampleLeaf0), node(t, exampleLeaf1)
	got := evidence.HashChildren(l, r)
	if hex.EncodeToString(got[:]) != examplePage0 {
		t.Errorf("%x, want %s", got, examplePage0)
	}
	if evidence.HashChildren(r, l) == got {
		t.Error("left and right do not matter")
	}
}
