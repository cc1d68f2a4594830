package canon

import "bytes"

// shape is what members an object had. The rows of a collection resemble one another: where the
// names of the object before come again, spelled alike and in the same order, they need not be
// checked, sorted and searched for duplicates again. Any of them may be missing. An object with
// another name, or another order, is read like the first one, and then is the shape of the next.
type shape struct {
	text     []byte   // ,"name": of each member, in canonical order
	fields   []field  // in the order of the input
	order    []int    // the fields in canonical order
	misses   int      // objects since the last one that had this shape
	children []*shape // by the index of the field, of the objects in its value
}

// field is where a member's name is in the text of its shape.
type field struct{ start, end int }

// slot is the member that an open object has for a field of its shape.
type slot struct {
	value span
	at    int // of the name in the input; absent if the object has no such member
}

const absent = -1

// What a Hasher remembers is bounded, since it keeps it.
const (
	maxFields    = 64      // in a shape
	maxShapeText = 2 << 10 // in a shape
	maxShapes    = 64
)

// name is the name of field i as the input has it, with its quotes and the colon.
func (s *shape) name(i int) []byte {
	f := s.fields[i]
	return s.text[f.start+1 : f.end]
}

// find is the first field from i on whose name in begins with, or the number of fields. Names in a
// shape hold no backslashes and no quotes, so that nothing else begins with one.
func (s *shape) find(i int, in []byte) int {
	for i < len(s.fields) && !bytes.HasPrefix(in, s.name(i)) {
		i++
	}
	return i
}

// follow reads members as long as their names are those of s in its order, and reports whether the
// object has more.
func (w *writer) follow(depth int, s *shape) (more bool, err error) {
	if s == nil {
		return true, nil
	}
	for i := 0; i < len(s.fields); i++ {
		found := s.find(i, w.in[w.pos:])
		if found == len(s.fields) {
			break
		}
		for ; i < found; i++ {
			w.slots = append(w.slots, slot{at: absent})
		}
		at := w.pos
		w.pos += len(s.name(i))
		w.space()
		v, err := w.value(depth, w.child(s, i))
		if err != nil {
			return false, err
		}
		w.slots = append(w.slots, slot{v, at})
		// What mostly follows, as PostgreSQL prints it, is worth a look before the call.
		if p := w.pos; p+2 < len(w.in) && w.in[p] == ',' && w.in[p+1] == ' ' && w.in[p+2] == '"' {
			w.pos += 2
			continue
		}
		if more, err := w.more('}'); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// arranged writes an object that followed s to its end. No name of s is there twice, and their
// order is known.
func (w *writer) arranged(s *shape, slots []slot) {
	out := w.out
	for _, i := range s.order {
		if i >= len(slots) || slots[i].at == absent {
			continue
		}
		f := s.fields[i]
		out = append(out, s.text[f.start:f.end]...)
		if v := slots[i].value; v.written {
			out = append(out, out[v.start:v.end]...)
		} else {
			out = append(out, w.in[v.start:v.end]...)
		}
	}
	out[len(w.out)] = '{' // for the first comma
	w.out = append(out, '}')
	s.misses = 0
}

// leave makes members of the slots of an object that follows s no longer.
func (w *writer) leave(s *shape, slots []slot) {
	for i, slot := range slots {
		if slot.at == absent {
			continue
		}
		m := member{value: slot.value, at: slot.at}
		m.name = span{start: m.at, end: m.at + len(s.name(i)) - 1}
		m.head = head(w.name(&m), false)
		w.members = append(w.members, m)
	}
}

// Where hardly an object has the shape of the one before, learning would only cost: after
// maxMisses in a row it is tried once in retryMisses.
const (
	maxMisses   = 4
	retryMisses = 64
)

// learn makes s the shape of an object whose members are in canonical order. It must have been
// found to hold no name twice.
func (w *writer) learn(s *shape, members []member) {
	if s == nil {
		return
	}
	s.text, s.fields, s.order = s.text[:0], s.fields[:0], s.order[:0]
	s.misses++
	if len(members) > maxFields || (s.misses > maxMisses && s.misses%retryMisses != 0) {
		return
	}
	s.fields = append(s.fields, make([]field, len(members))...)
	for i := range members {
		m := &members[i]
		name, start := w.bytes(m.name), len(s.text)
		// A name that had to be written is not spelled so in the input.
		if m.name.written || start+len(name)+2 > maxShapeText {
			s.fields = s.fields[:0]
			return
		}
		s.text = append(s.text, ',')
		s.text = append(s.text, name...)
		s.text = append(s.text, ':')
		s.fields[m.index] = field{start, len(s.text)}
		s.order = append(s.order, m.index)
	}
}

// child is the shape expected of the objects in the value at pos, which is that of the member at
// index i. It is nil where there are none, and where no more is remembered.
func (w *writer) child(s *shape, i int) *shape {
	if s == nil || i >= maxFields || w.pos >= len(w.in) || (w.in[w.pos] != '{' && w.in[w.pos] != '[') {
		return nil
	}
	for i >= len(s.children) {
		s.children = append(s.children, nil)
	}
	if s.children[i] == nil && w.shapes < maxShapes {
		s.children[i] = new(shape)
		w.shapes++
	}
	return s.children[i]
}
