// Package cursor makes the page tokens of lists.
//
// A token holds the place of a page's last row and goes on with the list and the
// filter that it came from, and with no other: it is refused with CURSOR_INVALID
// there. It is no secret and no right: what a list shows is decided anew for
// every page.
package cursor

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
)

// List is a list with its filter.
type List struct{ digest [8]byte }

// Of tells a list from others by its name and by what narrows it, in their order.
// Parts have plain fields.
func Of(name string, filter ...any) List {
	sum := sha256.Sum256(encoded(append([]any{name}, filter...)))
	return List{digest: [8]byte(sum[:8])}
}

type token[P any] struct {
	List [8]byte `json:"l"`
	Last *P      `json:"p"`
}

// After is the token of the page behind a row.
func After[P any](l List, last P) string {
	return base64.RawURLEncoding.EncodeToString(encoded(token[P]{List: l.digest, Last: &last}))
}

// maxToken bounds what is decoded; a real one is below it.
const maxToken = 4 << 10

// Resume reads a token; nil for the first page, which has none.
func Resume[P any](l List, text string) (*P, error) {
	if text == "" {
		return nil, nil
	}
	var t token[P]
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(text) > maxToken || json.Unmarshal(raw, &t) != nil || t.List != l.digest || t.Last == nil {
		return nil, Invalid()
	}
	return t.Last, nil
}

// MaxPage is the most rows of a page.
const MaxPage = 500

// Size checks how many rows are asked for; 0 stands for fallback.
func Size(asked int32, fallback int) (int, error) {
	switch {
	case asked == 0:
		return fallback, nil
	case asked < 0 || asked > MaxPage:
		return 0, fault.New(fault.InvalidArgument, "impossible page size").WithField("page_size", "is 1 to %d", MaxPage)
	}
	return int(asked), nil
}

// Moment is a row's place in a list by time, where the id decides between equal
// ones.
type Moment struct {
	At time.Time
	ID [16]byte
}

// AfterMoment is After for a list by time.
func AfterMoment(l List, at time.Time, id [16]byte) string { return After(l, Moment{At: at, ID: id}) }

// ResumeMoment is Resume for a list by time: a zero time is its start.
func ResumeMoment(l List, text string) (at time.Time, id [16]byte, err error) {
	last, err := Resume[Moment](l, text)
	if last == nil {
		return at, id, err
	}
	return last.At, last.ID, nil
}

// AfterKey is After for a list in the order of raw record keys.
func AfterKey(l List, raw string) string { return After(l, protocol.FormatKey(raw)) }

// ResumeKey is Resume for a list in the order of raw record keys: "" is its start.
func ResumeKey(l List, text string) (raw string, err error) {
	last, err := Resume[string](l, text)
	if last == nil {
		return "", err
	}
	if raw, err = protocol.ParseKey(*last); err != nil {
		return "", Invalid()
	}
	return raw, nil
}

// Invalid refuses a token that is not one of the list.
func Invalid() *fault.Error {
	return fault.New(fault.CursorInvalid, "the page token is not one of this list").WithField("page_token", "comes from the answer before, to the same request")
}

func encoded(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("a page token has only plain fields: %v", err))
	}
	return text
}
