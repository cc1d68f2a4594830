package console

import (
	"cmp"

	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// bar is one difference class of a chart: what became of the rows of it. Places
// and widths are hundredths of the longest bar.
type bar struct {
	Class string
	Found int64
	Parts []barPart
}

type barPart struct {
	Kind     string // a class of the style sheet
	Count    int64
	X, Width float64
}

// least is how wide the smallest part is drawn: one row among a million can be seen.
const least = 0.6

// bars draws counts to one scale.
func bars(counts []*evidencev1.ClassCount) []bar {
	var most int64 = 1
	for _, count := range counts {
		most = max(most, count.GetFound(), sum(partsOf(count)))
	}
	drawn := make([]bar, 0, len(counts))
	for _, count := range counts {
		b := bar{Class: count.GetClass(), Found: count.GetFound()}
		x := 0.0
		for _, part := range partsOf(count) {
			if part.Count <= 0 {
				continue
			}
			part.X, part.Width = x, max(least, 100*float64(part.Count)/float64(most))
			part.Width = min(part.Width, cmp.Or(100-x, least))
			x += part.Width
			b.Parts = append(b.Parts, part)
		}
		drawn = append(drawn, b)
	}
	return drawn
}

func partsOf(c *evidencev1.ClassCount) []barPart {
	return []barPart{
		{Kind: "repaired", Count: c.GetRepaired()},
		{Kind: "settled", Count: c.GetSettled()},
		{Kind: "retired", Count: c.GetRetired()},
		{Kind: "reported", Count: c.GetReported()},
		{Kind: "deferred", Count: c.GetDeferred()},
		{Kind: "exhausted", Count: c.GetExhausted()},
		{Kind: "quarantined", Count: c.GetQuarantined()},
	}
}

func sum(parts []barPart) (all int64) {
	for _, part := range parts {
		all += part.Count
	}
	return all
}
