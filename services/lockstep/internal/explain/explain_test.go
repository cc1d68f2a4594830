package explain

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/canon"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// sides are the same record on both sides, with these contents.
func sides(t *testing.T, center, local string) (*centerv1.ExplainRecordResponse, *consumerv1.ExplainRecordResponse) {
	t.Helper()
	form := func(text string) (string, string) {
		out, err := canon.Append(nil, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		sum, err := canon.Sum([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return string(out), sum.String()
	}
	a, aHash := form(center)
	b, bHash := form(local)
	return &centerv1.ExplainRecordResponse{Found: true, Revision: 3, Canonical: a, ContentHash: aHash},
		&consumerv1.ExplainRecordResponse{Found: true, CollectionId: "form-1", Revision: 3, Canonical: b, ContentHash: bHash, StoredHash: bHash}
}

func TestContents(t *testing.T) {
	for name, c := range map[string]struct {
		center, local string
		cause         Cause
		path          string
	}{
		"a float":                   {`{"n": 9007199254740993}`, `{"n": 9007199254740992}`, Precision, "$.n"},
		"a narrower column":         {`{"price": 12.345}`, `{"price": 12.35}`, Precision, "$.price"},
		"rounded to a whole":        {`{"price": 12.5}`, `{"price": 13}`, Precision, "$.price"},
		"another number":            {`{"n": 3}`, `{"n": 4}`, Number, "$.n"},
		"case":                      {`{"a": {"name": "Ada"}}`, `{"a": {"name": "ada"}}`, Case, "$.a.name"},
		"normalisation":             {`{"name": "\u00e9"}`, `{"name": "e\u0301"}`, Normalisation, "$.name"},
		"white space":               {`{"name": "ada"}`, `{"name": "ada  "}`, Space, "$.name"},
		"another text":              {`{"name": "ada"}`, `{"name": "bob"}`, Text, "$.name"},
		"a key the consumer lacks":  {`{"a": 1, "b": null}`, `{"a": 1}`, MissingKey, "$"},
		"a key the center lacks":    {`{"a": 1}`, `{"a": 1, "b": ""}`, MissingKey, "$"},
		"another kind":              {`{"a": 1}`, `{"a": "1"}`, Kind, "$.a"},
		"null and a text":           {`{"a": null}`, `{"a": ""}`, Kind, "$.a"},
		"elements in another order": {`{"a": [1, 2, 3]}`, `{"a": [3, 1, 2]}`, Order, "$.a[0]"},
		"an element less":           {`{"a": [1, 2]}`, `{"a": [1]}`, ElementMissing, "$.a"},
		"an element of an array":    {`{"a": [{"b": 1.5}, {"b": 2.25}]}`, `{"a": [{"b": 1.5}, {"b": 2.3}]}`, Precision, "$.a[1].b"},
		"the first of several":      {`{"a": "X", "b": 1}`, `{"a": "x", "b": 2}`, Case, "$.a"},
		"a very large number":       {`{"n": 1e300}`, `{"n": 2e300}`, Number, "$.n"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := sides(t, c.center, c.local)
			f := Compare(a, b, "form-1")
			if f.Equal || f.Cause != c.cause || f.Path != c.path || f.Advice == "" {
				t.Errorf("%+v, want %s at %s", f, c.cause, c.path)
			}
		})
	}
	t.Run("key order and spelling are no difference", func(t *testing.T) {
		a, b := sides(t, `{"b": 1.50, "a": 2}`, `{"a":2,"b":1.5}`)
		if f := Compare(a, b, "form-1"); !f.Equal {
			t.Errorf("%+v", f)
		}
	})
}

func TestRows(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*centerv1.ExplainRecordResponse, *consumerv1.ExplainRecordResponse)
		cause  Cause
	}{
		"missing at the consumer": {func(_ *centerv1.ExplainRecordResponse, b *consumerv1.ExplainRecordResponse) { b.Reset() }, MissingHere},
		"missing at the center":   {func(a *centerv1.ExplainRecordResponse, _ *consumerv1.ExplainRecordResponse) { a.Reset() }, MissingThere},
		"held elsewhere": {func(_ *centerv1.ExplainRecordResponse, b *consumerv1.ExplainRecordResponse) {
			b.CollectionId = "form-2"
		}, Collection},
		"retired": {func(_ *centerv1.ExplainRecordResponse, b *consumerv1.ExplainRecordResponse) {
			b.RetiredAt = timestamppb.Now()
		}, Retired},
		"no form there":     {func(a *centerv1.ExplainRecordResponse, _ *consumerv1.ExplainRecordResponse) { a.Refused = "too deep" }, NoForm},
		"no form here":      {func(_ *centerv1.ExplainRecordResponse, b *consumerv1.ExplainRecordResponse) { b.Refused = "too deep" }, NoForm},
		"older here":        {func(_ *centerv1.ExplainRecordResponse, b *consumerv1.ExplainRecordResponse) { b.Revision = 2 }, Revision},
		"newer here":        {func(_ *centerv1.ExplainRecordResponse, b *consumerv1.ExplainRecordResponse) { b.Revision = 9 }, Revision},
		"a tombstone there": {func(a *centerv1.ExplainRecordResponse, _ *consumerv1.ExplainRecordResponse) { a.Deleted = true }, Tombstone},
		"a hash of another spelling": {
			func(_ *centerv1.ExplainRecordResponse, b *consumerv1.ExplainRecordResponse) {
				b.StoredHash = strings.Repeat("0", 64)
			}, StoredHash,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := sides(t, `{"a": 1}`, `{"a": 1}`)
			c.change(a, b)
			if f := Compare(a, b, "form-1"); f.Equal || f.Cause != c.cause || f.Advice == "" {
				t.Errorf("%+v, want %s", f, c.cause)
			}
		})
	}
	if f := Compare(&centerv1.ExplainRecordResponse{}, &consumerv1.ExplainRecordResponse{}, "form-1"); !f.Equal {
		t.Errorf("%+v", f)
	}
}
