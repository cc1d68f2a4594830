package canon_test

import (
	"encoding/json"
	"strconv"
	"testing"

	"github.com/gowebpki/jcs"
	"pgregory.net/rapid"

	"lockstep.dev/pkg/canon"
)

// RFC 8785 and this form are the same where a number survives a double and names sort alike in
// UTF-8 and UTF-16.

func TestOnCommonGroundTheFormIsRFC8785(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		obj := object{}
		for range rapid.IntRange(0, 12).Draw(t, "members") {
			name := rapid.StringOf(rapid.RuneFrom([]rune("\x00\n\"\\/ aAbB01é日\ud7ff"))).Draw(t, "name")
			f := rapid.Float64().Draw(t, "number")
			text, err := json.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			obj[name] = []any{json.Number(text), drawString(t)}
		}
		agree(t, []byte(respell(obj)))
	})
}

func FuzzAgainstJCS(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := tree(text)
		if err != nil || !common(v) {
			return
		}
		if _, err := canon.Append(nil, text); err != nil {
			return // what is refused is FuzzAppend's business
		}
		agree(t, text)
	})
}

func agree(t rapid.TB, text []byte) {
	want, err := jcs.Transform(text)
	if err != nil {
		t.Fatalf("RFC 8785 of %q: %v", text, err)
	}
	got, err := canon.Append(nil, text)
	if err != nil || string(got) != string(want) {
		t.Fatalf("%q gives\n%q, RFC 8785\n%q, %v", text, got, want, err)
	}
}

// common reports whether v is on the common ground.
func common(v any) bool {
	switch v := v.(type) {
	case json.Number:
		f, err := strconv.ParseFloat(v.String(), 64)
		return err == nil && twinNumber(strconv.FormatFloat(f, 'e', -1, 64)) == twinNumber(v.String())
	case []any:
		for _, e := range v {
			if !common(e) {
				return false
			}
		}
	case object:
		for name, e := range v {
			for _, r := range name {
				if r >= 0xd800 {
					return false
				}
			}
			if !common(e) {
				return false
			}
		}
	}
	return true
}

func TestWhereTheFormMustDifferFromRFC8785(t *testing.T) {
	for name, text := range map[string]string{
		"digits a double loses":       `9007199254740993`,
		"a number beyond a double":    `1e-400`,
		"names beyond the surrogates": "{\"\U0001F600\":1,\"\uff5e\":2}",
	} {
		got, err := canon.Append(nil, []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if want, err := jcs.Transform([]byte(text)); err == nil && string(got) == string(want) {
			t.Errorf("%s: both give %s", name, got)
		}
	}
}
