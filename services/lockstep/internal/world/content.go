package world

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

var (
	given    = []string{"Zoé", "Åsa", "Jürgen", "Noël", "Mei", "Çelik", "Łukasz", "Anaïs", "Søren", "Ines"}
	family   = []string{"Müller-Ødegård", "D'Angelo", "Nguyễn", "Peña & Söhne", "Šimek", "O'Brien", "王", "Lefèvre", "van der Berg", "Ibáñez"}
	remarks  = []string{"très bien <3", "a < b && b > c", "“quoted” & \"plain\"", "back\\slash, tab\tand line\nbreak", "café ≥ 3 €", "nothing to add", "see <b>room 12</b>", "naïve façade 😀"}
	relation = []string{"mother", "father", "guardian", "grandmother"}
	classes  = []string{"5a", "6b", "7c", "8a", "9b"}
)

// Integers around 2^53, where a float would merge neighbours.
const around2to53 = 9007199254740990

// content is an answer as a school's form gives it: about 380 bytes of JSON
// with what copies tend to get wrong: accents, markup, exact decimals,
// integers a float can't hold, nulls, nesting.
func content(r *rand.Rand, version int) []byte {
	pick := func(from []string) string { return text(from[r.IntN(len(from))]) }
	return fmt.Appendf(nil,
		`{"student":{"name":%s,"family":%s,"class":%s,"card":%d},"guardian":{"name":%s,"relation":%s,"phone":"+47 %03d %02d %03d"},`+
			`"answers":{"liked":%d,"score":%d.%d0,"remark":%s,"again":%t,"nickname":null,"topics":[%s,%s]},`+
			`"fee":{"amount":%d.%02d,"currency":"EUR","rate":1.%d},"submitted":"2026-%02d-%02dT%02d:%02d:00Z","form":"v%d"}`,
		pick(given), pick(family), pick(classes), around2to53+r.Int64N(6),
		pick(given), pick(relation), r.IntN(1000), r.IntN(100), r.IntN(1000),
		r.IntN(6), r.IntN(10), r.IntN(10), pick(remarks), r.IntN(2) == 0, pick(remarks), pick(remarks),
		r.IntN(500), r.IntN(100), 100000+r.IntN(900000),
		1+r.IntN(9), 1+r.IntN(28), r.IntN(24), r.IntN(60), version)
}

// text is s as a JSON string with only the escapes JSON asks for.
func text(s string) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		panic(err) // no string of the lists above is refused
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// tooLarge is content above the host's limit of 64 KiB.
func tooLarge(r *rand.Rand) []byte {
	const over = 72 << 10
	return fmt.Appendf(nil, `{"essay":%s,"words":%d}`, text(strings.Repeat("long ünd <longer> ", over/18)), r.IntN(1000))
}

// extension is what the host application keeps beside an answer.
func extension(r *rand.Rand) Extension {
	states := []string{"OPEN", "LINKED", "DONE"}
	return Extension{
		BizExt:    fmt.Sprintf(`{"owner": %s, "priority": %d, "tags": ["é", "<host>"]}`, text(given[r.IntN(len(given))]), r.IntN(5)),
		ApplyID:   fmt.Sprintf("apply-%08x", r.Uint32()),
		FlowID:    fmt.Sprintf("flow-%08x", r.Uint32()),
		LinkState: states[r.IntN(len(states))],
	}
}
