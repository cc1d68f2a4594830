package evidence_test

import (
	"testing"

	"lockstep.dev/pkg/evidence"
)

func uuidRows(n int) []evidence.PageRow {
	out := pageRows(n)
	for i := range out {
		out[i].Key = "12 bytes of " + out[i].Key[4:] // as long as a UUID
	}
	return out
}

func perRow(b *testing.B, rows int) {
	b.ReportMetric(float64(b.N*rows)/b.Elapsed().Seconds(), "rows/s")
}

func BenchmarkLeafHash(b *testing.B) {
	row := uuidRows(1)[0].Row
	b.ReportAllocs()
	for b.Loop() {
		evidence.LeafHash(&row)
	}
	perRow(b, 1)
}

func BenchmarkPageRoot(b *testing.B) {
	page := evidence.Rows(uuidRows(128))
	b.ReportAllocs()
	for b.Loop() {
		evidence.PageRoot(page)
	}
	perRow(b, 128)
}

func BenchmarkFold(b *testing.B) {
	roots := make([]evidence.Node, 7813) // one million rows
	b.ReportAllocs()
	for b.Loop() {
		evidence.Fold(roots)
	}
}

func BenchmarkAppendPage(b *testing.B) {
	page := uuidRows(128)
	var body []byte
	b.ReportAllocs()
	for b.Loop() {
		body = evidence.AppendPage(body[:0], page)
	}
	b.SetBytes(int64(len(body)))
	perRow(b, 128)
}

func BenchmarkDecodePage(b *testing.B) {
	body := evidence.AppendPage(nil, uuidRows(128))
	var dst []evidence.PageRow
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = evidence.DecodePage(body, dst[:0], 128); err != nil {
			b.Fatal(err)
		}
	}
	perRow(b, 128)
}

func BenchmarkVerifyAbsence(b *testing.B) {
	w, fresh := setup(b)
	a := fresh()
	b.ReportAllocs()
	for b.Loop() {
		if err := a.Verify(w.key, worldRows, w.root); err != nil {
			b.Fatal(err)
		}
	}
}
