package load

import "time"

// SetClock gives a guard another clock.
func SetClock(g *Guard, now func() time.Time) { g.now = now }
