package report

import (
	"unicode/utf8"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
)

// Limits bound what a report may carry. The report is stored as it was signed,
// so what is over a limit is refused, never cut.
type Limits struct {
	MaxItems int // error items
	MaxChars int // of all error items together
}

// maxWord bounds a code; the longest in use has 24 characters.
const maxWord = 64

// check refuses what no consumer of this protocol says.
func (l Limits) check(r *protocol.Report) error {
	bad := fault.New(fault.InvalidArgument, "the report is malformed")
	if r.Attempt < 1 {
		bad = bad.WithField("report.attempt", "attempts count from 1")
	}
	if r.State != protocol.Running && !r.State.Terminal() {
		bad = bad.WithField("report.state", "a consumer does not report %s", r.State)
	}
	if r.State == protocol.Running && r.Phase == "" {
		bad = bad.WithField("report.phase", "RUNNING says where it is")
	}
	if r.State == protocol.Failed && r.Code == "" {
		bad = bad.WithField("report.code", "FAILED says why")
	}
	if !word(r.Code) || !word(r.RetireCode) {
		bad = bad.WithField("report.code", "a code is upper-case letters and underscores, at most %d", maxWord)
	}
	if r.CenterScanned < 0 || r.LocalScanned < 0 || r.Fetched < 0 || r.WireBytes < 0 || r.Resumed < 0 {
		bad = bad.WithField("report", "a count is negative")
	}
	if err := protocol.CheckCounts(r.Counts); err != nil {
		bad = bad.WithField("report.counts", "%s", err)
	}
	l.checkItems(r, bad)
	if len(bad.Fields) > 0 {
		return bad
	}
	return nil
}

func (l Limits) checkItems(r *protocol.Report, bad *fault.Error) {
	chars := 0
	for _, it := range r.Items {
		chars += utf8.RuneCountInString(it.Consumer) + utf8.RuneCountInString(it.TaskID) + utf8.RuneCountInString(it.Range) +
			utf8.RuneCountInString(it.Key) + utf8.RuneCountInString(it.Code)
		if _, err := protocol.ParseKey(it.Key); it.Key != "" && err != nil {
			bad.Fields = append(bad.Fields, fault.Field{Name: "report.items.key", Message: err.Error()})
		}
		if !word(it.Code) {
			bad.Fields = append(bad.Fields, fault.Field{Name: "report.items.code", Message: "this is no code"})
		}
	}
	if len(r.Items) > l.MaxItems || chars > l.MaxChars {
		bad.Fields = append(bad.Fields, fault.Field{Name: "report.items", Message: "too many items or too long ones; the counts say the rest"})
	}
}

// word says whether s may be a stable code, or none: so no content can hide in it.
func word(s string) bool {
	for _, c := range s {
		if (c < 'A' || c > 'Z') && c != '_' {
			return false
		}
	}
	return len(s) <= maxWord
}

// consistent refuses a COMPLETED that the report itself contradicts.
func consistent(r *protocol.Report) error {
	if r.State != protocol.Completed {
		return nil
	}
	inconsistent := func(why string) error { return fault.New(fault.ResultInconsistent, "COMPLETED, but %s", why) }
	switch {
	case !r.CenterComplete || !r.LocalComplete:
		return inconsistent("a scan is not complete")
	case r.Open() != 0:
		return inconsistent("differences are open")
	}
	for _, c := range r.Counts {
		if c.Found != c.Repaired+c.Settled+c.Retired {
			return inconsistent("the outcomes are not as many as the differences")
		}
	}
	return nil
}
