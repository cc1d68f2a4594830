package canon

import "bytes"

// writer copies one JSON text into its canonical form in a single pass. A value that stands in the
// text as its canonical form stays there until it is known where it goes; what must be spelled
// anew is written when it is read. Only the members of an object are put in order afterwards, as
// whole byte ranges. No tree of values is ever built.
type writer struct {
	in    []byte
	pos   int
	out   []byte
	nodes int

	members []member // of every object now open; each object owns the tail from its own start
	slots   []slot   // the same of those that still follow their shapes

	shape  shape // of the outermost object
	shapes int   // how many there are beneath it
}

// span is a name or a value in canonical form: bytes of in, or of out if written.
type span struct {
	start, end int
	written    bool
}

// bytes is what v spans.
func (w *writer) bytes(v span) []byte {
	if v.written {
		return w.out[v.start:v.end]
	}
	return w.in[v.start:v.end]
}

// put makes the value that was read last the end of out.
func (w *writer) put(v span) {
	if !v.written {
		w.out = append(w.out, w.in[v.start:v.end]...)
	}
}

// written is the span of all that was written from start on.
func (w *writer) written(start int) span { return span{start, len(w.out), true} }

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
	v, err := w.value(0, &w.shape)
	if err != nil {
		return err
	}
	w.put(v)
	w.space()
	if w.pos != len(w.in) {
		return refuse(w.pos, trailing)
	}
	return nil
}

// value reads the value that begins at pos. depth is the number of arrays and objects around it, s
// the shape expected of the objects in it.
func (w *writer) value(depth int, s *shape) (span, error) {
	if w.pos >= len(w.in) {
		return span{}, refuse(w.pos, endsEarly)
	}
	if w.nodes++; w.nodes > MaxNodes {
		return span{}, refuse(w.pos, tooMany)
	}
	switch c := w.in[w.pos]; {
	case c == '"':
		v, _, err := w.str()
		return v, err
	case c == '{':
		return w.object(depth+1, s)
	case c == '[':
		return w.array(depth+1, s)
	case c == '-' || c-'0' <= 9:
		return w.number()
	case c == 't':
		return w.literal("true")
	case c == 'f':
		return w.literal("false")
	case c == 'n':
		return w.literal("null")
	}
	return span{}, refuse(w.pos, noValue)
}

func (w *writer) literal(word string) (span, error) {
	start := w.pos
	if !bytes.HasPrefix(w.in[start:], []byte(word)) {
		return span{}, refuse(start, noValue)
	}
	w.pos += len(word)
	return span{start: start, end: w.pos}, nil
}

func (w *writer) array(depth int, s *shape) (span, error) {
	if depth > MaxDepth {
		return span{}, refuse(w.pos, tooDeep)
	}
	start := len(w.out)
	w.pos++
	w.out = append(w.out, '[')
	if w.space(); w.next(']') {
		w.out = append(w.out, ']')
		return w.written(start), nil
	}
	for {
		v, err := w.value(depth, s)
		if err != nil {
			return span{}, err
		}
		w.put(v)
		more, err := w.more(']')
		if err != nil {
			return span{}, err
		}
		if !more {
			w.out = append(w.out, ']')
			return w.written(start), nil
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
