package manifest

// Counted runs fn between the count and the read of the source.
func Counted(m *Materialiser, fn func()) { m.counted = fn }
