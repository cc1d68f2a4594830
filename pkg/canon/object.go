package canon

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"unsafe"
)

// member is one member of an open object, already written. Offsets are into writer.out but for at.
type member struct {
	head    uint64 // the name's first eight bytes: settles most comparisons
	start   int    // of the name's opening quote
	nameEnd int    // behind the name's closing quote
	end     int    // behind the value
	at      int    // of the name in the input, for the error
	escaped bool   // the name is written with escapes, whose bytes do not sort as what they mean
}

const memberSize = int(unsafe.Sizeof(member{}))

func (w *writer) object(depth int) error {
	if depth > MaxDepth {
		return refuse(w.pos, tooDeep)
	}
	w.pos++
	w.out = append(w.out, '{')
	if w.space(); w.next('}') {
		w.out = append(w.out, '}')
		return nil
	}
	first, inOrder := len(w.members), true
	for {
		at := len(w.members)
		if err := w.member(depth); err != nil {
			return err
		}
		if inOrder && at > first {
			inOrder = w.compare(&w.members[at-1], &w.members[at]) < 0
		}
		more, err := w.more('}')
		if err != nil {
			return err
		}
		if !more {
			break
		}
		w.out = append(w.out, ',')
	}
	if !inOrder {
		if err := w.reorder(w.members[first:]); err != nil {
			return err
		}
	}
	w.members = w.members[:first]
	w.out = append(w.out, '}')
	return nil
}

// member writes a member and appends it to those that are open.
func (w *writer) member(depth int) error {
	start, at := len(w.out), w.pos
	if w.pos >= len(w.in) {
		return refuse(w.pos, endsEarly)
	}
	if w.in[w.pos] != '"' {
		return refuse(w.pos, noName)
	}
	escaped, err := w.str()
	if err != nil {
		return err
	}
	n := len(w.members)
	w.members = append(w.members, member{start: start, nameEnd: len(w.out), at: at, escaped: escaped})
	w.members[n].head = head(w.name(&w.members[n]), escaped)
	if w.space(); !w.next(':') {
		return refuse(w.pos, noColon)
	}
	w.out = append(w.out, ':')
	w.space()
	err = w.value(depth)
	w.members[n].end = len(w.out)
	return err
}

// name is the member's name as it stands in the output, without its quotes.
func (w *writer) name(m *member) []byte { return w.out[m.start+1 : m.nameEnd-1] }

// reorder sorts members by name and moves their bytes accordingly; they end where out ends.
func (w *writer) reorder(members []member) error {
	start := members[0].start
	w.sort(members)
	for i := 1; i < len(members); i++ {
		if w.compare(&members[i-1], &members[i]) == 0 {
			return refuse(max(members[i-1].at, members[i].at), duplicate)
		}
	}
	w.spare = w.spare[:0]
	for i := range members {
		if i > 0 {
			w.spare = append(w.spare, ',')
		}
		w.spare = append(w.spare, w.out[members[i].start:members[i].end]...)
	}
	copy(w.out[start:], w.spare)
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
