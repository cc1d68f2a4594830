package canon_test

import (
	"testing"

	"lockstep.dev/pkg/canon"
)

func TestFirstDifference(t *testing.T) {
	for _, c := range []struct {
		a, b   string
		offset int
		path   string
	}{
		{`{"a":1}`, `{"a":2}`, 5, "$.a"},
		{`{"a":1}`, `{"a":12}`, 6, "$.a"},
		{`{"a":1}`, `{"a":1,"b":2}`, 6, "$"},
		{`{"a":1}`, `{"b":1}`, 2, "$"},
		{`{}`, `{"b":1}`, 1, "$"},
		{`{"a":[]}`, `{"a":[1]}`, 6, "$.a"},
		{`{"a":[1]}`, `{"a":[1,2]}`, 7, "$.a"},
		{`{"a":[1,2]}`, `{"a":[1,3]}`, 8, "$.a[1]"},
		{`{"a":[1,2,{"b":"x,"}]}`, `{"a":[1,2,{"b":"x}"}]}`, 17, "$.a[2].b"},
		{`{"a":"["}`, `{"a":"[]"}`, 7, "$.a"},
		{`{"a":{"b":{"c":1}},"d":2}`, `{"a":{"b":{"c":1}},"e":2}`, 20, "$"},
		{`{"a":{"b":{"c":1}},"d":2}`, `{"a":{"b":{"c":1}},"d":3}`, 23, "$.d"},
		{`{"a":{"b":1}}`, `{"a":{"b":1,"c":1}}`, 11, "$.a"},
		{`{"a b":[[0,1]]}`, `{"a b":[[0,2]]}`, 11, `$["a b"][0][1]`},
		{`{"a\"b":1}`, `{"a\"b":2}`, 8, `$["a\"b"]`},
		{`{"":1}`, `{"":2}`, 4, `$[""]`},
		{`{"a":"b"}`, `{"a":null}`, 5, "$.a"},
		{`{"a":{}}`, `{"a":[]}`, 5, "$.a"},
		{`1`, `12`, 1, "$"},
		{`"a"`, `1`, 0, "$"},
		{``, `1`, 0, "$"},
	} {
		for _, pair := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			offset, path, equal := canon.FirstDifference([]byte(pair[0]), []byte(pair[1]))
			if offset != c.offset || path != c.path || equal {
				t.Errorf("%s and %s: %d %s %v, want %d %s", pair[0], pair[1], offset, path, equal, c.offset, c.path)
			}
		}
	}
	if offset, path, equal := canon.FirstDifference([]byte(`{"a":1}`), []byte(`{"a":1}`)); offset != 7 || path != "" || !equal {
		t.Errorf("the same: %d %s %v", offset, path, equal)
	}
}

// FuzzFirstDifference only asks for an answer: the forms may come from a database that is damaged.
func FuzzFirstDifference(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":"c"}]}`), []byte(`{"a":[1,{"b":"d"}]}`))
	f.Add([]byte(`,}`), []byte(`]"`))
	f.Add([]byte(`{[x`), []byte(`{[y`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		offset, _, equal := canon.FirstDifference(a, b)
		if equal != (string(a) == string(b)) || string(a[:offset]) != string(b[:offset]) {
			t.Fatalf("%q and %q: %d, %v", a, b, offset, equal)
		}
	})
}
