package canon_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"lockstep.dev/pkg/canon"
)

// A value is drawn once and spelled twice, differently; both spellings must give what the twin
// gives.
func TestEverySpellingOfAValueGivesTheTwinsForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawValue(t, 4)
		one, two := spell(t, v), spell(t, v)
		want, err := twin([]byte(one))
		if err != nil {
			t.Fatalf("twin of %s: %v", one, err)
		}
		for _, text := range []string{one, two} {
			got, err := canon.Append(nil, []byte(text))
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if string(got) != want {
				t.Fatalf("%s gives\n%s, want\n%s", text, got, want)
			}
		}
	})
}

func TestChangingOneDigitChangesTheHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		digits := []byte(rapid.StringMatching(`[0-9]{1,60}`).Draw(t, "digits"))
		exponent := rapid.IntRange(-80, 80).Draw(t, "exponent")
		hash := func() canon.Hash {
			h, err := canon.Sum(fmt.Appendf(nil, "1.%se%d", digits, exponent))
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		before := hash()
		i := rapid.IntRange(0, len(digits)-1).Draw(t, "which")
		digits[i] = '0' + (digits[i]-'0'+byte(rapid.IntRange(1, 9).Draw(t, "by")))%10
		if hash() == before {
			t.Fatalf("1.%se%d hashes as before", digits, exponent)
		}
	})
}

func drawValue(t *rapid.T, depth int) any {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return drawNumber(t)
	case 3:
		return drawString(t)
	case 4:
		list := []any{}
		for range rapid.IntRange(0, 4).Draw(t, "elements") {
			list = append(list, drawValue(t, depth-1))
		}
		return list
	}
	obj := object{}
	for range rapid.IntRange(0, 30).Draw(t, "members") {
		obj[drawString(t)] = drawValue(t, min(depth-1, 1))
	}
	return obj
}

// decimal is digits × 10^exponent.
type decimal struct {
	negative bool
	digits   string
	exponent int
}

func drawNumber(t *rapid.T) decimal {
	return decimal{
		negative: rapid.Bool().Draw(t, "negative"),
		digits:   rapid.StringMatching(`0|[1-9][0-9]{0,40}`).Draw(t, "digits"),
		exponent: rapid.IntRange(-60, 60).Draw(t, "exponent"),
	}
}

// drawString favours characters whose order or escape is special, and names that share a beginning.
func drawString(t *rapid.T) string {
	special := rapid.SampledFrom([]rune("\x00\x01\b\t\n\v\f\r\x1f !\"#/[\\]a\x7f\u0080é\u2028\ud7ff\ue000\uffff\U00010000😀"))
	one := rapid.OneOf(special, special, rapid.RuneFrom([]rune("ab01_")))
	prefix := rapid.SampledFrom([]string{"", "", "", "measure", "a much longer name"}).Draw(t, "prefix")
	return prefix + string(rapid.SliceOfN(one, 0, 10).Draw(t, "runes"))
}

func spell(t *rapid.T, v any) string {
	var b strings.Builder
	b.WriteString(drawSpace(t))
	spellValue(t, &b, v)
	b.WriteString(drawSpace(t))
	return b.String()
}

func drawSpace(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "", "", " ", "\n\t", "\r\n  "}).Draw(t, "space")
}

func spellValue(t *rapid.T, b *strings.Builder, v any) {
	switch v := v.(type) {
	case string:
		spellString(t, b, v)
	case decimal:
		spellNumber(t, b, v)
	case []any:
		b.WriteString("[")
		for i, e := range v {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(spell(t, e))
		}
		b.WriteString("]")
	case object:
		names := slices.Sorted(maps.Keys(v)) // so that a seed reproduces its failure
		b.WriteString("{")
		for i, name := range rapid.Permutation(names).Draw(t, "order") {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(spell(t, name))
			b.WriteString(":")
			b.WriteString(spell(t, v[name]))
		}
		b.WriteString("}")
	default:
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
}

func spellString(t *rapid.T, b *strings.Builder, s string) {
	b.WriteString(`"`)
	for _, r := range s {
		how := rapid.IntRange(0, 3).Draw(t, "escape")
		short, isShort := twinEscapes[r]
		switch {
		case how == 0 && isShort:
			b.WriteString(short)
		case how == 0 && r == '/':
			b.WriteString(`\/`)
		case how < 3 && r >= 0x20 && !isShort:
			b.WriteRune(r)
		case r >= 0x10000:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(b, `\u%04x\u%04X`, high, low)
		default:
			fmt.Fprintf(b, `\u%04x`, r)
		}
	}
	b.WriteString(`"`)
}

// spellNumber puts the point somewhere and makes the exponent fit.
func spellNumber(t *rapid.T, b *strings.Builder, d decimal) {
	if d.negative {
		b.WriteString("-")
	}
	at := rapid.IntRange(0, len(d.digits)).Draw(t, "point")
	whole, fraction := d.digits[:at], d.digits[at:]
	if whole == "" {
		whole = "0"
	}
	if fraction != "" || rapid.Bool().Draw(t, "pad") {
		fraction = "." + fraction + strings.Repeat("0", rapid.IntRange(0, 3).Draw(t, "zeros"))
		if fraction == "." {
			fraction = ".0"
		}
	}
	b.WriteString(whole + fraction)
	exponent := d.exponent + len(d.digits) - at
	if exponent != 0 || rapid.Bool().Draw(t, "zero exponent") {
		layout := rapid.SampledFrom([]string{"e%d", "E%+d", "e%+04d"}).Draw(t, "layout")
		fmt.Fprintf(b, layout, exponent)
	}
}
