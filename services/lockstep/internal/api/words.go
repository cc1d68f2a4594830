package api

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"lockstep.dev/pkg/protocol"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// Word is an enum's value without its type's prefix: the word that people, logs
// and databases use. UNSPECIFIED is "".
func Word(value protoreflect.Enum) string {
	name := valueName(value.Descriptor(), value.Number())
	word := strings.TrimPrefix(name, prefix(value.Descriptor()))
	if word == "UNSPECIFIED" {
		return ""
	}
	return word
}

func valueName(enum protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	if value := enum.Values().ByNumber(number); value != nil {
		return string(value.Name())
	}
	return fmt.Sprint(number)
}

// prefix is what the names of an enum begin with: TASK_STATE_ of TaskState.
func prefix(enum protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(enum.Values().ByNumber(0).Name()), "UNSPECIFIED")
}

// Parse reads a word of an enum, in any case of letters; the error lists them all.
func Parse[E protoreflect.Enum](word string) (E, error) {
	var zero E
	enum := zero.Descriptor()
	value := enum.Values().ByName(protoreflect.Name(prefix(enum) + strings.ToUpper(strings.ReplaceAll(word, "-", "_"))))
	if value == nil || value.Number() == 0 {
		return zero, fmt.Errorf("%q is none of %s", word, strings.Join(words(enum), ", "))
	}
	parsed, ok := zero.Type().New(value.Number()).(E)
	if !ok {
		return zero, fmt.Errorf("%q is no %s", word, enum.Name())
	}
	return parsed, nil
}

// Words lists the words of an enum.
func Words[E protoreflect.Enum]() []string {
	var zero E
	return words(zero.Descriptor())
}

func words(enum protoreflect.EnumDescriptor) []string {
	var out []string
	for i := 1; i < enum.Values().Len(); i++ {
		out = append(out, strings.TrimPrefix(string(enum.Values().Get(i).Name()), prefix(enum)))
	}
	return out
}

// Ended says whether a task has ended for good.
func Ended(state evidencev1.TaskState) bool { return protocol.State(Word(state)).Terminal() }
