package projection

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
)

func TestRepairInsertsWhatIsMissing(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		s := snapshot(t, 2, 5, body("new"))
		got := w.repair(t,
			Item{Key: key(2), Expected: Absent(), Snapshot: s},
			Item{Key: key(1), Expected: Absent(), Snapshot: snapshot(t, 1, 1, body("first"))})
		if !slices.Equal(got, keys(1, 2)) {
			t.Fatalf("wrote %x", got)
		}
		row, _ := w.row(t, 2)
		if row.Created.IsZero() {
			t.Error("the row has no create time")
		}
		row.Created = january
		want := LocalRow{
			Row:          evidence.Row{Key: key(2), Revision: 5, Hash: s.Hash},
			CollectionID: w.at.CollectionID, Version: 1, Created: january, Content: s.Hash,
		}
		if row != want {
			t.Errorf("got  %+v\nwant %+v", row, want)
		}
		if image := w.image(t); len(image) != 2 {
			t.Errorf("the image is %v", image)
		}
	})
}

func TestRepairChangesWhatIsAsExpected(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		old := w.put(t, w.at, 1, 2, "old")
		neighbour := w.put(t, w.at, 2, 2, "old")
		s := snapshot(t, 1, 5, body("new"))
		s.Deleted = true
		w.keepsExtensions(t, func() {
			if got := w.repair(t, Item{Key: key(1), Expected: Live(old), Snapshot: s}); !slices.Equal(got, keys(1)) {
				t.Fatalf("wrote %x", got)
			}
		})
		row, _ := w.row(t, 1)
		want := LocalRow{
			Row:          evidence.Row{Key: key(1), Revision: 5, Hash: s.Hash, Deleted: true},
			CollectionID: w.at.CollectionID, Version: 2, Created: january, Content: s.Hash,
		}
		if row != want {
			t.Errorf("got  %+v\nwant %+v", row, want)
		}
		if row, _ := w.row(t, 2); row.Row != neighbour || row.Version != 1 {
			t.Errorf("the neighbour is %+v", row)
		}
	})
}

func TestRepairWritesEvidence(t *testing.T) {
	w := setup(t, bundled)
	old := w.put(t, w.at, 1, 2, "old")
	w.set(t, key(1), `proof_id = 'earlier', conflict_detail = 'earlier'`)
	read := func() (version, sequence int64, event, proof, conflict string) {
		err := w.host.QueryRow(t.Context(), `SELECT form_version, seq_no, last_event_id, proof_id, conflict_detail FROM hall.answer_projection`).
			Scan(&version, &sequence, &event, &proof, &conflict)
		if err != nil {
			t.Fatal(err)
		}
		return version, sequence, event, proof, conflict
	}
	w.repair(t, Item{Key: key(1), Expected: Live(old), Snapshot: snapshot(t, 1, 3, body("new"))})
	if v, s, e, p, c := read(); v != 3 || s != 9 || e != "event-1" || p != "earlier" || c != "earlier" {
		t.Errorf("got %d %d %s %s %s", v, s, e, p, c)
	}
	row, _ := w.row(t, 1)
	w.repair(t, Item{Key: key(1), Expected: row.Expected(), Snapshot: snapshot(t, 1, 4, body("new")), ProofID: "proof-1"})
	if _, _, _, p, _ := read(); p != "proof-1" {
		t.Errorf("proof %s", p)
	}
}

func TestRepairLeavesWhatIsOtherwise(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		old := w.put(t, w.at, 1, 2, "old")
		gone := w.put(t, w.at, 2, 2, "old")
		w.set(t, key(2), w.table.Retired+" = now()")
		foreign := w.put(t, w.other, 3, 2, "old")
		w.put(t, Scope{2, w.at.CollectionID}, 4, 2, "old")
		with := func(row evidence.Row, change func(*evidence.Row)) Expected {
			change(&row)
			return Live(row)
		}
		read, _ := w.row(t, 1)
		read.Version++
		goneRead, _ := w.row(t, 2)
		goneRead.Revision++
		for name, c := range map[string]struct {
			n        uint64
			expected Expected
		}{
			"another revision":               {1, with(old, func(r *evidence.Row) { r.Revision++ })},
			"another hash":                   {1, with(old, func(r *evidence.Row) { r.Hash[0]++ })},
			"no hash expected":               {1, with(old, func(r *evidence.Row) { r.Hash = [32]byte{} })},
			"another deleted":                {1, with(old, func(r *evidence.Row) { r.Deleted = true })},
			"another version":                {1, read.Expected()},
			"live where absent is expected":  {1, Absent()},
			"retired where live is expected": {2, Live(gone)},
			"another retired triple":         {2, goneRead.Expected()},
			"another collection's live row":  {3, Live(foreign)},
			"another collection's key":       {3, Absent()},
			"another tenant's key":           {4, Absent()},
			"live where there is none":       {5, Live(evidence.Row{Key: key(5), Revision: 2})},
		} {
			t.Run(name, func(t *testing.T) {
				w.unchanged(t, func() {
					got := w.repair(t, Item{Key: key(c.n), Expected: c.expected, Snapshot: snapshot(t, c.n, 9, body("new"))})
					if got != nil {
						t.Errorf("wrote %x", got)
					}
				})
			})
		}
		t.Run("another collection's retired key", func(t *testing.T) {
			w.set(t, key(3), w.table.Retired+" = now()")
			w.unchanged(t, func() {
				if got := w.repair(t, Item{Key: key(3), Expected: Absent(), Snapshot: snapshot(t, 3, 9, body("new"))}); got != nil {
					t.Errorf("wrote %x", got)
				}
			})
		})
		t.Run("the others of the batch are written", func(t *testing.T) {
			got := w.repair(t,
				Item{Key: key(1), Expected: Absent(), Snapshot: snapshot(t, 1, 9, body("new"))},
				Item{Key: key(5), Expected: Absent(), Snapshot: snapshot(t, 5, 9, body("new"))})
			if !slices.Equal(got, keys(5)) {
				t.Errorf("wrote %x", got)
			}
		})
	})
}

func TestRepairRevivesARetiredRow(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		for name, expected := range map[string]func(*LocalRow) Expected{
			"expected absent":  func(*LocalRow) Expected { return Absent() },
			"expected retired": (*LocalRow).Expected,
		} {
			t.Run(name, func(t *testing.T) {
				n := uint64(len(name))
				w.put(t, w.at, n, 7, "old")
				w.set(t, key(n), w.table.Retired+" = now()")
				read, _ := w.row(t, n)
				s := snapshot(t, n, 3, body("back")) // a lower revision: the center was restored
				w.keepsExtensions(t, func() {
					if got := w.repair(t, Item{Key: key(n), Expected: expected(&read), Snapshot: s}); !slices.Equal(got, keys(n)) {
						t.Fatalf("wrote %x", got)
					}
				})
				row, _ := w.row(t, n)
				if row.Retired || row.Revision != 3 || row.Content != s.Hash || row.Version != 2 || !row.Created.Equal(january) {
					t.Errorf("got %+v", row)
				}
			})
		}
	})
}

func TestRepairInsertsBesideAnotherTenantsRetiredRow(t *testing.T) {
	w := setup(t, bundled)
	w.put(t, Scope{2, w.at.CollectionID}, 1, 1, "old")
	w.set(t, key(1), "retired_at = now()")
	if got := w.repair(t, Item{Key: key(1), Expected: Absent(), Snapshot: snapshot(t, 1, 1, body("new"))}); !slices.Equal(got, keys(1)) {
		t.Errorf("wrote %x", got)
	}
}

func TestRepairStoresSQLNull(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		old := w.put(t, w.at, 1, 2, "old")
		s := snapshot(t, 1, 3, "null")
		s.Content, s.Deleted = nil, true
		if got := w.repair(t, Item{Key: key(1), Expected: Live(old), Snapshot: s}); !slices.Equal(got, keys(1)) {
			t.Fatalf("wrote %x", got)
		}
		if row, _ := w.row(t, 1); row.Content != s.Hash || row.Hash != s.Hash {
			t.Errorf("got %+v", row)
		}
		for _, column := range w.table.ContentTargets {
			for k, text := range w.dump(t, "t."+column+"::text") {
				if text != "NULL" {
					t.Errorf("row %s holds %s", k, text)
				}
			}
		}
	})
}

// A stored hash that lies is compared by content; the condition is still the stored one.
func TestRepairOfForgedContent(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		w.put(t, w.at, 1, 2, "forged")
		s := snapshot(t, 1, 2, body("true"))
		w.set(t, key(1), w.table.ContentHash+" = '\\x"+s.Hash.String()+"'")
		row, _ := w.row(t, 1)
		if row.Hash != s.Hash || row.Content != hashOf(t, body("forged")) {
			t.Fatalf("got %+v", row)
		}
		if got := w.repair(t, Item{Key: key(1), Expected: row.Expected(), Snapshot: s}); !slices.Equal(got, keys(1)) {
			t.Fatalf("wrote %x", got)
		}
		if row, _ := w.row(t, 1); row.Content != s.Hash {
			t.Errorf("got %+v", row)
		}
	})
}

func TestRepairOfNothingAndOfTooMuch(t *testing.T) {
	w := setup(t, bundled)
	if got := w.repair(t); got != nil {
		t.Errorf("wrote %x", got)
	}
	if _, err := w.tryRepair(t.Context(), make([]Item, MaxBatch+1)...); err == nil {
		t.Error("a batch above the bound was taken")
	}
}

func TestRepairFaults(t *testing.T) {
	old := evidence.Row{Key: key(1), Revision: 2}
	standard := func(t *testing.T, content string) []Item {
		s := snapshot(t, 1, 3, content)
		return []Item{{Key: key(1), Expected: Live(old), Snapshot: s}, {Key: key(2), Expected: Absent(), Snapshot: snapshot(t, 2, 3, body("new"))}}
	}
	for _, c := range []struct {
		name    string
		host    string
		content string
		want    Fault
		code    string
	}{
		{"too large for the host", "", body(strings.Repeat("x", 70_000)), RowsOwn, "23514"},
		{"a character PostgreSQL has not", "", `{"a":"\u0000"}`, RowsOwn, "22P05"},
		{"a unique rule of the host's", "CREATE UNIQUE INDEX ON hall.answer_projection (seq_no)", body("a"), RowsOwn, "23505"},
		{"a foreign key", "CREATE TABLE hall.form (id text PRIMARY KEY); ALTER TABLE hall.answer_projection ADD FOREIGN KEY (last_event_id) REFERENCES hall.form", body("a"), RowsOwn, "23503"},
		{"too long for an index", `CREATE INDEX ON hall.answer_projection (("values"->>'b'))`, longText(), RowsOwn, "54000"},
		{"a trigger that refuses", `CREATE FUNCTION hall.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
			CREATE TRIGGER refuse BEFORE UPDATE ON hall.answer_projection FOR EACH ROW EXECUTE FUNCTION hall.refuse()`, body("a"), RowsOwn, "P0001"},
		{"a column that went", "ALTER TABLE hall.answer_projection DROP COLUMN proof_id", body("a"), Misconfigured, "42703"},
		{"a key that is not unique", "ALTER TABLE hall.answer_projection DROP CONSTRAINT answer_projection_pkey", body("a"), Misconfigured, "42P10"},
		{"no privilege", "CREATE ROLE projection_reader; GRANT USAGE ON SCHEMA hall TO projection_reader", body("a"), Misconfigured, "42501"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := setup(t, bundled)
			w.putRow(t, w.at, old, body("old"))
			if c.host != "" {
				w.exec(t, c.host)
			}
			if c.code == "42501" {
				w.session(t, "role", "projection_reader")
			}
			w.unchanged(t, func() {
				_, err := w.tryRepair(t.Context(), standard(t, c.content)...)
				if got := FaultOf(err); got != c.want || pg.Code(err) != c.code {
					t.Errorf("got %d for %v, want %d with %s", got, err, c.want, c.code)
				}
			})
		})
	}
}

func TestRepairOfContentTheColumnsCannotHold(t *testing.T) {
	w := setup(t, columns)
	old := w.put(t, w.at, 1, 2, "old")
	for name, content := range map[string]string{
		"a field without a column": `{"the \"title\"": "a", "score": 1, "more": true}`,
		"a field that is absent":   `{"score": 1}`,
		"a value of another kind":  `{"the \"title\"": 1, "score": 1}`,
	} {
		t.Run(name, func(t *testing.T) {
			w.unchanged(t, func() {
				_, err := w.tryRepair(t.Context(), Item{Key: key(1), Expected: Live(old), Snapshot: snapshot(t, 1, 3, content)})
				if !errors.Is(err, ErrUnrepresentable) || FaultOf(err) != RowsOwn || !strings.Contains(err.Error(), protocol.FormatKey(key(1))) {
					t.Errorf("got %v", err)
				}
				_, err = w.tryRepair(t.Context(), Item{Key: key(2), Expected: Absent(), Snapshot: snapshot(t, 2, 3, content)})
				if !errors.Is(err, ErrUnrepresentable) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
	t.Run("a number that is none", func(t *testing.T) {
		_, err := w.tryRepair(t.Context(), Item{Key: key(1), Expected: Live(old), Snapshot: snapshot(t, 1, 3, `{"the \"title\"": "a", "score": "x"}`)})
		if FaultOf(err) != RowsOwn || pg.Code(err) != "22P02" {
			t.Errorf("got %v", err)
		}
	})
}
