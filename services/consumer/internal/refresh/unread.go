package refresh

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Unread says what keeps JSON from being read, for people: which member is
// meant, "" for the whole, and what is wrong with it.
func Unread(err error) (member, says string) {
	const unknown = "json: unknown field "
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		kind, _, _ := strings.Cut(wrong.Value, " ") // "number 1.5"
		return wrong.Field, fmt.Sprintf("is %s, not %s", kindOf(kind), wanted(wrong.Type))
	}
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		return "", fmt.Sprintf("is no JSON from byte %d on", wrong.Offset)
	}
	switch {
	case errors.Is(err, io.EOF):
		return "", "is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "", "ends in the middle"
	case strings.HasPrefix(err.Error(), unknown):
		return strings.Trim(strings.TrimPrefix(err.Error(), unknown), `"`), "is not a member that is known here"
	}
	return "", err.Error() // a member's own words
}

// kindOf names what JSON has, wanted what a member takes.
func kindOf(value string) string {
	switch value {
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "string":
		return "text"
	case "bool":
		return "true or false"
	}
	return "a " + value
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Pointer:
		return wanted(t.Elem())
	default:
		return "a whole number"
	}
}
