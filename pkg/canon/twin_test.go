package canon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"sort"
	"strconv"
	"strings"
)

// The dumb twin: the same form by other means. It decodes into a tree, counts in big integers and
// sorts Go strings; it is slow, and has nothing in common with the writer under test.

type object map[string]any

var errTwice = errors.New("a name occurs twice")

// tree decodes with the standard library, which does not mind duplicate names; this does.
func tree(text []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	v, err := subtree(dec)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("something follows")
	}
	return v, nil
}

func subtree(dec *json.Decoder) (any, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := subtree(dec)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := dec.Token()
		return list, err
	case json.Delim('{'):
		obj := object{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, err
			}
			v, err := subtree(dec)
			if err != nil {
				return nil, err
			}
			if _, ok := obj[name.(string)]; ok {
				return nil, errTwice
			}
			obj[name.(string)] = v
		}
		_, err := dec.Token()
		return obj, err
	}
	return tok, nil
}

func twin(text []byte) (string, error) {
	v, err := tree(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	twinWrite(&b, v)
	return b.String(), nil
}

func twinWrite(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		fmt.Fprint(b, v)
	case string:
		twinString(b, v)
	case json.Number:
		b.WriteString(twinNumber(v.String()))
	case []any:
		b.WriteString("[")
		for i, e := range v {
			if i > 0 {
				b.WriteString(",")
			}
			twinWrite(b, e)
		}
		b.WriteString("]")
	case object:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		sort.Strings(names)
		b.WriteString("{")
		for i, name := range names {
			if i > 0 {
				b.WriteString(",")
			}
			twinString(b, name)
			b.WriteString(":")
			twinWrite(b, v[name])
		}
		b.WriteString("}")
	}
}

var twinEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\t': `\t`, '\n': `\n`, '\f': `\f`, '\r': `\r`}

func twinString(b *strings.Builder, s string) {
	b.WriteString(`"`)
	for _, r := range s {
		if e, ok := twinEscapes[r]; ok {
			b.WriteString(e)
		} else if r < 0x20 {
			fmt.Fprintf(b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	b.WriteString(`"`)
}

func twinNumber(s string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	n, ok := new(big.Int).SetString(whole+fraction, 10)
	if !ok {
		return "not a number: " + s
	}
	if n.Sign() == 0 {
		return "0"
	}
	sign := ""
	if n.Sign() < 0 {
		sign = "-"
		n.Neg(n)
	}
	e := 0
	if exponent != "" {
		var err error
		if e, err = strconv.Atoi(exponent); err != nil {
			return "not an exponent: " + s
		}
	}
	e -= len(fraction)
	for ten, rest := big.NewInt(10), new(big.Int); ; e++ {
		q, r := new(big.Int).QuoRem(n, ten, rest)
		if r.Sign() != 0 {
			break
		}
		n = q
	}
	digits := n.String() // the value is digits × 10^e
	point := len(digits) + e
	switch {
	case point > 21 || point < -5:
		if len(digits) > 1 {
			digits = digits[:1] + "." + digits[1:]
		}
		return fmt.Sprintf("%s%se%+d", sign, digits, point-1)
	case e >= 0:
		return sign + digits + strings.Repeat("0", e)
	case point > 0:
		return sign + digits[:point] + "." + digits[point:]
	}
	return sign + "0." + strings.Repeat("0", -point) + digits
}
