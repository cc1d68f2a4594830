package canon_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
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

// BenchmarkHasherSumOfRows hashes rows whose values differ: with the same members, with some of them
// missing, and with names of their own.
func BenchmarkHasherSumOfRows(b *testing.B) {
	for _, kind := range []struct {
		name string
		row  func(*rand.Rand) []byte
	}{
		{"alike", alikeRow},
		{"missing", missingRow},
		{"unlike", unlikeRow},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		rows := make([][]byte, 512)
		for i := range rows {
			rows[i] = kind.row(r)
		}
		b.Run(kind.name, func(b *testing.B) {
			var h canon.Hasher
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := h.Sum(rows[i%len(rows)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func alikeRow(r *rand.Rand) []byte {
	given := func() string { return pick(r, "Ada", "Łukasz", "Zoë", "Per", "Ingeborg", "Anne-Marie") }
	remark := func() string {
		return pick(r, "", "likes it \"a lot\"", "nothing to add", "Grüße", "a longer remark about nothing", "line\nbreak")
	}
	return fmt.Appendf(nil, `{"fee": {"rate": 1.%d, "amount": %d.%02d, "currency": "EUR"}, "form": "v1", `+
		`"answers": {"again": %t, "liked": %d, "score": %d.%d0, "remark": %q, "topics": [%q, %q], "nickname": null}, `+
		`"student": {"card": %d, "name": %q, "class": "7b", "family": "Quill"}, `+
		`"guardian": {"name": %q, "phone": "+47 %03d %02d %03d", "relation": "mother"}, "submitted": "2026-%02d-%02dT%02d:%02d:00Z"}`,
		r.IntN(1_000_000), r.IntN(500), r.IntN(100),
		r.IntN(2) == 0, r.IntN(6), r.IntN(10), r.IntN(10), remark(), remark(), remark(),
		1<<53+r.Int64N(6), given(), given(), r.IntN(1000), r.IntN(100), r.IntN(1000),
		1+r.IntN(9), 1+r.IntN(28), r.IntN(24), r.IntN(60))
}

func missingRow(r *rand.Rand) []byte {
	var row []byte
	for i, name := range []string{"id", "age", "city", "name", "class", "email", "score", "active", "balance", "enrolled"} {
		if i%2 == 0 || r.IntN(2) == 0 {
			row = fmt.Appendf(row, `, "%s": "value of %d"`, name, r.IntN(100_000))
		}
	}
	return braced(row)
}

func unlikeRow(r *rand.Rand) []byte {
	var row []byte
	for range 20 {
		row = fmt.Appendf(row, `, "%08x": %d`, r.Uint32(), r.IntN(100_000))
	}
	return braced(row)
}

// braced makes an object of members that each have a comma before them.
func braced(members []byte) []byte {
	return append(append([]byte{'{'}, bytes.TrimPrefix(members, []byte(", "))...), '}')
}

func pick(r *rand.Rand, from ...string) string { return from[r.IntN(len(from))] }

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
