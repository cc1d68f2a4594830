package lockstep

import (
	"errors"
	"iter"
	"slices"
	"testing"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
)

func TestClassify(t *testing.T) {
	row := func(revision int64, h byte, deleted bool) *evidence.Row {
		return &evidence.Row{Key: key(1), Revision: revision, Hash: hash(h), Deleted: deleted}
	}
	for _, c := range []struct {
		name          string
		center, local *evidence.Row
		want          protocol.Class
	}{
		{"equal", row(3, 1, false), row(3, 1, false), ""},
		{"equal tombstones", row(3, 1, true), row(3, 1, true), ""},
		{"equal at revision zero", row(0, 1, false), row(0, 1, false), ""},
		{"revision zero is absent here", row(0, 1, false), nil, protocol.RevisionZero},
		{"revision zero differs, even where local is ahead", row(0, 1, false), row(2, 1, false), protocol.RevisionZero},
		{"revision zero with another hash", row(0, 1, false), row(0, 2, false), protocol.RevisionZero},
		{"missing", row(3, 1, false), nil, protocol.Missing},
		{"missing tombstone", row(3, 1, true), nil, protocol.Missing},
		{"extra", nil, row(3, 1, false), protocol.ExtraRow},
		{"extra without a hash", nil, row(3, 0, false), protocol.ExtraRow},
		{"local ahead wins over tombstone", row(3, 1, true), row(4, 1, false), protocol.LocalAhead},
		{"tombstone wins over stale", row(3, 1, true), row(2, 2, false), protocol.Tombstone},
		{"tombstone the other way round", row(3, 1, false), row(3, 1, true), protocol.Tombstone},
		{"stale", row(3, 1, false), row(2, 2, false), protocol.Stale},
		{"stale by revision alone", row(3, 1, false), row(2, 1, false), protocol.Stale},
		{"hash conflict", row(3, 1, false), row(3, 2, false), protocol.HashConflict},
		{"no hash here", row(3, 1, false), row(3, 0, false), protocol.HashConflict},
		{"no hash at the center", row(3, 0, false), row(3, 1, false), protocol.ClassQuarantined},
		{"no hash on either side is not equal", row(3, 0, false), row(3, 0, false), protocol.ClassQuarantined},
		{"no hash at the center and absent here", row(3, 0, false), nil, protocol.ClassQuarantined},
		{"no hash at the center at revision zero", row(0, 0, false), nil, protocol.ClassQuarantined},
	} {
		t.Run(c.name, func(t *testing.T) {
			var centerRow *evidence.PageRow
			if c.center != nil {
				centerRow = &evidence.PageRow{Row: *c.center}
			}
			got, differs := Classify(centerRow, c.local)
			if got != c.want || differs != (c.want != "") {
				t.Errorf("got %q, %v; want %q", got, differs, c.want)
			}
		})
	}
}

// ten rows with keys 10, 20, … 100 in pages of 4, 4, 2.
func ten() *manifest {
	var rows []evidence.PageRow
	for n := uint64(10); n <= 100; n += 10 {
		rows = append(rows, center(n, 1, 1))
	}
	return freeze(4, rows)
}

func TestIndexBuilder(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*manifest)
		want  error
	}{
		{"as signed", func(*manifest) {}, nil},
		{"another root", func(m *manifest) { m.shape.Root[0] ^= 1 }, ErrNotProven},
		{"another page root", func(m *manifest) { m.entries[1].Root[0] ^= 1 }, ErrNotProven},
		{"page missing at the end", func(m *manifest) { m.entries = m.entries[:2] }, ErrIncomplete},
		{"page missing inside", func(m *manifest) { m.entries = slices.Delete(m.entries, 1, 2) }, ErrIncomplete},
		{"one page too many", func(m *manifest) { m.entries = append(m.entries, Entry{LastKey: key(200), Rows: 1}) }, ErrIncomplete},
		{"a page that is not full", func(m *manifest) { m.entries[0].Rows = 3 }, ErrIncomplete},
		{"a last page that is too full", func(m *manifest) { m.entries[2].Rows = 3 }, ErrIncomplete},
		{"last keys fall", func(m *manifest) { m.entries[1].LastKey = key(30) }, ErrOrder},
		{"last keys repeat", func(m *manifest) { m.entries[1].LastKey = m.entries[0].LastKey }, ErrOrder},
		{"no last key", func(m *manifest) { m.entries[0].LastKey = "" }, ErrIncomplete},
		{"row count below its pages", func(m *manifest) { m.shape.RowCount = 8 }, ErrIncomplete},
		{"row count above its pages", func(m *manifest) { m.shape.RowCount = 13 }, ErrIncomplete},
		{"negative row count", func(m *manifest) { m.shape.RowCount, m.shape.PageCount = -1, 0 }, ErrIncomplete},
		{"pages that are no subtrees", func(m *manifest) { m.shape.PageRows = 3 }, ErrIncomplete},
		{"pages without rows", func(m *manifest) { m.shape.PageRows = 0 }, ErrIncomplete},
		{"pages beyond the bound", func(m *manifest) { m.shape.PageRows = 1 << 15 }, ErrIncomplete},
		{"many rows for one record", func(m *manifest) { m.shape.Record = key(10) }, ErrIncomplete},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := ten()
			c.spoil(m)
			if _, err := m.build(); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	t.Run("another record", func(t *testing.T) {
		m := freeze(4, []evidence.PageRow{center(10, 1, 1)})
		m.shape.Record = key(11)
		if _, err := m.build(); !errors.Is(err, ErrIncomplete) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("an empty set has the empty root and no other", func(t *testing.T) {
		m := freeze(4, nil)
		if x := m.index(t); x.Pages() != 0 || x.Ranges() != 1 || x.Range(0) != (Range{}) {
			t.Errorf("pages %d, ranges %d", x.Pages(), x.Ranges())
		}
		m.shape.Root[0] ^= 1
		if _, err := m.build(); !errors.Is(err, ErrNotProven) {
			t.Errorf("got %v", err)
		}
	})
}

func TestIndexRange(t *testing.T) {
	x := ten().index(t)
	spell := func(s *string) string {
		if s == nil {
			return "open"
		}
		return protocol.FormatKey(*s)[28:]
	}
	for _, c := range []struct {
		from, to    int
		after, upTo string
	}{
		{0, 1, "open", "0028"}, // 40
		{1, 2, "0028", "0050"},
		{2, 3, "0050", "0064"},
		{3, 4, "0064", "open"},
		{0, 3, "open", "0064"},
		{0, 4, "open", "open"},
		{1, 4, "0028", "open"},
	} {
		r := x.Span(c.from, c.to)
		if spell(r.After) != c.after || spell(r.UpTo) != c.upTo {
			t.Errorf("span %d-%d is (%s, %s]", c.from, c.to, spell(r.After), spell(r.UpTo))
		}
	}
	if none := x.Span(0, 0); none.Contains(key(0)) || none.Contains(key(10)) {
		t.Error("a span of no range holds a key")
	}
	if x.RowsOf(0, 4) != 10 || x.RowsOf(1, 3) != 6 || x.RowsOf(3, 4) != 0 {
		t.Error("rows of ranges are miscounted")
	}
}

func TestRangeOfARecord(t *testing.T) {
	zero, ones := string(make([]byte, 16)), string(slices.Repeat([]byte{0xff}, 16))
	for name, c := range map[string]struct{ record, below, above string }{
		"some key":           {key(10), key(9), key(11)},
		"borrowing":          {key(0x10000), key(0xffff), key(0x10001)},
		"the greatest":       {ones, ones[:15] + "\xfe", ""},
		"the least":          {zero, "", key(1)},
		"borrowing all over": {"\x01" + zero[1:], "\x00" + ones[1:], "\x01" + zero[2:] + "\x01"},
	} {
		t.Run(name, func(t *testing.T) {
			m := freeze(4, nil)
			m.shape.Record = c.record
			x := m.index(t)
			r := x.Range(0)
			if x.Ranges() != 1 || !r.Contains(c.record) {
				t.Error("the record is not in its range")
			}
			if (c.below != "" && r.Contains(c.below)) || (c.above != "" && r.Contains(c.above)) {
				t.Error("a neighbour is in the range")
			}
		})
	}
}

func TestVerifyPage(t *testing.T) {
	m := ten()
	x := m.index(t)
	clone := func(i int) []evidence.PageRow { return slices.Clone(m.pages[i]) }
	t.Run("as signed", func(t *testing.T) {
		for i := range m.pages {
			if err := x.VerifyPage(i, m.pages[i]); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("what rides along is outside the tree", func(t *testing.T) {
		page := clone(1)
		page[0].Sequence = 99
		if err := x.VerifyPage(1, page); err != nil {
			t.Error(err)
		}
	})
	for name, spoil := range map[string]func([]evidence.PageRow) []evidence.PageRow{
		"a row missing":    func(p []evidence.PageRow) []evidence.PageRow { return p[:3] },
		"a row too many":   func(p []evidence.PageRow) []evidence.PageRow { return append(p, center(81, 1, 1)) },
		"another revision": func(p []evidence.PageRow) []evidence.PageRow { p[2].Revision++; return p },
		"another hash":     func(p []evidence.PageRow) []evidence.PageRow { p[2].Hash[0]++; return p },
		"another deleted":  func(p []evidence.PageRow) []evidence.PageRow { p[2].Deleted = true; return p },
		"another key":      func(p []evidence.PageRow) []evidence.PageRow { p[2].Key = key(71); return p },
		"rows swapped":     func(p []evidence.PageRow) []evidence.PageRow { p[1], p[2] = p[2], p[1]; return p },
		"no rows":          func([]evidence.PageRow) []evidence.PageRow { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			if err := x.VerifyPage(1, spoil(clone(1))); !errors.Is(err, ErrNotProven) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("another page", func(t *testing.T) {
		if err := x.VerifyPage(1, m.pages[0]); !errors.Is(err, ErrNotProven) {
			t.Errorf("got %v", err)
		}
		if err := x.VerifyPage(3, m.pages[0]); !errors.Is(err, ErrIncomplete) {
			t.Errorf("got %v", err)
		}
	})
}

// What a center signed may still be wrong: a root vouches for its rows, not for their order.
func TestVerifyPageOfADishonestRoot(t *testing.T) {
	for name, c := range map[string]struct {
		rows []evidence.PageRow
		last string
		want error
	}{
		"keys fall":         {[]evidence.PageRow{center(1, 1, 1), center(2, 1, 1), center(4, 1, 1), center(3, 1, 1)}, "", ErrOrder},
		"keys repeat":       {[]evidence.PageRow{center(1, 1, 1), center(2, 1, 1), center(3, 1, 1), center(3, 1, 1)}, "", ErrOrder},
		"pages overlap":     {[]evidence.PageRow{center(1, 1, 1), center(5, 1, 1), center(4, 1, 1), center(6, 1, 1)}, "", ErrIncomplete},
		"another last key":  {[]evidence.PageRow{center(1, 1, 1), center(2, 1, 1), center(3, 1, 1), center(4, 1, 1)}, key(9), ErrIncomplete},
		"beyond its bounds": {[]evidence.PageRow{center(1, 1, 1), center(2, 1, 1), center(3, 1, 1), center(9, 1, 1)}, key(4), ErrIncomplete},
	} {
		t.Run(name, func(t *testing.T) {
			m := freeze(2, c.rows)
			if c.last != "" {
				m.entries[1].LastKey = c.last
			}
			if err := m.index(t).VerifyPage(1, m.pages[1]); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	equal := func() (rows []evidence.Row) {
		for n := uint64(10); n <= 100; n += 10 {
			rows = append(rows, local(n, 1, 1))
		}
		return rows
	}
	digest := func(t *testing.T, from, to int, rows []evidence.Row) []Part {
		t.Helper()
		d := NewDigest(ten().index(t), from, to)
		if err := d.Add(rows); err != nil {
			t.Fatal(err)
		}
		return d.Close()
	}
	t.Run("equal sets have no parts", func(t *testing.T) {
		if parts := digest(t, 0, 4, equal()); parts != nil {
			t.Errorf("got %v", parts)
		}
	})
	t.Run("the first key counts", func(t *testing.T) {
		parts := digest(t, 0, 4, equal()[1:])
		if len(parts) != 1 || parts[0].Range != 0 || len(parts[0].Rows) != 3 {
			t.Errorf("got %v", parts)
		}
	})
	t.Run("the last key counts", func(t *testing.T) {
		parts := digest(t, 0, 4, equal()[:9])
		if len(parts) != 1 || parts[0].Range != 2 || len(parts[0].Rows) != 1 {
			t.Errorf("got %v", parts)
		}
	})
	t.Run("keys beyond both ends count", func(t *testing.T) {
		rows := append(append([]evidence.Row{local(0, 1, 1)}, equal()...), local(101, 1, 1))
		parts := digest(t, 0, 4, rows)
		if len(parts) != 2 || parts[0].Range != 0 || len(parts[0].Rows) != 5 || parts[1].Range != 3 || len(parts[1].Rows) != 1 {
			t.Errorf("got %v", parts)
		}
	})
	t.Run("an empty image differs in every page", func(t *testing.T) {
		if parts := digest(t, 0, 4, nil); len(parts) != 3 {
			t.Errorf("got %v", parts)
		}
	})
	t.Run("a resumed round starts at its page's edge", func(t *testing.T) {
		if parts := digest(t, 1, 4, equal()[4:]); parts != nil {
			t.Errorf("got %v", parts)
		}
	})
	t.Run("a page and one row are kept, one more is not", func(t *testing.T) {
		crowd := append(equal()[:1:1], local(11, 1, 1))
		crowd = append(crowd, equal()[1:]...)
		parts := digest(t, 0, 4, crowd)
		if len(parts) != 1 || parts[0].Overflow || len(parts[0].Rows) != 5 {
			t.Errorf("got %v", parts)
		}
		crowd = slices.Insert(crowd, 2, local(12, 1, 1))
		parts = digest(t, 0, 4, crowd)
		if len(parts) != 1 || !parts[0].Overflow || parts[0].Rows != nil {
			t.Errorf("got %v", parts)
		}
	})
	t.Run("rows without a hash are looked at even where roots agree", func(t *testing.T) {
		m := freeze(4, []evidence.PageRow{center(1, 1, 0), center(2, 1, 1)})
		d := NewDigest(m.index(t), 0, 2)
		if err := d.Add([]evidence.Row{local(1, 1, 0), local(2, 1, 1)}); err != nil {
			t.Fatal(err)
		}
		if parts := d.Close(); len(parts) != 1 {
			t.Errorf("got %v", parts)
		}
	})
	for name, rows := range map[string][]evidence.Row{
		"keys fall":              {local(60, 1, 1), local(55, 1, 1)},
		"keys repeat":            {local(60, 1, 1), local(60, 1, 1)},
		"a key before the round": {local(40, 1, 1)},
		"a key after the round":  {local(101, 1, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDigest(ten().index(t), 1, 3)
			var err error
			for i := 0; i < len(rows) && err == nil; i++ {
				err = d.Add(rows[i : i+1])
			}
			if !errors.Is(err, ErrOrder) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestDigestReset(t *testing.T) {
	x := ten().index(t)
	d := NewDigest(x, 0, 1)
	if err := d.Add([]evidence.Row{local(10, 2, 2)}); err != nil {
		t.Fatal(err)
	}
	first := d.Close()
	d.Reset(1, 2)
	if err := d.Add([]evidence.Row{local(50, 3, 3)}); err != nil {
		t.Fatal(err)
	}
	second := d.Close()
	if len(first) != 1 || len(second) != 1 || first[0].Rows[0].Key != key(10) || second[0].Rows[0].Key != key(50) {
		t.Errorf("parts of a round changed with the next: %v, %v", first, second)
	}
	if d.Scanned() != 1 {
		t.Errorf("scanned %d", d.Scanned())
	}
}

func TestMerge(t *testing.T) {
	keep := func(out *[]Difference) func(Difference) error {
		return func(d Difference) error { *out = append(*out, d); return nil }
	}
	t.Run("differences may be kept", func(t *testing.T) {
		var got []Difference
		rows := []evidence.Row{local(1, 1, 2), local(2, 1, 2), local(4, 1, 1)}
		if err := Merge(Range{}, []evidence.PageRow{center(1, 1, 1), center(3, 1, 1)}, Rows(rows), keep(&got)); err != nil {
			t.Fatal(err)
		}
		rows[0], rows[1], rows[2] = evidence.Row{}, evidence.Row{}, evidence.Row{}
		if len(got) != 4 || got[0].Local.Key != key(1) || got[0].Center.Key != key(1) ||
			got[1].Local.Key != key(2) || got[2].Local != nil || got[2].Key() != key(3) || got[3].Center != nil {
			t.Errorf("got %v", got)
		}
	})
	failing := errors.New("connection lost")
	broken := func(rows ...evidence.Row) iter.Seq2[evidence.Row, error] {
		return func(yield func(evidence.Row, error) bool) {
			for _, r := range rows {
				if !yield(r, nil) {
					return
				}
			}
			yield(evidence.Row{}, failing)
		}
	}
	t.Run("a broken read names no row missing", func(t *testing.T) {
		var got []Difference
		err := Merge(Range{}, []evidence.PageRow{center(1, 1, 1), center(2, 1, 1)}, broken(local(1, 1, 1)), keep(&got))
		if !errors.Is(err, failing) || got != nil {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("an error of emit ends it", func(t *testing.T) {
		calls := 0
		err := Merge(Range{}, []evidence.PageRow{center(1, 1, 1), center(2, 1, 1)}, Rows(nil), func(Difference) error {
			calls++
			return failing
		})
		if !errors.Is(err, failing) || calls != 1 {
			t.Errorf("got %v after %d calls", err, calls)
		}
	})
	after, upTo := key(10), key(20)
	bounded := Range{After: &after, UpTo: &upTo}
	for name, c := range map[string]struct {
		center []evidence.PageRow
		local  []evidence.Row
	}{
		"local keys fall":         {nil, []evidence.Row{local(12, 1, 1), local(11, 1, 1)}},
		"local keys repeat":       {nil, []evidence.Row{local(12, 1, 1), local(12, 1, 1)}},
		"local below the range":   {nil, []evidence.Row{local(10, 1, 1)}},
		"local above the range":   {nil, []evidence.Row{local(21, 1, 1)}},
		"center keys fall":        {[]evidence.PageRow{center(12, 1, 1), center(11, 1, 1)}, nil},
		"center keys repeat":      {[]evidence.PageRow{center(12, 1, 1), center(12, 1, 1)}, nil},
		"center below the range":  {[]evidence.PageRow{center(10, 1, 1)}, nil},
		"center beyond the range": {[]evidence.PageRow{center(21, 1, 1)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			err := Merge(bounded, c.center, Rows(c.local), func(Difference) error { return nil })
			if !errors.Is(err, ErrOrder) {
				t.Errorf("got %v", err)
			}
		})
	}
}
