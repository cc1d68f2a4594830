package explain

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"

	"lockstep.dev/pkg/canon"
)

// contents compares two canonical forms.
func contents(center, local string) Finding {
	offset, path, equal := canon.FirstDifference([]byte(center), []byte(local))
	if equal {
		return Finding{Equal: true}
	}
	a, aErr := decode(center)
	b, bErr := decode(local)
	f := Finding{Path: path, Offset: offset, Cause: Text}
	if aErr != nil || bErr != nil {
		return f // not canonical forms; the place is all there is to say
	}
	d := first(a, b)
	f.Cause, f.Center, f.Consumer = d.cause, short(d.a), short(d.b)
	f.Advice = advice[d.cause]
	if d.name != "" {
		f.Advice = fmt.Sprintf("member %q: %s", d.name, f.Advice)
	}
	return f
}

var advice = map[Cause]string{
	MissingKey:     "an absent member, null and \"\" are three contents: which side drops or adds it?",
	Kind:           "the value was converted on its way, such as a number to a text",
	Precision:      "the number went through a binary float or a narrower column: carry it as an exact decimal",
	Number:         "same revision, another number: the value was changed without raising the revision",
	Case:           "the text was folded on its way, such as by a case-insensitive column",
	Normalisation:  "the text was put into another Unicode normal form: carry it byte by byte",
	Space:          "white space was trimmed or padded, such as by a char(n) column",
	Text:           "same revision, another text: the value was changed without raising the revision",
	Order:          "an array's elements were reordered; arrays are compared in order",
	ElementMissing: "elements of an array were dropped or added",
}

func decode(text string) (v any, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

// difference is the first place where two values differ, in canonical order.
type difference struct {
	cause Cause
	name  string // of the member that one side lacks
	a, b  any
}

// absent stands for the value of a member that is not there.
type absent struct{}

func first(a, b any) difference {
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			return firstMember(x, y)
		}
	case []any:
		if y, ok := b.([]any); ok {
			return firstElement(x, y)
		}
	case json.Number:
		if y, ok := b.(json.Number); ok {
			return difference{cause: numbers(string(x), string(y)), a: a, b: b}
		}
	case string:
		if y, ok := b.(string); ok {
			return difference{cause: texts(x, y), a: a, b: b}
		}
	}
	return difference{cause: Kind, a: a, b: b}
}

func firstMember(a, b map[string]any) difference {
	names := slices.Concat(slices.Collect(maps.Keys(a)), slices.Collect(maps.Keys(b)))
	slices.Sort(names) // by bytes, as the canonical form does
	for _, name := range slices.Compact(names) {
		x, inA := a[name]
		y, inB := b[name]
		switch {
		case !inA:
			return difference{cause: MissingKey, name: name, a: absent{}, b: y}
		case !inB:
			return difference{cause: MissingKey, name: name, a: x, b: absent{}}
		case !same(x, y):
			return first(x, y)
		}
	}
	return difference{cause: Text, a: a, b: b}
}

func firstElement(a, b []any) difference {
	if len(a) != len(b) {
		return difference{cause: ElementMissing, a: a, b: b}
	}
	if slices.Equal(sorted(a), sorted(b)) {
		return difference{cause: Order, a: a, b: b}
	}
	for i := range a {
		if !same(a[i], b[i]) {
			return first(a[i], b[i])
		}
	}
	return difference{cause: Text, a: a, b: b}
}

func sorted(list []any) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = text(v)
	}
	slices.Sort(out)
	return out
}

func same(a, b any) bool { return text(a) == text(b) }

func text(v any) string {
	if v == (absent{}) {
		return "absent"
	}
	out, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(out)
}

// numbers: a binary float, or a value rounded to fewer digits, has lost precision.
func numbers(a, b string) Cause {
	x, okX := new(big.Float).SetPrec(0).SetString(a)
	y, okY := new(big.Float).SetPrec(0).SetString(b)
	if !okX || !okY {
		return Number
	}
	f, _ := x.Float64()
	g, _ := y.Float64()
	rx, _ := new(big.Rat).SetString(a)
	ry, _ := new(big.Rat).SetString(b)
	if f == g || rx == nil || ry == nil || rounded(rx, ry) || rounded(ry, rx) {
		return Precision
	}
	return Number
}

// rounded says whether short is long with fewer digits behind the point.
func rounded(long, short *big.Rat) bool {
	const most = 12
	for digits := range most {
		if r, ok := new(big.Rat).SetString(long.FloatString(digits)); ok && r.Cmp(short) == 0 {
			return digits > 0 || !long.IsInt()
		}
	}
	return false
}

func texts(a, b string) Cause {
	switch {
	case norm.NFC.String(a) == norm.NFC.String(b), norm.NFKC.String(a) == norm.NFKC.String(b):
		return Normalisation
	case strings.EqualFold(a, b):
		return Case
	case strings.TrimSpace(a) == strings.TrimSpace(b):
		return Space
	}
	return Text
}

// most of a value is not shown: this is for finding a place, not for reading a record.
const most = 80

func short(v any) string {
	out := text(v)
	if len(out) > most {
		return strings.ToValidUTF8(out[:most], "") + "…"
	}
	return out
}
