package manifest

import "time"

// Counted runs fn between the count and the read of the source.
func Counted(m *Materialiser, fn func()) { m.counted = fn }

// MayPause bounds how long a guard may hold a read up.
func MayPause(m *Materialiser, d time.Duration) { m.mayPause = d }

// TooSlow is the refusal of a set that the rate makes too slow to read.
func TooSlow(m *Materialiser, rows int64) error { return m.tooSlow(rows) }
