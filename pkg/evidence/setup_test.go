package evidence_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/transparency-dev/merkle/rfc6962"
	"github.com/transparency-dev/merkle/testonly"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
)

// key numbers leave room: row i has key 2i+1, so every even number is absent.
func rowKey(i int) string    { return numberKey(2*i + 1) }
func absentKey(i int) string { return numberKey(2 * i) }

func numberKey(n int) string {
	return string(binary.BigEndian.AppendUint32([]byte("key-"), uint32(n)))
}

// rows makes n rows with ascending keys.
func rows(n int) []evidence.Row {
	out := make([]evidence.Row, n)
	for i := range out {
		out[i] = evidence.Row{
			Key:      rowKey(i),
			Revision: int64(i%7 + 1),
			Hash:     canon.Hash(sha256.Sum256([]byte{byte(i), byte(i >> 8)})),
			Deleted:  i%5 == 4,
		}
	}
	return out
}

// paged cuts rows into pages and gives their roots.
func paged(all []evidence.Row, pageRows int) (pages [][]evidence.Row, roots []evidence.Node) {
	for from := 0; from < len(all); from += pageRows {
		page := all[from:min(from+pageRows, len(all))]
		pages, roots = append(pages, page), append(roots, evidence.PageRoot(page))
	}
	return pages, roots
}

// ref points at row i of the pages.
func ref(pages [][]evidence.Row, pageRows, i int) *evidence.PageRef {
	return &evidence.PageRef{PageNo: i / pageRows, Rows: pages[i/pageRows], Offset: i % pageRows}
}

// reference is the same tree by transparency-dev's implementation, from the bytes of the leaves.
func reference(all []evidence.Row) *testonly.Tree {
	tree := testonly.New(rfc6962.DefaultHasher)
	for i := range all {
		tree.AppendData(leafBytes(&all[i]))
	}
	return tree
}

// leafBytes is the leaf's data as the document describes it, without the prefix of RFC 6962.
func leafBytes(r *evidence.Row) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(r.Key)))
	b = append(b, r.Key...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Revision))
	b = append(b, r.Hash[:]...)
	if r.Deleted {
		return append(b, 1)
	}
	return append(b, 0)
}

func nodes(raw [][]byte) []evidence.Node {
	out := make([]evidence.Node, len(raw))
	for i := range raw {
		out[i] = evidence.Node(raw[i])
	}
	return out
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func node(t testing.TB, s string) evidence.Node {
	t.Helper()
	return evidence.Node(unhex(t, s))
}
