package canon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"lockstep.dev/pkg/canon"
)

func seed(f *testing.F) {
	f.Helper()
	f.Add([]byte(record))
	for _, v := range vectors(f) {
		if text := v.bytes(f); len(text) < 1000 {
			f.Add(text)
		}
	}
}

// FuzzAppend holds every accepted text against the twin and against a hostile respelling of itself,
// and every refused one against the standard library: what JSON allows is only refused for a reason
// that this form adds.
func FuzzAppend(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		form, err := canon.Append(nil, text)
		if err != nil {
			refusedRightly(t, text, err)
			return
		}
		if !json.Valid(text) || !utf8.Valid(text) {
			t.Fatalf("accepted %q", text)
		}
		want, err := twin(text)
		if err != nil || want != string(form) {
			t.Fatalf("%q gives\n%q, the twin\n%q, %v", text, form, want, err)
		}
		again, err := canon.Append(nil, form)
		if err != nil || string(again) != string(form) || !json.Valid(form) {
			t.Fatalf("the form\n%q is not its own form\n%q, %v", form, again, err)
		}
		v, err := tree(text)
		if err != nil {
			t.Fatal(err)
		}
		other := respell(v)
		if len(other) > canon.MaxBytes {
			return
		}
		if a, b := sum(t, string(text)), sum(t, other); a != b {
			t.Fatalf("%q and %q hash apart", text, other)
		}
	})
}

func refusedRightly(t *testing.T, text []byte, err error) {
	t.Helper()
	var refusal *canon.Error
	if !errors.As(err, &refusal) || refusal.Offset < 0 || refusal.Offset > len(text) {
		t.Fatalf("%q: %v", text, err)
	}
	if !json.Valid(text) || !utf8.Valid(text) {
		return
	}
	added := []string{"twice", "surrogate", "range", "deeper", "more than", "longer"}
	if !slices.ContainsFunc(added, func(word string) bool { return strings.Contains(refusal.Reason, word) }) {
		t.Fatalf("%q is JSON, but %v", text, err)
	}
	if _, err := tree(text); strings.Contains(refusal.Reason, "twice") && !errors.Is(err, errTwice) {
		t.Fatalf("%q has no name twice", text)
	}
}

// respell writes a value as differently as it can: members backwards, white space everywhere, every
// character as an escape, every number with a zero and an exponent more.
func respell(v any) string {
	switch v := v.(type) {
	case string:
		var b strings.Builder
		for _, unit := range utf16.Encode([]rune(v)) {
			fmt.Fprintf(&b, `\u%04X`, unit)
		}
		return ` "` + b.String() + `" `
	case json.Number:
		return respellNumber(v.String())
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = respell(v[i])
		}
		return "\n[ " + strings.Join(parts, " , ") + " ]\t"
	case object:
		var parts []string
		for _, name := range slices.Backward(slices.Sorted(maps.Keys(v))) {
			parts = append(parts, respell(name)+":"+respell(v[name]))
		}
		return "\r{ " + strings.Join(parts, " , ") + " }\n"
	}
	return fmt.Sprintf(" %s ", map[any]string{nil: "null", true: "true", false: "false"}[v])
}

func respellNumber(s string) string {
	if strings.ContainsAny(s, "eE") {
		return s
	}
	if !strings.Contains(s, ".") {
		s += "."
	}
	return s + "0E+00"
}
