package canon

import "strconv"

// FirstDifference compares two canonical forms. offset is the first byte in which they differ, and
// path names the innermost value that both have there, in the manner of $.lines[2].price; where
// one has a member or an element that the other lacks, it names the object or array around it.
// The path holds member names, so it is content: it is for the operator who asked, not for a log.
func FirstDifference(a, b []byte) (offset int, path string, equal bool) {
	n := min(len(a), len(b))
	for offset < n && a[offset] == b[offset] {
		offset++
	}
	if offset == len(a) && offset == len(b) {
		return offset, "", true
	}
	steps, cut := walk(a[:offset])
	if cut != inString && cut.between(closes(a, offset), closes(b, offset)) && len(steps) > 0 {
		steps = steps[:len(steps)-1]
	}
	out := []byte{'$'}
	for _, s := range steps {
		out = s.append(out)
	}
	return offset, string(out), false
}

// place is where in a canonical form a cut fell, as far as it matters here.
type place int

const (
	elsewhere   place = iota
	inString          // the next byte is content, whatever it looks like
	behindStart       // directly behind the bracket that opens an array
)

// between reports whether the difference lies between values: the last one is the same on both
// sides and what follows is not, or one array is empty.
func (p place) between(aCloses, bCloses bool) bool {
	return aCloses && bCloses || p == behindStart && (aCloses || bCloses)
}

// closes reports whether text at i ends a value rather than being a part of one.
func closes(text []byte, i int) bool {
	return i < len(text) && (text[i] == ',' || text[i] == '}' || text[i] == ']')
}

// step is one level of a path: a member of an object or an element of an array.
type step struct {
	name   []byte // with its quotes; nil in an array, and in an object before a name was read
	index  int
	object bool
}

// walk gives the levels that are open where a cut-off canonical form ends. An object whose next
// name is itself cut off adds no level: which member it would be is what differs.
func walk(text []byte) (steps []step, cut place) {
	for i := 0; i < len(text); i++ {
		top := len(steps) - 1
		cut = elsewhere
		switch text[i] {
		case '{':
			steps = append(steps, step{object: true})
		case '[':
			steps = append(steps, step{})
			cut = behindStart
		case '}', ']':
			steps = steps[:max(top, 0)]
		case ',':
			if top >= 0 {
				steps[top].index++
				steps[top].name = nil
			}
		case '"':
			end := closing(text, i)
			if end >= len(text) {
				cut = inString
			} else if top >= 0 && steps[top].object && steps[top].name == nil {
				steps[top].name = text[i : end+1]
			}
			i = end
		}
	}
	if n := len(steps); n > 0 && steps[n-1].object && steps[n-1].name == nil {
		steps = steps[:n-1]
		cut = inString // nothing further to take off
	}
	return steps, cut
}

func (s step) append(out []byte) []byte {
	switch {
	case !s.object:
		return append(strconv.AppendInt(append(out, '['), int64(s.index), 10), ']')
	case s.name == nil:
		return out // a value without a name: not a canonical form
	case isWord(s.name[1 : len(s.name)-1]):
		return append(append(out, '.'), s.name[1:len(s.name)-1]...)
	default:
		return append(append(append(out, '['), s.name...), ']')
	}
}

// isWord reports whether a name can stand in a path without quotes.
func isWord(name []byte) bool {
	for i, c := range name {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return len(name) > 0
}

// closing is where the string that opens at i has its closing quote, len(text) if it has none.
func closing(text []byte, i int) int {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(text)
}
