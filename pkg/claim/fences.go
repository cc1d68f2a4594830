package claim

import (
	"sync"
	"sync/atomic"
)

// fences counts, by the name of a site, how often this process found a claim
// owned by somebody else. It is of the process, as the claims are.
var fences sync.Map // string → *atomic.Int64

// Fenced counts a fence at the site and is ErrFenced, for those who find
// otherwise than by a write that a row has another owner.
func (s Site) Fenced() error {
	count, _ := fences.LoadOrStore(s.Name, new(atomic.Int64))
	if n, ok := count.(*atomic.Int64); ok {
		n.Add(1)
	}
	return ErrFenced
}

// Fences is how often workers of this process were fenced at the site.
func (s Site) Fences() int64 {
	if count, ok := fences.Load(s.Name); ok {
		if n, ok := count.(*atomic.Int64); ok {
			return n.Load()
		}
	}
	return 0
}
