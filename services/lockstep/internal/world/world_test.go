package world

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/protocol"
)

func TestExpect(t *testing.T) {
	every, mended := Forms()[0].Damage, Forms()[1].Damage
	for _, c := range []struct {
		name   string
		damage Damage
		round  int
		want   Expected
	}{
		{"every class, first round", every, 1, Expected{
			State: protocol.Partial,
			Found: map[protocol.Class]int{
				protocol.Missing: 12, protocol.Stale: 16, protocol.HashConflict: 9, protocol.Tombstone: 7,
				protocol.LocalAhead: 5, protocol.ExtraRow: 9, protocol.RevisionZero: 4,
			},
			Repaired: 43, Retired: 6, Quarantined: 1, ReportOnly: 12, Fetched: 58,
		}},
		{"every class, second round", every, 2, Expected{
			State: protocol.Partial,
			Found: map[protocol.Class]int{
				protocol.Missing: 0, protocol.Stale: 1, protocol.HashConflict: 0, protocol.Tombstone: 0,
				protocol.LocalAhead: 5, protocol.ExtraRow: 3, protocol.RevisionZero: 4,
			},
			Quarantined: 1, ReportOnly: 12, Fetched: 9,
		}},
		{"mended, first round", mended, 1, Expected{
			State: protocol.Completed,
			Found: map[protocol.Class]int{
				protocol.Missing: 10, protocol.Stale: 8, protocol.HashConflict: 6, protocol.Tombstone: 4,
				protocol.LocalAhead: 0, protocol.ExtraRow: 5, protocol.RevisionZero: 0,
			},
			Repaired: 28, Retired: 5, Fetched: 33,
		}},
		{"mended, second round", mended, 2, Expected{
			State: protocol.Completed,
			Found: map[protocol.Class]int{
				protocol.Missing: 0, protocol.Stale: 0, protocol.HashConflict: 0, protocol.Tombstone: 0,
				protocol.LocalAhead: 0, protocol.ExtraRow: 0, protocol.RevisionZero: 0,
			},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.damage.Expect(c.round); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestForms(t *testing.T) {
	partial := 0
	for _, form := range Forms() {
		if !form.Damage.Mended() {
			partial++
		}
		if extras := form.Damage.ExtraOld + form.Damage.ExtraNew; extras > 20 {
			t.Errorf("%s: %d extras would ask for an operator", form.Collection, extras)
		}
	}
	if partial != 1 {
		t.Errorf("%d forms end PARTIAL, want 1", partial)
	}
}

func TestWorldIsTheSameEveryTime(t *testing.T) {
	a, b := world(t, MinRows), world(t, MinRows)
	first, second := collect(a), collect(b)
	if !reflect.DeepEqual(first, second) {
		t.Error("two worlds of one seed differ")
	}
	if len(first) != MinRows {
		t.Errorf("%d answers, want %d", len(first), MinRows)
	}
}

func TestRowsAreSharedOut(t *testing.T) {
	count := map[string]int{}
	for a := range world(t, 2003).Answers() {
		count[a.Collection]++
	}
	want := map[string]int{"course-feedback": 501, "enrolment": 501, "health-check": 501, "parents-survey": 500}
	if !reflect.DeepEqual(count, want) {
		t.Errorf("got %v, want %v", count, want)
	}
}

// The changes are applied here the dumb way, and the differences counted by
// looking at both maps: they must be the ones that are expected.
func TestDamageGivesTheExpectedDifferences(t *testing.T) {
	for _, rows := range []int{MinRows, 7777} {
		w := world(t, rows)
		center, local := apply(t, w)
		found := map[string]map[protocol.Class]int{}
		for _, form := range Forms() {
			found[form.Collection] = map[protocol.Class]int{}
			for _, class := range Classes() {
				found[form.Collection][class] = 0
			}
		}
		for ref, a := range center {
			if class := classify(t, a, local[ref]); class != "" {
				found[a.Collection][class]++
			}
		}
		for ref, p := range local {
			if _, ok := center[ref]; !ok {
				found[p.Collection][protocol.ExtraRow]++
			}
		}
		for _, form := range Forms() {
			if want := form.Damage.Expect(1).Found; !reflect.DeepEqual(found[form.Collection], want) {
				t.Errorf("%d rows, %s: got %v, want %v", rows, form.Collection, found[form.Collection], want)
			}
		}
	}
}

func apply(t *testing.T, w *World) (map[Ref]Answer, map[Ref]*Projected) {
	t.Helper()
	center, local := map[Ref]Answer{}, map[Ref]*Projected{}
	for a := range w.Answers() {
		center[a.Ref()] = a
	}
	for p, err := range w.Projection() {
		if err != nil {
			t.Fatal(err)
		}
		local[p.Ref()] = &p
	}
	if len(center) != len(local) {
		t.Fatalf("%d answers, %d projected", len(center), len(local))
	}
	changes, err := w.Damage()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range changes.Center {
		center[a.Ref()] = a
	}
	for _, ref := range changes.Deleted {
		delete(local, ref)
	}
	for _, p := range append(changes.Updated, changes.Inserted...) {
		local[p.Ref()] = &p
	}
	return center, local
}

func classify(t *testing.T, a Answer, p *Projected) protocol.Class {
	t.Helper()
	hash, err := canon.Sum(a.Values)
	if err != nil {
		t.Fatal(err)
	}
	differs := p == nil || p.Revision != a.Revision || p.Hash != hash || p.Deleted != a.Deleted
	switch {
	case !differs:
		return ""
	case a.Revision == 0:
		return protocol.RevisionZero
	case p == nil:
		return protocol.Missing
	case p.Revision > a.Revision:
		return protocol.LocalAhead
	case p.Deleted != a.Deleted:
		return protocol.Tombstone
	case p.Revision < a.Revision:
		return protocol.Stale
	}
	return protocol.HashConflict
}

func TestContent(t *testing.T) {
	var total, rows int
	var all []byte
	for a := range world(t, MinRows).Answers() {
		if a.Values == nil {
			continue
		}
		if !json.Valid(a.Values) {
			t.Fatalf("not JSON: %s", a.Values)
		}
		total += len(a.Values)
		rows++
		all = append(all, a.Values...)
	}
	if mean := total / rows; mean < 340 || mean > 460 {
		t.Errorf("content has %d bytes on average, want about 380", mean)
	}
	for _, part := range []string{"é", "<", ">", "&", "9007199254740993", "null", `{"name"`} {
		if !bytes.Contains(all, []byte(part)) {
			t.Errorf("no answer has %q", part)
		}
	}
}

func TestTooLargeIsAboveTheHostsLimit(t *testing.T) {
	w := world(t, MinRows)
	changes, err := w.Damage()
	if err != nil {
		t.Fatal(err)
	}
	large := 0
	for _, a := range changes.Center {
		if len(a.Values) > 64<<10 {
			large++
		}
	}
	if large != 1 {
		t.Errorf("%d answers above 64 KiB, want 1", large)
	}
}

func TestRowsAreBounded(t *testing.T) {
	for _, rows := range []int{-1, 0, MinRows - 1, MaxRows + 1} {
		if _, err := New(rows, 1); err == nil {
			t.Errorf("%d rows are accepted", rows)
		}
	}
}

func world(t *testing.T, rows int) *World {
	t.Helper()
	w, err := New(rows, 7)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func collect(w *World) []Answer {
	var out []Answer
	for a := range w.Answers() {
		out = append(out, a)
	}
	return out
}
