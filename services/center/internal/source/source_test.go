package source_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/source"
)

func TestRead(t *testing.T) {
	t.Run("yields keys in byte order, whatever the column's collation says", func(t *testing.T) {
		w := setup(t)
		for _, k := range []string{"b", "0", "a9", "9", "aa", "f"} {
			w.item(key(k), 1)
		}
		keys, _, err := w.read()
		if want := []string{key("0"), key("9"), key("a9"), key("aa"), key("b"), key("f")}; err != nil || !slices.Equal(keys, want) {
			t.Errorf("%v, %v", keys, err)
		}
	})
	t.Run("reads NULL numbers as 0 and NULL deleted as false", func(t *testing.T) {
		w := setup(t)
		w.item(key("1"), nil)
		w.item(key("2"), -3)
		_, rows, err := w.read()
		if err != nil || len(rows) != 2 {
			t.Fatal(len(rows), err)
		}
		for _, r := range rows {
			if r.Revision != 0 || r.Deleted || r.SchemaVersion != 0 || r.Sequence != 0 || string(r.Content) != `{"tags": null, "price": 1.50, "title": "it"}` {
				t.Errorf("row %+v %s", r, r.Content)
			}
		}
	})
	t.Run("is one snapshot, and says when it began", func(t *testing.T) {
		w := setup(t)
		w.item(key("1"), 1)
		w.item(key("2"), 1)
		before := time.Now().Add(-time.Second)
		p, err := w.src.Begin(t.Context(), w.rng)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		if window := p.WindowStart(); window.Before(before) || window.After(time.Now().Add(time.Second)) {
			t.Errorf("window %s", window)
		}
		name, err := p.Export(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.item(key("3"), 1)
		w.exec(`DELETE FROM item WHERE "Key" = $1`, key("2"))
		joined, err := p.Join(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer joined.Leave(t.Context())
		plan, err := p.Plan(t.Context(), 10, 10)
		if err != nil || plan.Rows != 2 {
			t.Errorf("planned %+v, %v", plan, err)
		}
		for name, reader := range map[string]*source.Reader{"its own": p.Reader(), "one that joined": joined} {
			var seen []string
			err := reader.Read(t.Context(), source.Part{}, func(r *source.Row) error {
				seen = append(seen, protocol.FormatKey(r.Key))
				return nil
			})
			slices.Sort(seen)
			if err != nil || !slices.Equal(seen, []string{key("1"), key("2")}) {
				t.Errorf("%s reader saw %v, %v", name, seen, err)
			}
		}
	})
	t.Run("does not read what is left after the reader's error", func(t *testing.T) {
		w := setup(t)
		w.exec(`INSERT INTO item ("Key", tenant, shelf, title) SELECT md5(n::text), 7, $1::text::uuid, repeat('x', 1000000) FROM generate_series(1, 50) AS n`, shelf)
		enough := errors.New("enough")
		p, err := w.src.Begin(t.Context(), w.rng)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		if err := p.Reader().Read(t.Context(), source.Part{}, func(*source.Row) error { seen++; return enough }); !errors.Is(err, enough) || seen != 1 {
			t.Fatal(seen, err)
		}
		// A connection that was read to the end would still answer.
		if _, err := p.Export(t.Context()); err == nil {
			t.Error("50 MB were read for the first row of them")
		}
		p.Close(t.Context())
	})
	t.Run("stops at the reader's error and gives a whole connection back", func(t *testing.T) {
		w := setup(t)
		w.item(key("1"), 1)
		enough := errors.New("enough")
		for range 20 {
			p, err := w.src.Begin(t.Context(), w.rng)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Reader().Read(t.Context(), source.Part{}, func(*source.Row) error { return enough }); !errors.Is(err, enough) {
				t.Fatal(err)
			}
			p.Close(t.Context())
		}
		if keys, _, err := w.read(); err != nil || len(keys) != 1 {
			t.Error(keys, err)
		}
	})
	t.Run("refuses a key twice and a key in another spelling", func(t *testing.T) {
		for _, second := range []string{key("1"), key("1")[:31], key("a")[:31] + "G", "ABCDEF00000000000000000000000000", ""} {
			w := setup(t)
			w.item(key("1"), 1)
			w.item(second, 1)
			if _, _, err := w.read(); fault.ReasonOf(err) != fault.OrderViolation {
				t.Errorf("%q: %v", second, err)
			}
		}
		w := setup(t)
		w.exec(`INSERT INTO item ("Key", tenant, shelf) VALUES (NULL, 7, $1::text::uuid)`, shelf)
		if _, _, err := w.read(); fault.ReasonOf(err) != fault.OrderViolation {
			t.Errorf("NULL: %v", err)
		}
	})
	t.Run("of one record reads that one", func(t *testing.T) {
		w := setup(t)
		w.item(key("1"), 1)
		w.item(key("2"), 1)
		raw, err := protocol.ParseKey(key("2"))
		if err != nil {
			t.Fatal(err)
		}
		w.rng.Key = raw
		if keys, _, err := w.read(); err != nil || !slices.Equal(keys, []string{key("2")}) {
			t.Error(keys, err)
		}
		if n, err := w.src.Count(t.Context(), w.rng, 10); n != 1 || err != nil {
			t.Error(n, err)
		}
	})
}

func TestWhatIsTooLongStaysWhereItIs(t *testing.T) {
	w := setup(t)
	w.exec(`INSERT INTO item ("Key", tenant, shelf, title) VALUES ($1, 7, $2::text::uuid, repeat('x', 8388608))`, key("1"), shelf)
	w.item(key("2"), 1)
	_, rows, err := w.read()
	if err != nil || len(rows) != 2 || string(rows[0].Content) != "!" || len(rows[1].Content) < 20 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}
