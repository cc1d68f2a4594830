package protocol

// Percent is how much of a manifest's rows was scanned, exact: the rows are
// counted before the scan. An empty manifest is scanned when its scan is complete.
func Percent(scanned, rows int64, complete bool) float64 {
	const all = 100
	switch {
	case complete:
		return all
	case rows <= 0 || scanned <= 0:
		return 0
	}
	return min(all, all*float64(scanned)/float64(rows))
}
