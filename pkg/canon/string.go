package canon

import (
	"encoding/binary"
	"math/bits"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// str reads the string whose opening quote is at pos and reports whether its canonical form needed
// an escape.
func (w *writer) str() (v span, escaped bool, err error) {
	// Most strings stay as they are, quotes and all.
	start := w.pos
	s := w.in[start+1:]
	if n, ascii := plain(s); n < len(s) && s[n] == '"' && (ascii || utf8.Valid(s[:n])) {
		w.pos = start + n + 2
		return span{start: start, end: w.pos}, false, nil
	}
	start = len(w.out)
	w.pos++
	w.out = append(w.out, '"')
	for {
		run := w.in[w.pos:]
		n, ascii := plain(run)
		if !ascii && !utf8.Valid(run[:n]) {
			return span{}, false, refuse(w.pos+invalidAt(run[:n]), badUTF8)
		}
		w.out = append(w.out, run[:n]...)
		w.pos += n
		if n == len(run) {
			return span{}, false, refuse(w.pos, endsEarly)
		}
		switch run[n] {
		case '"':
			w.pos++
			w.out = append(w.out, '"')
			return w.written(start), escaped, nil
		case '\\':
			wrote, err := w.escape()
			if err != nil {
				return span{}, false, err
			}
			escaped = escaped || wrote
		default:
			return span{}, false, refuse(w.pos, badControl)
		}
	}
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain counts the bytes before the first quote, backslash or control character, eight at a time,
// and reports whether all of them are ASCII.
func plain(s []byte) (n int, ascii bool) {
	var seen uint64
	for ; n+8 <= len(s); n += 8 {
		v := binary.LittleEndian.Uint64(s[n:])
		// A byte's high bit is set in stop when the byte is one to stop at. Borrows can only set
		// bits above the first true one, so the lowest set bit is exact.
		quote, slash := v^(ones*'"'), v^(ones*'\\')
		stop := ((v - ones*0x20) & ^v) | ((quote - ones) & ^quote) | ((slash - ones) & ^slash)
		if stop &= highs; stop != 0 {
			k := bits.TrailingZeros64(stop) / 8
			seen |= v & (1<<(8*k) - 1)
			return n + k, seen&highs == 0
		}
		seen |= v
	}
	for ; n < len(s); n++ {
		c := s[n]
		if c < 0x20 || c == '"' || c == '\\' {
			break
		}
		seen |= uint64(c)
	}
	return n, seen&highs == 0
}

func invalidAt(s []byte) int {
	at := 0
	for at < len(s) {
		r, n := utf8.DecodeRune(s[at:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	return at
}

// escape reads the escape at pos, writes what it stands for and reports whether that is an escape
// again.
func (w *writer) escape() (bool, error) {
	if w.pos+1 >= len(w.in) {
		return false, refuse(len(w.in), endsEarly)
	}
	var r rune
	switch c := w.in[w.pos+1]; c {
	case '"', '\\', '/':
		r = rune(c)
	case 'b':
		r = '\b'
	case 'f':
		r = '\f'
	case 'n':
		r = '\n'
	case 'r':
		r = '\r'
	case 't':
		r = '\t'
	case 'u':
		return w.unicodeEscape()
	default:
		return false, refuse(w.pos, badEscape)
	}
	w.pos += 2
	return w.char(r), nil
}

func (w *writer) unicodeEscape() (bool, error) {
	r, ok := unit(w.in[w.pos:])
	if !ok {
		return false, refuse(w.pos, badEscape)
	}
	size := 6
	if utf16.IsSurrogate(r) {
		low, ok := unit(w.in[w.pos+6:])
		r = utf16.DecodeRune(r, low)
		if !ok || r == utf8.RuneError {
			return false, refuse(w.pos, surrogate)
		}
		size = 12
	}
	w.pos += size
	return w.char(r), nil
}

// unit reads one \uXXXX from the start of s.
func unit(s []byte) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range s[2:6] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c-'a' <= 5:
			c -= 'a' - 10
		case c-'A' <= 5:
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

const (
	hexDigits = "0123456789abcdef"
	shorts    = "\b\t\n\f\r\"\\" // the characters with an escape of two bytes
	letters   = "btnfr\"\\"      // and that escape's second byte
)

// char writes one character as RFC 8785, section 3.2.2.2 does and reports whether it is an escape.
func (w *writer) char(r rune) bool {
	if r >= ' ' && r != '"' && r != '\\' {
		w.out = utf8.AppendRune(w.out, r)
		return false
	}
	c := byte(r) //nolint:gosec // at most a backslash here
	if i := strings.IndexByte(shorts, c); i >= 0 {
		w.out = append(w.out, '\\', letters[i])
	} else {
		w.out = append(w.out, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
	return true
}

// unescaped gives the first byte that a canonical string stands for and how many bytes spell it.
// Canonical escapes stand for one ASCII byte each.
func unescaped(s []byte) (c byte, size int) {
	if s[0] != '\\' {
		return s[0], 1
	}
	if s[1] == 'u' {
		r, _ := unit(s)
		return byte(r), 6 //nolint:gosec // a canonical \u is below 0x20
	}
	return shorts[strings.IndexByte(letters, s[1])], 2
}
