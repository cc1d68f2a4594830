package evidence_test

import (
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
)

// The worked example of docs/protocol/evidence.md: three rows in pages of two. The values were
// computed with other tools (Python's hashlib, OpenSSL).
const (
	exampleLeaf0 = "e9f16799e8ab1cb48dfc104695cb903088feaa5796d843590bf0e5e8016cade9"
	exampleLeaf1 = "2aeab871307fda7a683df9641c15c6f683ca5995b0e4f9eaec7188e514584d55"
	exampleLeaf2 = "e44fbcfc09f70a948627371d8f61736d75fa02264fd135748740118f50d85d8b"
	examplePage0 = "46bea04eea322d55e892a58f654affb101fb4b1c701c976842fdadcca1da3f2e"
	exampleRoot  = "4589c65ab8e41d1f0f2e5dfac50b2c16caae02d7fe7c55a4859452af1649750d"

	examplePublicKey = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
	exampleSignature = "9c6ab269c1252bb5c9dd04715a1570750e6afefa823b224bb778f08d7faed959" +
		"8420c8ef66fc2009089cbecd5f0771033f8b00d51bccd071b5535e18ddbc9b06"

	examplePacked0 = "010210" + "00000000000000000000000000000a01" + "02000650" +
		"b45a1a5020d034159ac75a900ecbbb841973b17e89b649ccce22e9e0e69884ac" +
		"10" + "00000000000000000000000000000b02" + "0e000652" +
		"44a4b4d7ffcaeba5e92594bfadd90905a6eb627a78d8b41101c9e7c6da21ce1f"
	examplePacked1 = "010110" + "00000000000000000000000000000c03" + "d804010401" +
		"889d461d3d7f9458d8efd38cb9533882d2e9f1eada3733e77125898295ea445f"
)

func exampleRows(t testing.TB) []evidence.PageRow {
	t.Helper()
	hash := func(s string) canon.Hash { return canon.Hash(unhex(t, s)) }
	return []evidence.PageRow{
		{evidence.Row{
			Key: string(unhex(t, "00000000000000000000000000000a01")), Revision: 1,
			Hash: hash("b45a1a5020d034159ac75a900ecbbb841973b17e89b649ccce22e9e0e69884ac"),
		}, 3, 40},
		{evidence.Row{
			Key: string(unhex(t, "00000000000000000000000000000b02")), Revision: 7,
			Hash: hash("44a4b4d7ffcaeba5e92594bfadd90905a6eb627a78d8b41101c9e7c6da21ce1f"),
		}, 3, 41},
		{evidence.Row{
			Key: string(unhex(t, "00000000000000000000000000000c03")), Revision: 300, Deleted: true,
			Hash: hash("889d461d3d7f9458d8efd38cb9533882d2e9f1eada3733e77125898295ea445f"),
		}, 2, -1},
	}
}

func TestTheWorkedExample(t *testing.T) {
	page := exampleRows(t)
	all := evidence.Rows(page)
	for i, want := range []string{exampleLeaf0, exampleLeaf1, exampleLeaf2} {
		if got := evidence.LeafHash(&all[i]); got != node(t, want) {
			t.Errorf("leaf %d: %x, want %s", i, got, want)
		}
	}
	pages, roots := paged(all, 2)
	if !slices.Equal(roots, []evidence.Node{node(t, examplePage0), node(t, exampleLeaf2)}) {
		t.Errorf("page roots: %x", roots)
	}
	if got := evidence.Fold(roots); got != node(t, exampleRoot) {
		t.Errorf("root: %x", got)
	}
	for i, want := range []string{examplePacked0, examplePacked1} {
		if got := hex.EncodeToString(evidence.AppendPage(nil, page[2*i:min(2*i+2, 3)])); got != want {
			t.Errorf("packed page %d\n%s, want\n%s", i, got, want)
		}
	}
	key := string(unhex(t, "00000000000000000000000000000b80"))
	a, err := evidence.ProveAbsence(key, 3, 2, roots, ref(pages, 2, 1), ref(pages, 2, 2))
	if err != nil {
		t.Fatal(err)
	}
	if a.Left.Index != 1 || !slices.Equal(a.Left.Path, []evidence.Node{node(t, exampleLeaf0), node(t, exampleLeaf2)}) {
		t.Errorf("left neighbour: row %d, path %x", a.Left.Index, a.Left.Path)
	}
	if a.Right.Index != 2 || !slices.Equal(a.Right.Path, []evidence.Node{node(t, examplePage0)}) {
		t.Errorf("right neighbour: row %d, path %x", a.Right.Index, a.Right.Path)
	}
}

func TestTheDocumentShowsTheseValues(t *testing.T) {
	text, err := os.ReadFile("../../docs/protocol/evidence.md")
	if err != nil {
		t.Fatal(err)
	}
	squeezed := strings.Join(strings.Fields(string(text)), "")
	for _, value := range []string{
		exampleLeaf0, exampleLeaf1, exampleLeaf2, examplePage0, exampleRoot,
		examplePacked0, examplePacked1, examplePublicKey, exampleSignature,
	} {
		if !strings.Contains(squeezed, value) {
			t.Errorf("the document lacks %s", value)
		}
	}
}
