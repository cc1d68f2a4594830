package protocol

import (
	"encoding/hex"
	"errors"
	"strings"
)

// KeyKindUUID is the only key kind: sixteen bytes, compared as bytes, spelled
// as 32 lower-case hex digits.
const KeyKindUUID = "uuid"

// ErrKey says that a text is no key in the one accepted spelling. It is
// refused, never repaired, so that one record can't have two names.
var ErrKey = errors.New("a key is 32 lower-case hex digits without dashes")

// ParseKey turns the API's spelling into the raw bytes that the tree, the page
// bodies and the comparisons use.
func ParseKey(s string) (string, error) {
	if len(s) != 32 || strings.ToLower(s) != s {
		return "", ErrKey
	}
	raw, err := hex.DecodeString(s)
	if err != nil {
		return "", ErrKey
	}
	return string(raw), nil
}

// FormatKey spells raw key bytes as the API does.
func FormatKey(raw string) string { return hex.EncodeToString([]byte(raw)) }

// ParseID reads a task, manifest or event id; the same spelling as a key.
func ParseID(s string) ([16]byte, error) {
	raw, err := ParseKey(s)
	if err != nil {
		return [16]byte{}, err
	}
	return [16]byte([]byte(raw)), nil
}

// FormatID spells an id as ParseID reads it.
func FormatID(id [16]byte) string { return hex.EncodeToString(id[:]) }
