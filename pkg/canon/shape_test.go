package canon_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"lockstep.dev/pkg/canon"
)

// A Hasher remembers what members objects had. Whatever it has seen, a row must give what it gives
// a Hasher that has seen nothing, and what the twin gives.

func hashesAsEver(t rapid.TB, h *canon.Hasher, row []byte) {
	t.Helper()
	got, err := h.Sum(row)
	want, wantErr := new(canon.Hasher).Sum(row)
	if got != want || fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Fatalf("%q gives %s, %v, want %s, %v", row, got, err, want, wantErr)
	}
	if err != nil || len(row) == 0 {
		return
	}
	form, err := twin(row)
	if got != sha256.Sum256([]byte(canon.ID+"\n"+form)) || err != nil {
		t.Fatalf("%q gives %s, which is not the hash of the twin's form\n%q, %v", row, got, form, err)
	}
}

// pairs are rows that a row before could hide something of.
var pairs = []struct{ before, row string }{
	{`{"b": 1, "a": 2}`, `{"b": 1, "a": 2, "b": 3}`},                  // a name again, behind the shape
	{`{"b": 1, "a": 2}`, `{"b": 1, "b": 2}`},                          // in the place of another
	{`{"b": 1, "a": 2}`, `{"b": 1, "\u0062": 2}`},                     // spelled otherwise
	{`{"b": 1, "a": 2}`, `{"\u0062": 1, "b": 2, "a": 3}`},             // spelled otherwise and first
	{`{"b": 1, "a": 2}`, `{"c": 0, "b": 1, "a": 2, "c": 3}`},          // a new name twice
	{`{"b": 1, "a": 2}`, `{"a": 1, "b": 2}`},                          // another order
	{`{"b": 1, "a": 2}`, `{"a": 1}`},                                  // the first is missing
	{`{"b": 1, "a": 2}`, `{"b": 1}`},                                  // the last is missing
	{`{"c": 1, "b": 2, "a": 3}`, `{"c": 1, "a": 3}`},                  // one between is missing
	{`{"c": 1, "b": 2, "a": 3}`, `{"c": 1, "a": 3, "b": 2}`},          // and comes too late
	{`{"c": 1, "b": 2, "a": 3}`, `{"c": 1, "a": 3, "c": 2}`},          // or another comes again
	{`{"b": 1, "a": 2}`, `{}`},                                        // all are missing
	{`{"b": 1, "a": 2}`, `{"b": 1, "a": 2,}`},                         // a comma too many
	{`{"b": 1, "a": 2}`, `{"b": 1, "a": 2, }`},                        //
	{`{"b": 1, "a": 2}`, `{"b": 1, "a": 2, "`},                        // cut off
	{`{"b": 1, "a": 2}`, `{"b": 1, "a":`},                             //
	{`{"b": 1, "a": 2}`, `{"b": 1, "a" 2}`},                           // no colon
	{`{"b": 1, "a": 2}`, `{"b" : 1 ,"a":2}`},                          // other white space
	{`{"b": 1, "a": 2}`, "{\"b\":\n1, \t\"a\":\r2 } "},                //
	{`{"b": 1, "a": 2}`, `{"b": -0, "a": "\u00e9"}`},                  // values spelled anew
	{`{"b": 1, "a": 2}`, `{"b": "\ud800", "a": 2}`},                   // values refused
	{`{"b": 1, "a": 2}`, "{\"b\": \"\xff\", \"a\": 2}"},               //
	{`{"b": 1, "a": 2}`, `{"b": {"b": 1, "a": 2}, "a": [{"b": 1}]}`},  // values that are objects
	{`{"b": 1, "b\"": 2}`, `{"b": 1, "b\"": 2}`},                      // names with escapes
	{`{"\u0062": 1, "a": 2}`, `{"\u0062": 1, "a": 2}`},                // and names without need of them
	{`{"": 1, " ": 2}`, `{"": 1, " ": 2, "": 3}`},                     // the empty name
	{`{"name": 1, "nam": 2}`, `{"nam": 1, "name": 2}`},                // names that begin alike
	{`{"😀": 1, "～": 2}`, `{"😀": 3, "～": 4}`},                          // UTF-16 sorts them the other way
	{`{"～": 1, "😀": 2}`, `{"😀": 3, "～": 4}`},                          //
	{`[{"b": 1, "a": 2}]`, `[{"b": 1, "a": 2}, {"b": 1, "b": 2}]`},    // within one row
	{`{"o": {"b": 1, "a": 2}}`, `{"o": {"b": 1, "a": 2, "b": 3}}`},    // within an object
	{`{"o": {"b": 1, "a": 2}}`, `{"o": [[{"b": 1}, {"a": 1}], "b"]}`}, // or arrays
	{`{"o": {"b": 1}, "p": 2}`, `{"o": {"c": 1, "c": 2}, "q": 3}`},    // both refused: the inner one counts
}

func TestARowHidesNothingOfTheNext(t *testing.T) {
	for _, p := range pairs {
		var h canon.Hasher
		for range 100 { // longer than a Hasher may give up remembering for
			hashesAsEver(t, &h, []byte(p.before))
			hashesAsEver(t, &h, []byte(p.row))
			hashesAsEver(t, &h, []byte(p.row))
		}
	}
}

func TestRowsBeyondWhatIsRemembered(t *testing.T) {
	var h canon.Hasher
	for _, members := range []int{63, 64, 65, 200} {
		for _, padding := range []int{0, 30, 3000} {
			for _, value := range []string{`1.0`, `{"b": 1, "a": [{"d": 1.0, "c": 2}]}`} {
				var row strings.Builder
				for i := range members {
					fmt.Fprintf(&row, `, "%d%s": %s`, members-i, strings.Repeat("x", padding), value)
				}
				text := []byte("{" + row.String()[2:] + "}")
				for range 3 {
					hashesAsEver(t, &h, text)
				}
				twice := append(text[:len(text)-1:len(text)-1], row.String()+"}"...)
				hashesAsEver(t, &h, twice)
			}
		}
	}
}

func TestRowsThatResembleOneAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h canon.Hasher
		like := drawLayout(t, 3)
		for range rapid.IntRange(2, 12).Draw(t, "rows") {
			hashesAsEver(t, &h, []byte(like.row(t)))
		}
	})
}

func FuzzAfterAnotherRow(f *testing.F) {
	for _, p := range pairs {
		f.Add([]byte(p.before), []byte(p.row))
	}
	f.Add([]byte(record), []byte(strings.ReplaceAll(record, "street", "zip")))
	f.Fuzz(func(t *testing.T, before, row []byte) {
		var h canon.Hasher
		hashesAsEver(t, &h, before)
		hashesAsEver(t, &h, row)
		hashesAsEver(t, &h, row)
		hashesAsEver(t, &h, before)
	})
}

// layout is what members the objects of a collection have; within is nil where a value is none.
type layout []struct {
	name   string
	within layout
}

func drawLayout(t *rapid.T, depth int) layout {
	like := make(layout, rapid.IntRange(1, 6).Draw(t, "members"))
	for i := range like {
		like[i].name = drawString(t)
		if depth > 1 && rapid.IntRange(0, 3).Draw(t, "within") == 0 {
			like[i].within = drawLayout(t, depth-1)
		}
	}
	return like
}

// row is an object of the layout, more often than not with something changed: a member that is
// missing, new, there twice or elsewhere.
func (l layout) row(t *rapid.T) string {
	l = slices.Clone(l)
	i, j := rapid.IntRange(0, len(l)-1).Draw(t, "one"), rapid.IntRange(0, len(l)-1).Draw(t, "other")
	switch rapid.IntRange(0, 9).Draw(t, "change") {
	case 0, 1:
		l = slices.Delete(l, i, i+1)
	case 2:
		l = slices.Insert(l, i, drawLayout(t, 1)[0])
	case 3:
		l = slices.Insert(l, i, l[j])
	case 4:
		l[i], l[j] = l[j], l[i]
	}
	comma := rapid.SampledFrom([]string{", ", ", ", ",", "\t,\n"}).Draw(t, "comma")
	colon := rapid.SampledFrom([]string{": ", ": ", ":", " :\n"}).Draw(t, "colon")
	members := make([]string, len(l))
	for k, m := range l {
		var b strings.Builder
		if rapid.IntRange(0, 9).Draw(t, "respell") == 0 {
			spellString(t, &b, m.name)
		} else {
			twinString(&b, m.name)
		}
		b.WriteString(colon)
		switch {
		case m.within == nil:
			spellValue(t, &b, drawValue(t, 0))
		case rapid.Bool().Draw(t, "list"):
			b.WriteString("[" + m.within.row(t) + comma + m.within.row(t) + "]")
		default:
			b.WriteString(m.within.row(t))
		}
		members[k] = b.String()
	}
	return "{" + strings.Join(members, comma) + "}"
}
