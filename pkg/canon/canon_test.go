package canon_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"lockstep.dev/pkg/canon"
)

func TestHashesAreTheOnesWrittenDown(t *testing.T) {
	for text, want := range map[string]string{
		`null`:                  "889d461d3d7f9458d8efd38cb9533882d2e9f1eada3733e77125898295ea445f",
		`"null"`:                "9d7f4d658deadb5771e36ec20a19ffd3648c68b3a84665cf6f2d5b623648b53e",
		`""`:                    "7ca82cb57098c7037805f0329286bc84b527100604cb8f9f40b08e452c933c38",
		` { "a" : [ 1 , 2.0 ]}`: "99b360f961943916710a9b842ccc2ae2d0d17528e4652f196b085b5a9c406764",
	} {
		if got := sum(t, text); got.String() != want {
			t.Errorf("Sum(%s) = %s, want %s", text, got, want)
		}
	}
}

func TestSQLNullHashesAsNull(t *testing.T) {
	const want = "889d461d3d7f9458d8efd38cb9533882d2e9f1eada3733e77125898295ea445f"
	for name, text := range map[string][]byte{"nil": nil, "empty": {}, "null": []byte("null")} {
		got, err := canon.Sum(text)
		if err != nil || got.String() != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if _, err := canon.Append(nil, nil); !errors.Is(err, canon.ErrRefused) {
		t.Errorf("Append of an empty text: %v, want a refusal", err)
	}
}

func TestKindsOfNothingAllDiffer(t *testing.T) {
	allDiffer(t, `{"a":null}`, `{"a":"null"}`, `{"a":""}`, `{}`, `null`, `"null"`, `""`, `[]`, `{"a":[]}`, `{"a":{}}`, `{"a":0}`, `{"a":false}`)
}

func TestNeighboursOf2To53Differ(t *testing.T) {
	allDiffer(t, "9007199254740991", "9007199254740992", "9007199254740993", "9007199254740994", "9007199254740993.5")
}

func allDiffer(t *testing.T, texts ...string) {
	t.Helper()
	seen := map[canon.Hash]string{}
	for _, text := range texts {
		h := sum(t, text)
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s hash alike", text, other)
		}
		seen[h] = text
	}
}

func TestAppendKeepsWhatIsBeforeIt(t *testing.T) {
	got, err := canon.Append([]byte("kept "), []byte(`{"b":1,"a":2}`))
	if err != nil || string(got) != `kept {"a":2,"b":1}` {
		t.Errorf("accepted: %q, %v", got, err)
	}
	got, err = canon.Append([]byte("kept "), []byte(`{"b":1,"a":2,`))
	if err == nil || string(got) != "kept " {
		t.Errorf("refused: %q, %v", got, err)
	}
}

func TestRefusalsSayWhereAndNeverWhat(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{"secret":1,"b":2,"secret":3}`, "canon: offset 18: a member name occurs twice in one object"},
		{`["secret" "secret"]`, "canon: offset 10: a comma or the end of the array or object was expected"},
		{`{"secret"}`, "canon: offset 9: a colon was expected"},
		{`{secret:1}`, "canon: offset 1: a member name was expected"},
		{`secret`, "canon: offset 0: a value was expected"},
		{`"secret`, "canon: offset 7: text ends early"},
		{`"secret\x"`, "canon: offset 7: unknown escape in a string"},
		{`"secret\ud800"`, "canon: offset 7: half a surrogate pair in a string"},
		{"\"secret\xff\"", "canon: offset 7: string is not UTF-8"},
		{"\"secret\n\"", "canon: offset 7: control character in a string"},
		{`[1,0777]`, "canon: offset 3: number is not written as JSON writes it"},
		{`[1,7e200000]`, "canon: offset 3: number is outside the range of numeric"},
		{`1 secret`, "canon: offset 2: something follows the value"},
		{strings.Repeat("[", 65), "canon: offset 64: arrays and objects are nested deeper than 64"},
		{"[0" + strings.Repeat(",0", 100_000) + "]", "canon: offset 199999: more than 100000 values"},
		{"1" + strings.Repeat(" ", 8<<20), "canon: offset 8388608: text is longer than 8 MiB"},
	} {
		h, err := canon.Sum([]byte(c.text))
		var refusal *canon.Error
		if !errors.As(err, &refusal) || !errors.Is(err, canon.ErrRefused) || err.Error() != c.want {
			t.Errorf("%.40q: %v, want %s", c.text, err, c.want)
		}
		if !h.IsZero() {
			t.Errorf("%.40q: a refused text has hash %s", c.text, h)
		}
	}
}

func TestAHasherForgetsTheRowBefore(t *testing.T) {
	var h canon.Hasher
	for _, text := range []string{`{"b":{"d":1,"c":2},"a":3}`, `{"b":{"d":1,"c":2},"a"`, `"\ud800"`, `[[[[`, `{"z":1,"z":2}`, strings.Repeat(" ", 1<<20) + "1"} {
		_, _ = h.Sum([]byte(text)) // refused or not, it must leave nothing behind
		got, err := h.Sum([]byte(`{"a":[1,2]}`))
		if err != nil || got.String() != "99b360f961943916710a9b842ccc2ae2d0d17528e4652f196b085b5a9c406764" {
			t.Errorf("after %.30s: %s, %v", text, got, err)
		}
	}
}

func TestAHasherDoesNotAllocate(t *testing.T) {
	text, escapes := []byte(record), []byte(`{"\n":1.50,"\u0001":-2e-9,"z":[{"\\":"\ud83d\ude00"},1e21]}`)
	many := []byte(`{"k40":1,"k39":1,"k38":1,"k37":1,"k36":1,"k35":1,"k34":1,"k33":1,"k32":1,"k31":1,"k30":1,"k29":1,"k28":1,"k27":1,"k26":1,"k25":1,"k24":1,"k23":1,"k22":1,"k21":1,"k20":1,"k19":1,"k18":1,"k17":1,"k16":1,"k15":1,"k14":1,"k13":1,"k12":1,"k11":1}`)
	var h canon.Hasher
	got := testing.AllocsPerRun(100, func() {
		for _, row := range [][]byte{text, escapes, many, nil} {
			if _, err := h.Sum(row); err != nil {
				t.Fatal(err)
			}
		}
	})
	if got != 0 {
		t.Errorf("%v allocations a round, want none", got)
	}
}

func TestParseHash(t *testing.T) {
	const good = "889d461d3d7f9458d8efd38cb9533882d2e9f1eada3733e77125898295ea445f"
	h, err := canon.ParseHash(good)
	if err != nil || h.String() != good || h.IsZero() || h[0] != 0x88 {
		t.Errorf("good: %s, %v", h, err)
	}
	for _, bad := range []string{"", good[1:], good + "0", strings.ToUpper(good), strings.Repeat("g", 64), " " + good[1:]} {
		if h, err := canon.ParseHash(bad); !errors.Is(err, canon.ErrHash) || !h.IsZero() {
			t.Errorf("%q: %s, %v, want a refusal", bad, h, err)
		}
	}
	if zero, err := canon.ParseHash(strings.Repeat("0", 64)); err != nil || !zero.IsZero() {
		t.Errorf("zeros: %s, %v", zero, err)
	}
}

// sum hashes a text that must be accepted.
func sum(t *testing.T, text string) canon.Hash {
	t.Helper()
	h, err := canon.Sum([]byte(text))
	if err != nil {
		t.Fatalf("Sum(%.60s): %v", text, err)
	}
	return h
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
