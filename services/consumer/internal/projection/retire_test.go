package projection

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pg"
)

func (w *world) retire(t *testing.T, window time.Time, items ...RetireItem) (retired []string) {
	t.Helper()
	err := pg.InTx(t.Context(), w.pool, func(tx pgx.Tx) (err error) {
		retired, err = w.Retire(t.Context(), tx, w.at, window, items)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(retired)
	return retired
}

func TestRetire(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		one, two := w.put(t, w.at, 1, 2, "a"), w.put(t, w.at, 2, 3, "b")
		w.put(t, w.at, 3, 3, "kept")
		w.keepsExtensions(t, func() {
			got := w.retire(t, january, // created at the very moment the window starts: not after it
				RetireItem{Key: key(2), Expected: Live(two), ProofID: "proof-2"},
				RetireItem{Key: key(1), Expected: Live(one), ProofID: "proof-1"})
			if !slices.Equal(got, keys(1, 2)) {
				t.Fatalf("retired %x", got)
			}
		})
		row, _ := w.row(t, 1)
		want := LocalRow{Row: one, CollectionID: w.at.CollectionID, Version: 2, Created: january, Retired: true, Content: one.Hash}
		if row != want {
			t.Errorf("got  %+v\nwant %+v", row, want)
		}
		if image := w.image(t); len(image) != 1 || image[0].Key != key(3) {
			t.Errorf("the image is %v", image)
		}
		if w.table.ProofID != "" {
			if proof := w.dump(t, "t."+w.table.ProofID)["100000000-0000-0000-0000-000000000002"]; proof != "proof-2" {
				t.Errorf("proof %s", proof)
			}
		}
	})
}

func TestRetireLeavesWhatIsOtherwise(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		row := w.put(t, w.at, 1, 2, "a")
		foreign := w.put(t, w.other, 2, 2, "a")
		tenant2 := w.put(t, Scope{2, w.at.CollectionID}, 3, 2, "a")
		ageless := w.put(t, w.at, 4, 2, "a")
		w.set(t, key(4), w.table.CreateTime+" = NULL")
		gone := w.put(t, w.at, 5, 2, "a")
		w.set(t, key(5), w.table.Retired+" = '2026-02-02Z'")
		held := w.put(t, w.at, 6, 2, "a")
		with := func(change func(*evidence.Row)) evidence.Row {
			changed := row
			change(&changed)
			return changed
		}
		cases := map[string]struct {
			row    evidence.Row
			window time.Time
		}{
			"another revision":       {with(func(r *evidence.Row) { r.Revision++ }), january},
			"another hash":           {with(func(r *evidence.Row) { r.Hash[31]++ }), january},
			"another deleted":        {with(func(r *evidence.Row) { r.Deleted = true }), january},
			"created after the scan": {row, january.Add(-time.Microsecond)},
			"no create time":         {ageless, january},
			"another collection":     {foreign, january},
			"another tenant":         {tenant2, january},
			"retired already":        {gone, january},
		}
		if w.table.RetireHold != "" {
			w.set(t, key(6), w.table.RetireHold+" = true")
			cases["held"] = struct {
				row    evidence.Row
				window time.Time
			}{held, january}
		}
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				w.unchanged(t, func() {
					if got := w.retire(t, c.window, RetireItem{Key: c.row.Key, Expected: Live(c.row), ProofID: "p"}); got != nil {
						t.Errorf("retired %x", got)
					}
				})
			})
		}
		t.Run("a locked row", func(t *testing.T) {
			host := w.begin(t, "SELECT FROM "+w.table.Ident+" AS t WHERE t."+w.table.Key+" = $1 FOR UPDATE", w.table.KeyArg(key(1)))
			w.unchanged(t, func() {
				if got := w.retire(t, january, RetireItem{Key: key(1), Expected: Live(row), ProofID: "p"}); got != nil {
					t.Errorf("retired %x", got)
				}
			})
			if err := host.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func TestMarkConflict(t *testing.T) {
	w := setup(t, bundled)
	row, moved := w.put(t, w.at, 1, 2, "a"), w.put(t, w.at, 2, 2, "a")
	w.set(t, key(2), "revision = 3")
	conflict := func(r evidence.Row) Conflict {
		other := r
		other.Hash = hashOf(t, body("b"))
		return Conflict{Key: r.Key, Expected: Live(r), Center: other}
	}
	before := w.dump(t, `(to_jsonb(t) - 'conflict_detail')::text`)
	mark := func(w *world) (marked []string) {
		err := pg.InTx(t.Context(), w.pool, func(tx pgx.Tx) (err error) {
			marked, err = w.MarkConflict(t.Context(), tx, w.at, []Conflict{conflict(row), conflict(moved)})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return marked
	}
	if got := mark(w); !slices.Equal(got, keys(1)) {
		t.Errorf("marked %x", got)
	}
	if after := w.dump(t, `(to_jsonb(t) - 'conflict_detail')::text`); after["1"+uuid1] != before["1"+uuid1] {
		t.Errorf("more than the detail changed: %s", after["1"+uuid1])
	}
	details := w.dump(t, "t.conflict_detail")
	want := `{"revision":2,"local_hash":"` + hashOf(t, body("a")).String() + `","center_hash":"` + hashOf(t, body("b")).String() + `"}`
	if details["1"+uuid1] != want || details["1"+uuid2] != "NULL" {
		t.Errorf("details are %v", details)
	}
	t.Run("without the column nothing is done", func(t *testing.T) {
		w := setup(t, textKey)
		w.put(t, w.at, 1, 2, "a")
		w.unchanged(t, func() {
			if got := mark(w); got != nil {
				t.Errorf("marked %x", got)
			}
		})
	})
}

const (
	uuid1 = "00000000-0000-0000-0000-000000000001"
	uuid2 = "00000000-0000-0000-0000-000000000002"
)

func TestUnretire(t *testing.T) {
	for _, v := range []variant{bundled, columns} {
		t.Run(v.name, func(t *testing.T) {
			w := setup(t, v)
			row := w.put(t, w.at, 1, 2, "a")
			w.put(t, w.other, 2, 2, "a")
			w.set(t, key(2), w.table.Retired+" = now()")
			w.retire(t, january, RetireItem{Key: key(1), Expected: Live(row), ProofID: "p"})
			unretire := func(n uint64) (done bool) {
				err := pg.InTx(t.Context(), w.pool, func(tx pgx.Tx) (err error) {
					done, err = w.Unretire(t.Context(), tx, w.at, key(n))
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				return done
			}
			w.keepsExtensions(t, func() {
				if !unretire(1) {
					t.Error("the row was not brought back")
				}
			})
			back, _ := w.row(t, 1)
			if back.Retired || !back.Hold || back.Version != 3 || back.Row != row {
				t.Errorf("got %+v", back)
			}
			w.unchanged(t, func() {
				if unretire(1) || unretire(2) || unretire(3) {
					t.Error("a row that is not retired here was brought back")
				}
				if got := w.retire(t, january, RetireItem{Key: key(1), Expected: Live(row), ProofID: "p"}); got != nil {
					t.Errorf("a held row was retired: %x", got)
				}
			})
		})
	}
	t.Run("without a hold column", func(t *testing.T) {
		w := setup(t, textKey)
		err := pg.InTx(t.Context(), w.pool, func(tx pgx.Tx) error {
			_, err := w.Unretire(t.Context(), tx, w.at, key(1))
			return err
		})
		if !errors.Is(err, ErrNoHold) {
			t.Errorf("got %v", err)
		}
	})
}
