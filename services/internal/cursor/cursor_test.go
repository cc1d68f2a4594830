package cursor

import (
	"strings"
	"testing"

	"lockstep.dev/pkg/fault"
)

type place struct {
	Tenant int64
	Key    string
}

func TestATokenGoesOnWithItsListOnly(t *testing.T) {
	list := Of("rows", int64(7), "form-1", []string{"FAILED"})
	token := After(list, place{7, "ä/b"})
	if got, err := Resume[place](Of("rows", int64(7), "form-1", []string{"FAILED"}), token); err != nil || *got != (place{7, "ä/b"}) {
		t.Fatalf("%v, %v", got, err)
	}
	if got, err := Resume[place](list, ""); got != nil || err != nil {
		t.Errorf("the first page: %v, %v", got, err)
	}
	for name, other := range map[string]List{
		"another list": Of("records", int64(7), "form-1", []string{"FAILED"}), "another tenant": Of("rows", int64(8), "form-1", []string{"FAILED"}),
		"another state": Of("rows", int64(7), "form-1", []string{"DONE"}), "no filter": Of("rows"), "parts that run together": Of("rows", int64(7), `form-1",["FAILED`),
	} {
		if _, err := Resume[place](other, token); fault.ReasonOf(err) != fault.CursorInvalid || fault.FieldsOf(err)[0].Name != "page_token" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"no base64": "!", "no JSON": "eA", "cut off": token[:len(token)-4], "no place": After[*place](list, nil), "far too long": strings.Repeat(token, 80),
		"another kind of place": After(list, "x"),
	} {
		if _, err := Resume[place](list, text); fault.ReasonOf(err) != fault.CursorInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
