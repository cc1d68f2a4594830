package canon_test

import (
	"testing"

	"lockstep.dev/pkg/canon"
)

// record is about what the content of one record looks like when PostgreSQL prints its jsonb: 410
// bytes, names ordered by length, a space behind each comma and colon.
const record = `{"id": "018f3c5e-7b1a-7c3e-9a55-2f6f0b7a1c9d", "age": 17, "city": "Łódź", "name": "Zoë Quill-Marchetti", "tags": ["north", "choir", "bus-12"], "class": "7b", "email": "zoe.quill@example.org", "score": 91.50, "active": true, "parent": {"name": "Ines Quill", "phone": "+48 601 555 014"}, "remarks": null, "balance": -1204.75, "address": {"zip": "90-001", "street": "Ogrodowa 8/12"}, "enrolled": "2024-09-02"}`

func BenchmarkHasherSum(b *testing.B) {
	text := []byte(record)
	var h canon.Hasher
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := h.Sum(text); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

func BenchmarkAppend(b *testing.B) {
	text := []byte(record)
	var out []byte
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if out, err = canon.Append(out[:0], text); err != nil {
			b.Fatal(err)
		}
	}
}
