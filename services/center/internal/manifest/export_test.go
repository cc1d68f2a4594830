package manifest

import (
	"time"

	"lockstep.dev/pkg/claim"
)

// Counted runs fn between the count and the read of the source.
func Counted(m *Materialiser, fn func()) { m.counted = fn }

// SpillAnywhere takes any folder, also one in memory.
func SpillAnywhere(m *Materialiser, dir string) { m.SpillDir, m.spillInMemory = dir, true }

// MayPause bounds how long a guard may hold a read up.
func MayPause(m *Materialiser, d time.Duration) { m.mayPause = d }

// TooSlow is the refusal of a set that the rate makes too slow to read.
func TooSlow(m *Materialiser, rows int64) error { return m.tooSlow(rows) }

// TakeTurn has the rate as a read of rows would.
func TakeTurn(m *Materialiser, rows int64) (done func(), err error) { return m.turn(rows) }

// Paused is what a pause of one reader counts while atWork of them read.
func Paused(m *Materialiser, atWork int, pause time.Duration) time.Duration {
	p := m.newPace(claim.Claim{}, nil)
	p.count(atWork)
	p.spend(pause)
	return p.paused
}
