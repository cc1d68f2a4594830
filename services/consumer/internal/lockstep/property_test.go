package lockstep

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"lockstep.dev/pkg/evidence"
)

// rowsGen draws rows over a small key space, so that sides meet, miss each
// other and stick out at both ends.
func rowsGen(t *rapid.T, label string) []evidence.Row {
	keys := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 40), 0, 41, rapid.ID[uint64]).Draw(t, label)
	slices.Sort(keys)
	rows := make([]evidence.Row, len(keys))
	for i, k := range keys {
		rows[i] = evidence.Row{
			Key:      key(k),
			Revision: rapid.Int64Range(0, 2).Draw(t, label+" revision"),
			Hash:     hash(rapid.ByteRange(0, 2).Draw(t, label+" hash")),
			Deleted:  rapid.Bool().Draw(t, label+" deleted"),
		}
	}
	return rows
}

// sidesGen draws a center and a local side that starts as its copy.
func sidesGen(t *rapid.T) ([]evidence.PageRow, []evidence.Row) {
	rows := rowsGen(t, "center")
	pageRows := make([]evidence.PageRow, len(rows))
	for i := range rows {
		pageRows[i].Row = rows[i]
	}
	switch rapid.SampledFrom([]string{"other", "equal", "lacking", "swollen"}).Draw(t, "local side") {
	case "equal":
		return pageRows, slices.Clone(rows)
	case "lacking":
		at := rapid.IntRange(0, len(rows)).Draw(t, "from")
		return pageRows, append(slices.Clone(rows[:at]), rows[min(len(rows), at+1):]...)
	case "swollen":
		// Keys of the gen are spread by 1 000 here, so that any page range can hold a crowd.
		for i := range rows {
			rows[i].Key = key(uint64(i) * 1000)
			pageRows[i].Key = rows[i].Key
		}
		first := uint64(rapid.IntRange(0, 41).Draw(t, "crowd after"))*1000 + 1
		crowd := slices.Clone(rows)
		for k := range uint64(rapid.IntRange(1, 60).Draw(t, "crowd")) {
			crowd = append(crowd, local(first+k, 1, 1))
		}
		slices.SortFunc(crowd, func(a, b evidence.Row) int { return compare(a.Key, b.Key) })
		return pageRows, crowd
	}
	return pageRows, rowsGen(t, "local")
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// within is the local read of a range.
func within(rows []evidence.Row, r Range) []evidence.Row {
	var out []evidence.Row
	for _, row := range rows {
		if r.Contains(row.Key) {
			out = append(out, row)
		}
	}
	return out
}

// walked is what a whole walk over both sides came to.
type walked struct {
	found   []found
	fetched []int
	scanned int64
	doubted []int
}

// walk does what a worker does: rounds of some ranges, local rows in pieces,
// differing pages verified and merged, overflowed and doubted ranges read again.
// seen, where it is not nil, are the rows that were hashed before, in any order.
func walk(t *rapid.T, m *manifest, localRows, seen []evidence.Row) walked {
	x, err := m.build()
	if err != nil {
		t.Fatalf("index: %v", err)
	}
	size := rapid.IntRange(1, 5).Draw(t, "ranges a round")
	piece := rapid.IntRange(1, 7).Draw(t, "rows a piece")
	d, again := NewDigest(x, 0, 0), NewDigest(x, 0, 0)
	if seen != nil {
		d.Sound = NewSums(x)
		for rows := range slices.Chunk(seen, piece) {
			d.Sound.Add(rows)
		}
	}
	var out walked
	for from := 0; from < x.Ranges(); from += size {
		to := min(from+size, x.Ranges())
		d.Reset(from, to)
		for rows := range slices.Chunk(within(localRows, x.Span(from, to)), piece) {
			if err := d.Add(rows); err != nil {
				t.Fatalf("digest: %v", err)
			}
			if len(d.rows) > x.PageRows()+x.PageRows()/8+1 {
				t.Fatalf("%d rows are held of one range", len(d.rows))
			}
		}
		parts := d.Close()
		out.scanned += d.Scanned()
		for _, r := range d.Doubted() {
			again.Reset(r[0], r[1])
			if err := again.Add(within(localRows, again.Span())); err != nil {
				t.Fatalf("digest: %v", err)
			}
			parts = append(parts, again.Close()...)
			out.scanned += again.Scanned()
			for i := r[0]; i < r[1]; i++ {
				out.doubted = append(out.doubted, i)
			}
		}
		slices.SortFunc(parts, func(a, b Part) int { return a.Range - b.Range })
		for _, part := range parts {
			out.merge(t, m, x, part, localRows)
		}
	}
	return out
}

func (w *walked) merge(t *rapid.T, m *manifest, x *Index, part Part, localRows []evidence.Row) {
	var page []evidence.PageRow
	if part.Range < x.Pages() {
		page = m.pages[part.Range]
		w.fetched = append(w.fetched, part.Range)
		if err := x.VerifyPage(part.Range, page); err != nil {
			t.Fatalf("verify page %d: %v", part.Range, err)
		}
	}
	rows := part.Rows
	if len(rows) > x.PageRows()+x.PageRows()/8+1 {
		t.Fatalf("%d rows are kept of one range", len(rows))
	}
	if part.Overflow {
		rows = within(localRows, x.Range(part.Range))
	}
	err := Merge(x.Range(part.Range), page, Rows(rows), func(d Difference) error {
		w.found = append(w.found, found{d.Key(), d.Class})
		return nil
	})
	if err != nil {
		t.Fatalf("merge: %v", err)
	}
}

func TestWalkFindsWhatTheMapsFind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		centerRows, localRows := sidesGen(t)
		m := freeze(1<<rapid.IntRange(0, 4).Draw(t, "page size"), centerRows)
		got := walk(t, m, localRows, nil)
		want := twin(centerRows, localRows)
		if !slices.Equal(got.found, want) {
			t.Fatalf("found %v\nwant  %v", got.found, want)
		}
		if got.scanned != int64(len(localRows)) {
			t.Fatalf("scanned %d of %d local rows", got.scanned, len(localRows))
		}
		if pages := differingPages(m, localRows, want); !slices.Equal(got.fetched, pages) {
			t.Fatalf("fetched pages %v, differing are %v", got.fetched, pages)
		}
	})
}

// TestRangeOf: keys with the same first bytes, and with others, are in the range
// that holds them.
func TestRangeOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.Custom(func(t *rapid.T) string {
			return string([]byte{rapid.ByteRange(0, 2).Draw(t, "first"), 7: 0, 9: rapid.ByteRange(0, 9).Draw(t, "other"), 15: 0})
		})
		keys := rapid.SliceOfNDistinct(raw, 0, 30, rapid.ID[string]).Draw(t, "last keys")
		slices.Sort(keys)
		x := &Index{}
		for _, k := range keys {
			x.entries = append(x.entries, Entry{LastKey: k})
		}
		k := raw.Draw(t, "key")
		if r := NewSums(x).rangeOf(k); !x.Range(r).Contains(k) {
			t.Fatalf("%x is in range %d of %x", k, r, keys)
		}
	})
}

// TestNothingIsVouchedForThatWasNotSeen: whatever was hashed, and in whatever
// order, a range is believed only where its rows are those that were hashed, and
// what is found is what a walk finds that hashes everything.
func TestNothingIsVouchedForThatWasNotSeen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		centerRows, localRows := sidesGen(t)
		m := freeze(1<<rapid.IntRange(0, 4).Draw(t, "page size"), centerRows)
		x, err := m.build()
		if err != nil {
			t.Fatalf("index: %v", err)
		}
		seen, differs := []evidence.Row{}, map[int]bool{}
		rangeOf := func(k string) (r int) {
			for !x.Range(r).Contains(k) {
				r++
			}
			return r
		}
		for _, row := range localRows {
			switch rapid.SampledFrom([]string{"once", "once", "once", "once", "once", "never", "twice", "older", "unsound too"}).Draw(t, "seen") {
			case "once":
				seen = append(seen, row)
				if !row.Hash.IsZero() {
					continue
				}
			case "twice":
				seen = append(seen, row, row)
			case "older":
				row.Revision--
				seen = append(seen, row)
			case "unsound too": // sound at first, and rotten when its page was moved and read again
				seen = append(seen, row)
				row.Hash = evidence.Row{}.Hash
				seen = append(seen, row)
			}
			differs[rangeOf(row.Key)] = true
		}
		if rapid.Bool().Draw(t, "one is gone") {
			gone := local(1_000_000, 1, 1)
			seen, differs[rangeOf(gone.Key)] = append(seen, gone), true
		}
		lying := append([]evidence.Row{}, rapid.Permutation(seen).Draw(t, "as they lie")...)
		got := walk(t, m, localRows, lying)
		for r := range x.Ranges() {
			if doubted := slices.Contains(got.doubted, r); doubted != differs[r] {
				t.Fatalf("range %d: doubted %v, want %v", r, doubted, differs[r])
			}
		}
		if want := twin(centerRows, localRows); !slices.Equal(got.found, want) {
			t.Fatalf("found %v\nwant  %v", got.found, want)
		}
		if got.scanned != int64(len(localRows)) {
			t.Fatalf("scanned %d of %d local rows", got.scanned, len(localRows))
		}
	})
}

// differingPages are the pages that hold a difference in their range, or a local
// row without a hash, which can't be told equal without looking.
func differingPages(m *manifest, localRows []evidence.Row, want []found) []int {
	var pages []int
	for i := range m.pages {
		differs := false
		inPage := func(k string) bool {
			return k <= m.entries[i].LastKey && (i == 0 || k > m.entries[i-1].LastKey)
		}
		for _, f := range want {
			differs = differs || inPage(f.key)
		}
		for _, r := range localRows {
			differs = differs || (inPage(r.Key) && r.Hash == hash(0))
		}
		if differs {
			pages = append(pages, i)
		}
	}
	return pages
}

func TestWalkOfARecordStaysAtItsKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		centerRows, localRows := sidesGen(t)
		record := key(rapid.Uint64Range(0, 41).Draw(t, "record"))
		is := func(k string) bool { return k == record }
		centerRows = slices.DeleteFunc(centerRows, func(r evidence.PageRow) bool { return !is(r.Key) })
		m := freeze(128, centerRows)
		m.shape.Record = record
		got := walk(t, m, localRows, nil)
		want := twin(centerRows, slices.DeleteFunc(slices.Clone(localRows), func(r evidence.Row) bool { return !is(r.Key) }))
		if !slices.Equal(got.found, want) {
			t.Fatalf("found %v\nwant  %v", got.found, want)
		}
		if got.scanned > 1 {
			t.Fatalf("scanned %d rows for one record", got.scanned)
		}
	})
}

func TestMergeFindsWhatTheMapsFind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		centerRows, localRows := sidesGen(t)
		var got []found
		err := Merge(Range{}, centerRows, Rows(localRows), func(d Difference) error {
			got = append(got, found{d.Key(), d.Class})
			return nil
		})
		if err != nil {
			t.Fatalf("merge: %v", err)
		}
		if want := twin(centerRows, localRows); !slices.Equal(got, want) {
			t.Fatalf("found %v\nwant  %v", got, want)
		}
	})
}

func TestNoTamperedIndexIsAccepted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "rows")
		rows := make([]evidence.PageRow, n)
		for i := range rows {
			rows[i] = center(uint64(i)*2, 1, 1)
		}
		m := freeze(1<<rapid.IntRange(0, 3).Draw(t, "page size"), rows)
		i := rapid.IntRange(0, len(m.entries)-1).Draw(t, "entry")
		switch rapid.SampledFrom([]string{"drop", "double", "root", "rows", "swap"}).Draw(t, "how") {
		case "drop":
			m.entries = slices.Delete(m.entries, i, i+1)
		case "double":
			m.entries = slices.Insert(m.entries, i, m.entries[i])
		case "root":
			m.entries[i].Root[rapid.IntRange(0, 31).Draw(t, "byte")] ^= 1
		case "rows":
			m.entries[i].Rows += rapid.SampledFrom([]int{-1, 1}).Draw(t, "rows")
		case "swap":
			if i == 0 {
				return
			}
			m.entries[i], m.entries[i-1] = m.entries[i-1], m.entries[i]
		}
		if _, err := m.build(); err == nil {
			t.Fatal("a tampered index was accepted")
		}
	})
}
