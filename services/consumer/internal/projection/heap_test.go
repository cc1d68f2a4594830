package projection

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
)

// However the pages are cut, each live row comes once, and has a hash only if it
// is the one that is stored with it.
func TestHashPages(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		var want []evidence.Row
		for n := range uint64(400) {
			row := w.put(t, w.at, n, 1, fmt.Sprint("row ", n, strings.Repeat("x", 100)))
			if n%9 < 2 {
				row.Hash = canon.Hash{}
			}
			if n%9 != 2 {
				want = append(want, row)
			}
		}
		for n := range uint64(400) {
			switch n % 9 {
			case 0:
				w.set(t, key(n), w.table.ContentHash+" = '\\x"+strings.Repeat("ab", 32)+"'")
			case 1:
				w.set(t, key(n), w.table.ContentHash+" = '\\x"+strings.Repeat("00", 32)+"'")
			case 2:
				w.set(t, key(n), w.table.Retired+" = now()")
			case 3: // leaves a dead row behind
				w.set(t, key(n), w.table.Deleted+" = false")
			}
		}
		w.put(t, w.other, 1000, 1, "other collection")
		w.put(t, Scope{2, w.at.CollectionID}, 1, 1, "other tenant")
		heap, err := w.Heap(t.Context())
		if err != nil || heap.Pages < 3 {
			t.Fatalf("%+v, %v", heap, err)
		}
		for _, step := range []int64{1, 3, 1000} {
			var got []evidence.Row
			for from := int64(0); from < heap.Pages; from += step {
				err := w.HashPages(t.Context(), w.at, from, from+step, func(rows []evidence.Row) error {
					got = append(got, rows...)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			slices.SortFunc(got, func(a, b evidence.Row) int { return strings.Compare(a.Key, b.Key) })
			if !slices.Equal(got, want) {
				t.Errorf("%d pages a call: %d rows, want %d", step, len(got), len(want))
			}
		}
	})
}
