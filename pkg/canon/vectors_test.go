package canon_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"lockstep.dev/pkg/canon"
)

// vector is one entry of testdata/vectors.json, whose format is explained for implementers in
// docs/protocol/canonical-content.md.
type vector struct {
	Name      string  `json:"name"`
	Input     *string `json:"input"`
	InputHex  string  `json:"input_hex"`
	Parts     []part  `json:"parts"`
	Canonical *string `json:"canonical"`
	SHA256    string  `json:"sha256"`
	Refused   bool    `json:"refused"`
}

type part struct {
	Text  string `json:"text"`
	Times int    `json:"times"`
}

func vectors(t testing.TB) []vector {
	t.Helper()
	var file struct {
		Canon   string   `json:"canon"`
		Vectors []vector `json:"vectors"`
	}
	dec := json.NewDecoder(bytes.NewReader(readFile(t, "testdata/vectors.json")))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	if file.Canon != canon.ID {
		t.Fatalf("vectors are for %s", file.Canon)
	}
	return file.Vectors
}

func (v vector) bytes(t testing.TB) []byte {
	t.Helper()
	switch {
	case v.Input != nil:
		return []byte(*v.Input)
	case v.InputHex != "":
		b, err := hex.DecodeString(v.InputHex)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var b strings.Builder
	for _, p := range v.Parts {
		b.WriteString(strings.Repeat(p.Text, p.Times))
	}
	return []byte(b.String())
}

func TestVectors(t *testing.T) {
	accepted, refused := 0, 0
	for _, v := range vectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			form, err := canon.Append(nil, v.bytes(t))
			if v.Refused {
				refused++
				if !errors.Is(err, canon.ErrRefused) {
					t.Errorf("accepted as %.80s", form)
				}
				return
			}
			accepted++
			if err != nil {
				t.Fatal(err)
			}
			if v.Canonical != nil && string(form) != *v.Canonical {
				t.Errorf("canonical form\n%s, want\n%s", form, *v.Canonical)
			}
			if h := sum(t, string(v.bytes(t))); h.String() != v.SHA256 {
				t.Errorf("hash %s, want %s", h, v.SHA256)
			}
		})
	}
	if accepted < 40 || refused < 80 {
		t.Errorf("%d accepted and %d refused vectors: the file lost some", accepted, refused)
	}
}

func TestVectorsThatAreNotTheSameValueHashApart(t *testing.T) {
	forms := map[string]string{}
	for _, v := range vectors(t) {
		if v.Refused || v.Canonical == nil {
			continue
		}
		if other, ok := forms[v.SHA256]; ok && other != *v.Canonical {
			t.Errorf("%s and %s have one hash", other, *v.Canonical)
		}
		forms[v.SHA256] = *v.Canonical
	}
}
