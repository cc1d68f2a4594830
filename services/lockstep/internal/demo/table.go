package demo

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"lockstep.dev/services/lockstep/internal/world"
)

// WriteRound prints a round: what became of each class, then each form's cost.
func WriteRound(out io.Writer, round Round) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "round %d\tfound\trepaired\tretired\treported\tquarantined\t\n", round.Round)
	var total classFigures
	for _, class := range world.Classes() {
		var sum classFigures
		for _, t := range round.Tasks {
			sum = sum.plus(t.classes[string(class)])
		}
		writeClass(w, string(class), sum)
		total = total.plus(sum)
	}
	writeClass(w, "all", total)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "tenant\tform\tstate\topen\tfetched\tover the wire\tseconds\n")
	for _, t := range round.Tasks {
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%s\t%.2f\n", t.Tenant, t.Collection, state(t), t.open(), t.Fetched, Bytes(t.WireBytes), t.Seconds)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s in %.2f s\n\n", Bytes(round.wireBytes()), round.Seconds)
	return err
}

func (c classFigures) plus(o classFigures) classFigures {
	return classFigures{c.found + o.found, c.repaired + o.repaired, c.retired + o.retired, c.reported + o.reported, c.quarantined + o.quarantined}
}

func writeClass(w io.Writer, name string, c classFigures) {
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", name, dash(c.found), dash(c.repaired), dash(c.retired), dash(c.reported), dash(c.quarantined))
}

// dash keeps a table of mostly zeros readable.
func dash(n int64) string {
	if n == 0 {
		return "·"
	}
	return fmt.Sprint(n)
}

func state(t Task) string {
	if t.Code == "" {
		return t.State
	}
	return t.State + " (" + t.Code + ")"
}

func (r Task) open() int { return r.Quarantined + r.ReportOnly + int(r.undone) }

func (r Round) wireBytes() (sum int64) {
	for _, t := range r.Tasks {
		sum += t.WireBytes
	}
	return sum
}

// Bytes says an amount of bytes for people.
func Bytes(n int64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefixes := float64(n)/unit, "kMGT"
	for value >= unit && len(prefixes) > 1 {
		value, prefixes = value/unit, prefixes[1:]
	}
	return strings.Replace(fmt.Sprintf("%.1f %cB", value, prefixes[0]), ".0 ", " ", 1)
}
