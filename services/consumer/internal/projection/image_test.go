package projection

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
)

func TestImage(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		var want []evidence.Row
		for _, n := range []uint64{3, 1, 2, 1 << 63, 0, 5} {
			want = append(want, w.put(t, w.at, n, int64(n%7), "row"))
		}
		slices.SortFunc(want, func(a, b evidence.Row) int { return strings.Compare(a.Key, b.Key) })
		w.set(t, key(2), w.table.Deleted+" = true")
		want[2].Deleted = true
		w.put(t, w.other, 4, 1, "other collection")
		w.put(t, Scope{2, w.at.CollectionID}, 1, 1, "other tenant")
		w.put(t, w.at, 6, 1, "retired")
		w.set(t, key(6), w.table.Retired+" = now()")

		two, five := key(2), key(5)
		for _, c := range []struct {
			name        string
			after, upTo *string
			limit       int
			want        []evidence.Row
		}{
			{"everything", nil, nil, 100, want},
			{"the first rows", nil, nil, 2, want[:2]},
			{"after a key", &two, nil, 100, want[3:]},
			{"up to a key and with it", nil, &two, 100, want[:3]},
			{"between keys", &two, &five, 100, want[3:5]},
			{"nothing left", &five, &five, 100, nil},
		} {
			t.Run(c.name, func(t *testing.T) {
				got, err := w.Image(t.Context(), Chunk{Scope: w.at, After: c.after, UpTo: c.upTo, Limit: c.limit}, nil)
				if err != nil || !slices.Equal(got, c.want) {
					t.Errorf("got %v, %v\nwant %v", got, err, c.want)
				}
			})
		}
		t.Run("it appends", func(t *testing.T) {
			got, err := w.Image(t.Context(), Chunk{Scope: w.at, Limit: 1}, slices.Clone(want[4:]))
			if err != nil || len(got) != 3 || got[2] != want[0] {
				t.Errorf("got %v, %v", got, err)
			}
		})
		for _, limit := range []int{1, 2, 3, 6, 7} {
			var got []evidence.Row
			for row, err := range w.Stream(t.Context(), Chunk{Scope: w.at, Limit: limit}) {
				if err != nil {
					t.Fatal(err)
				}
				if n := w.pool.Stat().AcquiredConns(); n != 0 {
					t.Errorf("%d statements are open while a row is looked at", n)
				}
				got = append(got, row)
			}
			if !slices.Equal(got, want) {
				t.Errorf("streamed by %d: %v", limit, got)
			}
		}
	})
}

func TestStreamEndsAtItsFirstError(t *testing.T) {
	w := setup(t, bundled)
	w.put(t, w.at, 1, 1, "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var seen []error
	for _, err := range w.Stream(ctx, Chunk{Scope: w.at, Limit: 1}) {
		seen = append(seen, err)
		cancel()
	}
	if len(seen) != 2 || seen[0] != nil || !errors.Is(seen[1], context.Canceled) {
		t.Errorf("got %v", seen)
	}
}

func TestImageOfContent(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		good := w.put(t, w.at, 1, 1, "good")
		forged := w.put(t, w.at, 2, 1, "forged")
		w.set(t, key(2), w.table.ContentHash+" = '\\x"+strings.Repeat("ab", 32)+"'")
		null := evidence.Row{Key: key(3), Revision: 1, Hash: hashOf(t, "null"), Deleted: true}
		w.putRow(t, w.at, null, "{}")
		for _, column := range w.table.ContentTargets {
			w.set(t, key(3), column+" = NULL")
		}
		got, err := w.Image(t.Context(), Chunk{Scope: w.at, Limit: 10, Content: true}, nil)
		if want := []evidence.Row{good, forged, null}; err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v\nwant %v", got, err, want)
		}
	})
}

func TestImageOfContentWithoutAHash(t *testing.T) {
	w := setup(t, bundled)
	w.put(t, w.at, 1, 1, "deep")
	w.set(t, key(1), `"values" = (repeat('[', 100) || repeat(']', 100))::jsonb`)
	got, err := w.Image(t.Context(), Chunk{Scope: w.at, Limit: 10, Content: true}, nil)
	if err != nil || len(got) != 1 || !got[0].Hash.IsZero() {
		t.Errorf("got %v, %v", got, err)
	}
	if row, _ := w.row(t, 1); !row.Content.IsZero() || row.Hash.IsZero() {
		t.Errorf("got %v", row)
	}
}

func TestImageOfIncompleteRows(t *testing.T) {
	w := setup(t, textKey)
	w.put(t, w.at, 1, 1, "a")
	w.set(t, key(1), "rev = NULL, hash = NULL, gone = NULL")
	w.put(t, w.at, 2, 1, "a")
	w.set(t, key(2), `hash = '\x0102'`)
	want := []evidence.Row{{Key: key(1)}, {Key: key(2), Revision: 1}}
	if got := w.image(t); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	got := w.repair(t, Item{Key: key(1), Expected: Live(want[0]), Snapshot: snapshot(t, 1, 4, body("b"))},
		Item{Key: key(2), Expected: Live(want[1]), Snapshot: snapshot(t, 2, 4, body("b"))})
	if !slices.Equal(got, keys(1, 2)) {
		t.Errorf("repaired %x", got)
	}
}

func TestImageRefusesAForeignSpelling(t *testing.T) {
	w := setup(t, textKey)
	w.put(t, w.at, 1, 1, "a")
	w.set(t, key(1), `id = '0000000000000000000000000000000A'`)
	if _, err := w.Image(t.Context(), Chunk{Scope: w.at, Limit: 10}, nil); !errors.Is(err, protocol.ErrKey) {
		t.Errorf("got %v", err)
	}
}

func TestImageRefusesTheTextProtocol(t *testing.T) {
	w := setup(t, bundled)
	w.put(t, w.at, 1, 1, "a")
	config := w.pool.Config()
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := New(pool, pool, w.table).Image(t.Context(), Chunk{Scope: w.at, Limit: 10}, nil); err == nil {
		t.Error("rows in text format were read as if binary")
	}
}

func TestRows(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		live := w.put(t, w.at, 1, 2, "live")
		w.put(t, w.at, 2, 3, "retired")
		w.set(t, key(2), w.table.Retired+" = now()")
		w.put(t, w.other, 3, 4, "other")
		w.put(t, Scope{2, w.at.CollectionID}, 4, 4, "other tenant")
		w.set(t, key(1), w.table.CreateTime+" = NULL")
		rows, err := w.Rows(t.Context(), 1, keys(1, 2, 3, 4, 5), true)
		if err != nil || len(rows) != 3 {
			t.Fatalf("got %v, %v", rows, err)
		}
		want := LocalRow{Row: live, CollectionID: w.at.CollectionID, Version: 1, Content: live.Hash}
		if rows[key(1)] != want {
			t.Errorf("got %+v\nwant %+v", rows[key(1)], want)
		}
		if r := rows[key(2)]; !r.Retired || !r.Created.Equal(january) {
			t.Errorf("got %+v", r)
		}
		if r := rows[key(3)]; r.CollectionID != w.other.CollectionID {
			t.Errorf("got %+v", r)
		}
		rows, err = w.Rows(t.Context(), 1, keys(1), false)
		if err != nil || rows[key(1)].Content != (canon.Hash{}) || rows[key(1)].Hash != live.Hash {
			t.Errorf("got %v, %v", rows, err)
		}
	})
}

func TestHolders(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		tenant2 := Scope{2, w.at.CollectionID}
		w.put(t, w.at, 1, 1, "own")
		w.put(t, w.other, 2, 1, "other collection")
		w.put(t, w.other, 3, 1, "other collection, retired")
		w.set(t, key(3), w.table.Retired+" = now()")
		w.put(t, tenant2, 4, 1, "other tenant")
		w.put(t, tenant2, 5, 1, "other tenant, retired")
		w.set(t, key(5), w.table.Retired+" = now()")
		w.put(t, w.other, 6, 1, "both")
		w.put(t, tenant2, 6, 1, "both")
		got, err := w.Holders(t.Context(), w.at, keys(1, 2, 3, 4, 5, 6, 7))
		if err != nil || len(got) != 4 {
			t.Fatalf("got %v, %v", got, err)
		}
		for n, want := range map[uint64]Holder{
			2: {key(2), 1, w.other.CollectionID, false},
			3: {key(3), 1, w.other.CollectionID, true},
			4: {key(4), 2, w.at.CollectionID, false},
			6: {key(6), 1, w.other.CollectionID, false},
		} {
			if got[key(n)] != want {
				t.Errorf("key %d: got %v, want %v", n, got[key(n)], want)
			}
		}
	})
}

// The image must come from the index alone, whichever plan PostgreSQL keeps.
func TestImageIsReadFromTheIndexAlone(t *testing.T) {
	w := setup(t, bundled)
	fill(t, w, 20_000)
	after, upTo := key(5_000), key(6_000)
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		for name, c := range map[string]Chunk{
			"open":    {Scope: w.at, Limit: 4096},
			"after":   {Scope: w.at, Limit: 4096, After: &after},
			"bounded": {Scope: w.at, Limit: 4096, After: &after, UpTo: &upTo},
		} {
			t.Run(mode+"/"+name, func(t *testing.T) {
				sql, args := w.imageSQL(c)
				var plan string
				err := pg.InTx(t.Context(), w.pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(t.Context(), "SET LOCAL plan_cache_mode = "+mode); err != nil {
						return err
					}
					rows, err := tx.Query(t.Context(), "EXPLAIN (COSTS OFF) "+sql, args...)
					if err != nil {
						return err
					}
					lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
					plan = strings.Join(lines, "\n")
					return err
				})
				if err != nil || !strings.Contains(plan, "Index Only Scan using answer_projection_image") || strings.Contains(plan, "Sort") {
					t.Errorf("%v\n%s", err, plan)
				}
			})
		}
	}
}
