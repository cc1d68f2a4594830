package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"lockstep.dev/services/lockstep/internal/demo"
)

// Write prints the result for people, with the ratios to the peers.
func Write(out io.Writer, r *Result) error {
	if r.Reconcile != nil {
		if err := writeReconcile(out, r); err != nil {
			return err
		}
	}
	if r.Refresh != nil {
		if err := writeRefresh(out, r.Refresh); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "On %s, %d CPUs, load average %s when it began; PostgreSQL %s, nothing flushed (fsync off), %s of shared buffers, huge pages %s.\n",
		r.On.System, r.On.CPUs, r.On.Load, r.On.Postgres["server_version"], r.On.Postgres["shared_buffers"], r.On.Postgres["huge_pages"])
	return nil
}

// peerNames are the peers that were measured, in their order.
func (r *Result) peerNames() []string {
	var names []string
	for _, name := range []string{PeerFDW, PeerComparator} {
		if peer, ok := r.Peers[name]; ok && peer.Skipped == "" {
			names = append(names, name)
		}
	}
	return names
}

func writeReconcile(out io.Writer, r *Result) error {
	c := r.Reconcile
	fmt.Fprintf(out, "%d rows, %d differences, median of %d\n\n", c.Rows, c.Diff, c.Repeat)
	names := r.peerNames()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\tseconds\trows/s\tover the wire\t")
	for _, name := range names {
		fmt.Fprintf(w, "%s s\tratio\t", name)
	}
	fmt.Fprintln(w)
	line := func(name string, seconds float64, wire int64, of func(Peer) float64) {
		bytes := "·"
		if wire > 0 {
			bytes = demo.Bytes(wire)
		}
		fmt.Fprintf(w, "%s\t%.2f\t%s\t%s\t", name, seconds, rate(c.Rows, seconds), bytes)
		for _, peer := range names {
			took := of(r.Peers[peer])
			fmt.Fprintf(w, "%s\t%s\t", figure(took), ratio(seconds, took))
		}
		fmt.Fprintln(w)
	}
	line("materialise", c.MaterialiseSeconds, 0, func(Peer) float64 { return 0 })
	line("equal", c.EqualSeconds, c.EqualWireBytes, func(p Peer) float64 { return p.EqualSeconds })
	line("scattered", c.ScatteredSeconds, 0, func(p Peer) float64 { return p.EqualSeconds })
	line("content", c.ContentSeconds, c.ContentWireBytes, func(p Peer) float64 { return p.ContentSeconds })
	line("find", c.FindSeconds, c.FindWireBytes, func(p Peer) float64 { return p.FindSeconds })
	line("repair", c.RepairSeconds, c.RepairWireBytes, func(p Peer) float64 { return p.RepairSeconds })
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d repaired, %s repairs/s; %d retired, %d reported. Most memory: center %s, consumer %s.\n",
		c.Repaired, rate(int(c.Repaired), c.RepairSeconds), c.Retired, c.Reported, demo.Bytes(c.CenterRSSBytes), demo.Bytes(c.ConsumerRSSBytes))
	for _, name := range slices.Sorted(maps.Keys(r.Peers)) {
		if why := r.Peers[name].Skipped; why != "" {
			fmt.Fprintf(out, "%s was skipped: %s.\n", name, why)
		}
	}
	fmt.Fprintln(out, "Each task but its manifest, from the manifest's freezing to the acceptance of the report; content with its manifest.")
	fmt.Fprintf(out, "scattered: equal sets after writes to %d rows that no VACUUM followed. content: equal sets, content hashed on both sides.\n", c.ScatteredRows)
	fmt.Fprintln(out)
	return nil
}

func rate(n int, seconds float64) string {
	if seconds <= 0 {
		return "·"
	}
	perSecond := float64(n) / seconds
	if perSecond >= 10_000 {
		return fmt.Sprintf("%.0fk", perSecond/1000)
	}
	return fmt.Sprintf("%.0f", perSecond)
}

func figure(seconds float64) string {
	if seconds == 0 {
		return "·"
	}
	return fmt.Sprintf("%.2f", seconds)
}

func ratio(own, other float64) string {
	if other == 0 {
		return "·"
	}
	return fmt.Sprintf("%.2f", own/other)
}

func writeRefresh(out io.Writer, r *Refresh) error {
	statements := "not counted: " + strings.TrimPrefix(r.StatementsBy, "nobody: ")
	if r.StatementsPerScope != nil {
		statements = fmt.Sprintf("%.2f, by %s", *r.StatementsPerScope, r.StatementsBy)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "refresh\t%d scopes, %d differences, median of %d\n", r.Scopes, r.Differences, r.Repeat)
	fmt.Fprintf(w, "seconds\t%.2f\n", r.Seconds)
	fmt.Fprintf(w, "differences a second\t%.0f\n", r.DifferencesPerSecond)
	fmt.Fprintf(w, "statements a scope\t%s\n", statements)
	fmt.Fprintf(w, "most memory\t%s\n", demo.Bytes(r.RSSBytes))
	if l := r.LargeScope; l != nil {
		kept := "kept"
		if !l.LeaseKept {
			kept = "LOST"
		}
		fmt.Fprintf(w, "one scope of %d\t%.2f s; its lease of %.0f s was %s, at least %.1f s were left; %s of memory\n",
			l.Differences, l.Seconds, l.LeaseSeconds, kept, l.LeastLeaseSeconds, demo.Bytes(l.RSSBytes))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out)
	return err
}
