package records

import (
	"fmt"
	"testing"

	"lockstep.dev/pkg/evidence"
)

func TestCut(t *testing.T) {
	made := func(sizes ...int) (answers []Answer, requests []Request) {
		for i, size := range sizes {
			requests = append(requests, Request{Key: fmt.Sprint(i)})
			if size < 0 { // it was not read
				answers = append(answers, Answer{})
				continue
			}
			answers = append(answers, Answer{Key: fmt.Sprint(i), Word: evidence.Envelope{Payload: make([]byte, size)}})
		}
		return answers, requests
	}
	for name, c := range map[string]struct {
		sizes          []int
		fits, leftOver string
	}{
		"all":                     {[]int{0, 0, 0}, "[0 1 2]", "[]"},
		"one too many":            {[]int{200, 200, 200}, "[0 1]", "[2]"},
		"a large one in front":    {[]int{2000, 0, 0}, "[0]", "[1 2]"},
		"a large one in between":  {[]int{0, 2000, 0}, "[0 2]", "[1]"},
		"what was not read":       {[]int{-1, 0, -1}, "[1]", "[0 2]"},
		"a large one that is all": {[]int{2000}, "[0]", "[]"},
	} {
		answers, requests := made(c.sizes...)
		fits, leftOver := cut(answers, requests, 1000)
		keys := make([]string, len(fits))
		for i := range fits {
			keys[i] = fits[i].Key
		}
		if got, left := fmt.Sprint(keys), fmt.Sprint(leftOver); got != c.fits || left != c.leftOver {
			t.Errorf("%s: %s, left over %s, want %s and %s", name, got, left, c.fits, c.leftOver)
		}
	}
}
