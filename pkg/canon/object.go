package canon

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"unsafe"
)

// member is one member of an open object, already read.
type member struct {
	value   span
	at      int    // of the name in the input, for the error
	name    span   // with its quotes
	head    uint64 // the name's first eight bytes: settles most comparisons
	index   int    // among the members as they were read
	escaped bool   // the name is written with escapes, whose bytes do not sort as what they mean
}

const memberSize = int(unsafe.Sizeof(member{}))

// object reads the object at pos, which is expected to have the shape s.
func (w *writer) object(depth int, s *shape) (span, error) {
	if depth > MaxDepth {
		return span{}, refuse(w.pos, tooDeep)
	}
	start, first := len(w.out), len(w.slots)
	w.pos++
	if w.space(); w.next('}') {
		w.out = append(w.out, '{', '}')
		return w.written(start), nil
	}
	more, err := w.follow(depth, s)
	if err != nil {
		return span{}, err
	}
	behind := len(w.out)
	if more {
		if behind, err = w.rest(depth, s, w.slots[first:]); err != nil {
			return span{}, err
		}
	} else {
		w.arranged(s, w.slots[first:])
	}
	w.slots = w.slots[:first]
	if behind > start { // the object is written behind what its members wrote, which has served
		w.out = w.out[:start+copy(w.out[start:], w.out[behind:])]
	}
	return w.written(start), nil
}

// rest reads the other members of an object that followed s so far, and writes the object from
// behind on.
func (w *writer) rest(depth int, s *shape, slots []slot) (behind int, err error) {
	first := len(w.members)
	w.leave(s, slots)
	for more := true; more; {
		if err := w.member(depth, s, len(w.members)-first); err != nil {
			return 0, err
		}
		if more, err = w.more('}'); err != nil {
			return 0, err
		}
	}
	behind = len(w.out)
	if err := w.arrange(w.members[first:]); err != nil {
		return 0, err
	}
	w.learn(s, w.members[first:])
	w.members = w.members[:first]
	return behind, nil
}

// member reads the member at index i of an object that s is the shape of, and appends it to those
// that are open.
func (w *writer) member(depth int, s *shape, i int) error {
	m := member{at: w.pos}
	if w.pos >= len(w.in) {
		return refuse(w.pos, endsEarly)
	}
	if w.in[w.pos] != '"' {
		return refuse(w.pos, noName)
	}
	var err error
	if m.name, m.escaped, err = w.str(); err != nil {
		return err
	}
	m.head = head(w.name(&m), m.escaped)
	if w.space(); !w.next(':') {
		return refuse(w.pos, noColon)
	}
	w.space()
	if m.value, err = w.value(depth, w.child(s, i)); err != nil {
		return err
	}
	w.members = append(w.members, m)
	return nil
}

// name is the member's name in canonical form, without its quotes.
func (w *writer) name(m *member) []byte {
	quoted := w.bytes(m.name)
	return quoted[1 : len(quoted)-1]
}

// arrange sorts members by name and writes the object they make.
func (w *writer) arrange(members []member) error {
	for i := range members {
		members[i].index = i
	}
	w.sort(members)
	for i := 1; i < len(members); i++ {
		if w.compare(&members[i-1], &members[i]) == 0 {
			return refuse(max(members[i-1].at, members[i].at), duplicate)
		}
	}
	start := len(w.out)
	for i := range members {
		m := &members[i]
		w.out = append(w.out, ',')
		w.out = append(w.out, w.bytes(m.name)...)
		w.out = append(w.out, ':')
		w.out = append(w.out, w.bytes(m.value)...)
	}
	w.out[start] = '{'
	w.out = append(w.out, '}')
	return nil
}

// maxInsertion is up to where insertion beats the general sort: the objects of records are small.
const maxInsertion = 24

func (w *writer) sort(members []member) {
	if len(members) > maxInsertion {
		slices.SortFunc(members, func(a, b member) int { return w.compare(&a, &b) })
		return
	}
	for i := 1; i < len(members); i++ {
		m, j := members[i], i
		for ; j > 0 && w.compare(&m, &members[j-1]) < 0; j-- {
			members[j] = members[j-1]
		}
		members[j] = m
	}
}

// compare orders two members by the UTF-8 bytes of their names.
func (w *writer) compare(a, b *member) int {
	if a.head != b.head {
		return cmp.Compare(a.head, b.head)
	}
	an, bn := w.name(a), w.name(b)
	if !a.escaped && !b.escaped {
		return bytes.Compare(an, bn)
	}
	for len(an) > 0 && len(bn) > 0 {
		x, xn := unescaped(an)
		y, yn := unescaped(bn)
		if x != y {
			return cmp.Compare(x, y)
		}
		an, bn = an[xn:], bn[yn:]
	}
	return cmp.Compare(len(an), len(bn))
}

// head packs the first eight bytes of a name, padded with zeros. Different heads are in the order
// of the names; equal heads say nothing, since a name may hold zeros itself.
func head(name []byte, escaped bool) uint64 {
	if !escaped {
		if len(name) < 8 {
			var padded [8]byte
			copy(padded[:], name)
			name = padded[:]
		}
		return binary.BigEndian.Uint64(name)
	}
	var v uint64
	for shift := 56; shift >= 0 && len(name) > 0; shift -= 8 {
		c, n := unescaped(name)
		v |= uint64(c) << shift
		name = name[n:]
	}
	return v
}
