package source_test

import (
	"fmt"
	"testing"

	"lockstep.dev/pkg/protocol"
)

func TestCurrent(t *testing.T) {
	w := setup(t)
	w.item(key("1"), 4)
	w.item(key("2"), 1)
	w.item(key("2"), 2)
	w.exec(`INSERT INTO item ("Key", tenant, shelf) VALUES ($1, 8, $2::text::uuid), ($3, 7, gen_random_uuid())`, key("3"), shelf, key("4"))
	var keys []string
	for i := 1; i <= 5; i++ {
		raw, err := protocol.ParseKey(key(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, raw)
	}
	got, err := w.src.Current(t.Context(), w.rng, keys, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if r := got.Rows[keys[0]]; r == nil || r.Revision != 4 || string(r.Content) != `{"tags": null, "price": 1.50, "title": "it"}` {
		t.Errorf("row %+v", r)
	}
	if !got.Twice[keys[1]] || !got.Elsewhere[keys[2]] || !got.Elsewhere[keys[3]] || !got.Missing(keys[4]) || got.System == "" {
		t.Errorf("%+v", got)
	}
	for i := range 4 {
		if got.Missing(keys[i]) {
			t.Errorf("key %d is said to be missing", i+1)
		}
	}
}

func TestCurrentIsCutByBytes(t *testing.T) {
	w := setup(t)
	var keys []string
	for i, size := range []int{8 << 20, 100_000, 100_000, 10} {
		w.exec(`INSERT INTO item ("Key", tenant, shelf, rev, title) VALUES ($1, 7, $2::text::uuid, 1, repeat('x', $3::int))`, key(fmt.Sprint(i+1)), shelf, size)
		raw, err := protocol.ParseKey(key(fmt.Sprint(i + 1)))
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, raw)
	}
	const around = len(`{"tags": null, "price": null, "title": ""}`)
	const leftOver = -1
	for _, c := range []struct {
		name     string
		from     int // the first key asked for
		maxBytes int
		want     []int // bytes of the contents; leftOver
	}{
		{"all fit, and what is too long stays where it is", 0, 1 << 20, []int{1, 100_000 + around, 100_000 + around, 10 + around}},
		{"what does not fit is left over and keeps nothing back", 0, 150_000, []int{1, 100_000 + around, leftOver, 10 + around}},
		{"a large one does not come before smaller ones", 1, 50_000, []int{leftOver, leftOver, 10 + around}},
		{"the first one comes whatever its size", 1, 0, []int{leftOver, leftOver, 10 + around}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := w.src.Current(t.Context(), w.rng, keys[c.from:], c.maxBytes)
			if err != nil {
				t.Fatal(err)
			}
			for i, k := range keys[c.from:] {
				row := got.Rows[k]
				switch {
				case c.want[i] == leftOver:
					if row != nil || !got.LeftOver[k] || got.Missing(k) {
						t.Errorf("record %d is not left over", i)
					}
				case row == nil || len(row.Content) != c.want[i] || row.Revision != 1:
					t.Errorf("record %d is not read as it is", i)
				}
			}
		})
	}
}
