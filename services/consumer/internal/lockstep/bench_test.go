package lockstep

import (
	"testing"

	"lockstep.dev/pkg/evidence"
)

const (
	benchRows  = 128 * 64 // one round
	benchEvery = 100      // rows between differences
)

func benchSides() (*manifest, []evidence.Row) {
	centerRows := make([]evidence.PageRow, benchRows)
	localRows := make([]evidence.Row, benchRows)
	for i := range centerRows {
		centerRows[i] = center(uint64(i), 7, byte(i)|1)
		localRows[i] = centerRows[i].Row
	}
	return freeze(128, centerRows), localRows
}

// BenchmarkDigestEqual is a round whose page roots all agree.
func BenchmarkDigestEqual(b *testing.B) {
	m, rows := benchSides()
	d := NewDigest(m.index(b), 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		d.Reset(0, 64)
		if err := d.Add(rows); err != nil {
			b.Fatal(err)
		}
		if parts := d.Close(); parts != nil {
			b.Fatal("equal sides differ")
		}
	}
	b.ReportMetric(benchRows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkVerifyPage is one fetched page.
func BenchmarkVerifyPage(b *testing.B) {
	m, _ := benchSides()
	x := m.index(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := x.VerifyPage(5, m.pages[5]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(128*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkMerge is a range with one difference in a hundred rows.
func BenchmarkMerge(b *testing.B) {
	m, rows := benchSides()
	for i := 0; i < len(rows); i += benchEvery {
		rows[i].Revision--
	}
	var centerRows []evidence.PageRow
	for _, page := range m.pages {
		centerRows = append(centerRows, page...)
	}
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		if err := Merge(Range{}, centerRows, Rows(rows), func(Difference) error { n++; return nil }); err != nil || n == 0 {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(benchRows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
