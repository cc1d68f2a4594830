package canon

import (
	"bytes"
	"strconv"
)

// The range of PostgreSQL's numeric, judged on the value and not on its spelling: so many digits
// before the point, and so many behind it once trailing zeros are gone.
const (
	maxIntegerDigits  = 131_072
	maxFractionDigits = 16_383
)

// ECMAScript, Number::toString: the point stays a point while it is within these positions.
const (
	maxPlainPoint = 21
	minPlainPoint = -5
)

// maxExponent is where reading an exponent stops counting. It is far outside the range, and far
// above what eight million digits could move the point back by.
const maxExponent = 1 << 27

// number reads the number at pos: its digits without leading and trailing zeros, and the point
// where ECMAScript puts it. No digit is lost, however many there are.
func (w *writer) number() (span, error) {
	start, s := w.pos, w.in
	i := start
	negative := s[i] == '-'
	if negative {
		i++
	}
	whole := digits(s[i:])
	i += len(whole)
	if len(whole) == 0 || (len(whole) > 1 && whole[0] == '0') {
		return span{}, refuse(start, badNumber)
	}
	plainEnd := i >= len(s) || (s[i] != '.' && s[i]|0x20 != 'e')
	if plainEnd && len(whole) <= maxPlainPoint {
		w.pos = i
		if whole[0] == '0' {
			start = i - 1 // zero has no sign
		}
		return span{start: start, end: i}, nil
	}
	var fraction []byte
	if i < len(s) && s[i] == '.' {
		fraction = digits(s[i+1:])
		i += 1 + len(fraction)
		if len(fraction) == 0 {
			return span{}, refuse(start, badNumber)
		}
	}
	if (i == len(s) || s[i]|0x20 != 'e') && len(whole) <= maxPlainPoint && asWritten(whole, fraction) {
		w.pos = i
		return span{start: start, end: i}, nil
	}
	exponent := 0
	if i < len(s) && s[i]|0x20 == 'e' {
		n := 0
		if exponent, n = readExponent(s[i+1:]); n == 0 {
			return span{}, refuse(start, badNumber)
		}
		i += 1 + n
	}
	w.pos = i
	out := len(w.out)
	err := w.decimal(start, negative, whole, fraction, exponent)
	return w.written(out), err
}

// asWritten says whether a number without an exponent and with few digits before
// the point stands as its canonical form would: nothing to strip, no shorter form.
func asWritten(whole, fraction []byte) bool {
	n := len(fraction)
	return n > 0 && n < maxFractionDigits && fraction[n-1] != '0' && (whole[0] != '0' || fraction[0] != '0')
}

// digits is the run of decimal digits at the start of s.
func digits(s []byte) []byte {
	n := 0
	for n < len(s) && s[n]-'0' <= 9 {
		n++
	}
	return s[:n]
}

// readExponent reads what follows the e and gives its length, 0 if it is no exponent.
func readExponent(s []byte) (exponent, size int) {
	negative := false
	if len(s) > 0 && (s[0] == '+' || s[0] == '-') {
		negative = s[0] == '-'
		size = 1
	}
	run := digits(s[size:])
	if len(run) == 0 {
		return 0, 0
	}
	for _, c := range run {
		exponent = min(exponent*10+int(c-'0'), maxExponent)
	}
	if negative {
		exponent = -exponent
	}
	return exponent, size + len(run)
}

// decimal writes whole.fraction × 10^exponent.
func (w *writer) decimal(at int, negative bool, whole, fraction []byte, exponent int) error {
	point := len(whole) + exponent // the value is 0.DIGITS × 10^point
	whole, fraction, stripped := significant(whole, fraction)
	count := len(whole) + len(fraction)
	if count == 0 {
		w.out = append(w.out, '0')
		return nil
	}
	point -= stripped
	if point > maxIntegerDigits || count-point > maxFractionDigits {
		return refuse(at, outOfRange)
	}
	w.sign(negative)
	switch {
	case point < minPlainPoint || point > maxPlainPoint:
		w.digits(whole, fraction, 0, 1)
		if count > 1 {
			w.out = append(w.out, '.')
			w.digits(whole, fraction, 1, count)
		}
		w.out = append(w.out, 'e')
		if point > 0 {
			w.out = append(w.out, '+')
		}
		w.out = strconv.AppendInt(w.out, int64(point-1), 10)
	case point <= 0:
		w.out = append(w.out, '0', '.')
		w.zeros(-point)
		w.digits(whole, fraction, 0, count)
	case point >= count:
		w.digits(whole, fraction, 0, count)
		w.zeros(point - count)
	default:
		w.digits(whole, fraction, 0, point)
		w.out = append(w.out, '.')
		w.digits(whole, fraction, point, count)
	}
	return nil
}

// significant takes leading and trailing zeros off a digit string that is given in two parts, and
// counts the leading ones.
func significant(whole, fraction []byte) (w, f []byte, stripped int) {
	w = bytes.TrimLeft(whole, "0")
	stripped, f = len(whole)-len(w), fraction
	if len(w) == 0 {
		f = bytes.TrimLeft(fraction, "0")
		stripped += len(fraction) - len(f)
	}
	f = bytes.TrimRight(f, "0")
	if len(f) == 0 {
		w = bytes.TrimRight(w, "0")
	}
	return w, f, stripped
}

func (w *writer) sign(negative bool) {
	if negative {
		w.out = append(w.out, '-')
	}
}

// digits writes positions from to to of the digit string whole‖fraction.
func (w *writer) digits(whole, fraction []byte, from, to int) {
	n := len(whole)
	w.out = append(w.out, whole[min(from, n):min(to, n)]...)
	w.out = append(w.out, fraction[max(from-n, 0):max(to-n, 0)]...)
}

func (w *writer) zeros(n int) {
	const twenty = "00000000000000000000" // no plain layout needs more
	w.out = append(w.out, twenty[:n]...)
}
