package canon

import "bytes"

// writer copies one JSON text into its canonical form in a single pass: each value is written when
// it is read, and only the members of an object are put in order afterwards, as whole byte ranges.
// No tree of values is ever built.
type writer struct {
	in    []byte
	pos   int
	out   []byte
	nodes int

	members []member // of every object now open; each object owns the tail from its own start
	spare   []byte   // where the members of one object are put in order
}

func refuse(offset int, reason string) error { return &Error{Offset: offset, Reason: reason} }

const (
	endsEarly  = "text ends early"
	tooDeep    = "arrays and objects are nested deeper than 64"
	tooMany    = "more than 100000 values"
	trailing   = "something follows the value"
	noValue    = "a value was expected"
	noName     = "a member name was expected"
	noColon    = "a colon was expected"
	noComma    = "a comma or the end of the array or object was expected"
	duplicate  = "a member name occurs twice in one object"
	badEscape  = "unknown escape in a string"
	badControl = "control character in a string"
	badUTF8    = "string is not UTF-8"
	surrogate  = "half a surrogate pair in a string"
	badNumber  = "number is not written as JSON writes it"
	outOfRange = "number is outside the range of numeric"
)

func (w *writer) text() error {
	w.space()
	if err := w.value(0); err != nil {
		return err
	}
	w.space()
	if w.pos != len(w.in) {
		return refuse(w.pos, trailing)
	}
	return nil
}

// value writes the value that begins at pos. depth is the number of arrays and objects around it.
func (w *writer) value(depth int) error {
	if w.pos >= len(w.in) {
		return refuse(w.pos, endsEarly)
	}
	if w.nodes++; w.nodes > MaxNodes {
		return refuse(w.pos, tooMany)
	}
	switch c := w.in[w.pos]; {
	case c == '"':
		_, err := w.str()
		return err
	case c == '{':
		return w.object(depth + 1)
	case c == '[':
		return w.array(depth + 1)
	case c == '-' || c-'0' <= 9:
		return w.number()
	case c == 't':
		return w.literal("true")
	case c == 'f':
		return w.literal("false")
	case c == 'n':
		return w.literal("null")
	}
	return refuse(w.pos, noValue)
}

func (w *writer) literal(word string) error {
	if !bytes.HasPrefix(w.in[w.pos:], []byte(word)) {
		return refuse(w.pos, noValue)
	}
	w.pos += len(word)
	w.out = append(w.out, word...)
	return nil
}

func (w *writer) array(depth int) error {
	if depth > MaxDepth {
		return refuse(w.pos, tooDeep)
	}
	w.pos++
	w.out = append(w.out, '[')
	if w.space(); w.next(']') {
		w.out = append(w.out, ']')
		return nil
	}
	for {
		if err := w.value(depth); err != nil {
			return err
		}
		more, err := w.more(']')
		if err != nil {
			return err
		}
		if !more {
			w.out = append(w.out, ']')
			return nil
		}
		w.out = append(w.out, ',')
	}
}

// more steps over what follows an element or a member: a comma and white space, or the end.
func (w *writer) more(end byte) (bool, error) {
	w.space()
	if w.pos >= len(w.in) {
		return false, refuse(w.pos, endsEarly)
	}
	switch w.in[w.pos] {
	case ',':
		w.pos++
		w.space()
		return true, nil
	case end:
		w.pos++
		return false, nil
	}
	return false, refuse(w.pos, noComma)
}

// next steps over c if it comes next.
func (w *writer) next(c byte) bool {
	if w.pos < len(w.in) && w.in[w.pos] == c {
		w.pos++
		return true
	}
	return false
}

// space steps over white space. It is small enough to be inlined where there is none, the usual case.
func (w *writer) space() {
	if w.pos < len(w.in) && w.in[w.pos] <= ' ' {
		w.spaces()
	}
}

func (w *writer) spaces() {
	for w.pos < len(w.in) {
		switch w.in[w.pos] {
		case ' ', '\t', '\n', '\r':
			w.pos++
		default:
			return
		}
	}
}
