package lockstep

import (
	"encoding/binary"
	"slices"
	"sort"
	"testing"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
)

// key is a raw key; the order of n is the order of the keys.
func key(n uint64) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[8:], n)
	return string(raw[:])
}

// hash is some hash; 0 stands for content without one.
func hash(n byte) (h canon.Hash) {
	h[31] = n
	return h
}

func local(n uint64, revision int64, h byte) evidence.Row {
	return evidence.Row{Key: key(n), Revision: revision, Hash: hash(h)}
}

func center(n uint64, revision int64, h byte) evidence.PageRow {
	return evidence.PageRow{Row: local(n, revision, h), SchemaVersion: 1, Sequence: int64(n)}
}

// manifest is a set as the center would freeze it.
type manifest struct {
	shape   Shape
	entries []Entry
	pages   [][]evidence.PageRow
}

func freeze(pageRows int, rows []evidence.PageRow) *manifest {
	m := &manifest{shape: Shape{Root: evidence.EmptyRoot(), RowCount: int64(len(rows)), PageRows: pageRows}}
	var tree evidence.Builder
	for page := range slices.Chunk(rows, pageRows) {
		entry := Entry{LastKey: page[len(page)-1].Key, Root: evidence.PageRowsRoot(page), Rows: len(page)}
		m.entries = append(m.entries, entry)
		m.pages = append(m.pages, page)
	}
	for i := range rows {
		tree.Add(evidence.LeafHash(&rows[i].Row))
	}
	m.shape.Root, m.shape.PageCount = tree.Root(), len(m.pages)
	return m
}

func (m *manifest) build() (*Index, error) {
	b, err := NewIndexBuilder(m.shape)
	if err != nil {
		return nil, err
	}
	for _, e := range m.entries {
		if err := b.Add(e); err != nil {
			return nil, err
		}
	}
	return b.Index()
}

func (m *manifest) index(t testing.TB) *Index {
	t.Helper()
	x, err := m.build()
	if err != nil {
		t.Fatalf("index: %v", err)
	}
	return x
}

// found is a difference without its rows.
type found struct {
	key   string
	class protocol.Class
}

// twin compares two sets the dumb way: every key of either, by maps.
func twin(centerRows []evidence.PageRow, localRows []evidence.Row) []found {
	c, l := map[string]evidence.Row{}, map[string]evidence.Row{}
	keys := map[string]bool{}
	for _, r := range centerRows {
		c[r.Key], keys[r.Key] = r.Row, true
	}
	for _, r := range localRows {
		l[r.Key], keys[r.Key] = r, true
	}
	var out []found
	for k := range keys {
		if class := twinClass(c, l, k); class != "" {
			out = append(out, found{k, class})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].key < out[j].key })
	return out
}

func twinClass(c, l map[string]evidence.Row, k string) protocol.Class {
	a, atCenter := c[k]
	b, here := l[k]
	if !atCenter {
		return "EXTRA_ROW"
	}
	if a.Hash == (canon.Hash{}) {
		return "QUARANTINED"
	}
	if here && a == b {
		return ""
	}
	if a.Revision == 0 {
		return "REVISION_ZERO"
	}
	if !here {
		return "MISSING"
	}
	if b.Revision > a.Revision {
		return "LOCAL_AHEAD"
	}
	if a.Deleted != b.Deleted {
		return "TOMBSTONE"
	}
	if b.Revision < a.Revision {
		return "STALE"
	}
	return "HASH_CONFLICT"
}
