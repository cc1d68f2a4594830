package bills

import (
	"cmp"
	"strings"

	"lockstep.dev/pkg/fault"
)

// standing is what a snapshot stands for: a line of a review. Comparable.
type standing struct {
	Line, Progress, Order, Version, Round, Attempt, Plan int64
	Finalized                                            int64 // microseconds since 1970; 0 is none
}

func (s standing) valid() bool {
	return min(s.Line, s.Progress, s.Order, s.Version, s.Round, s.Attempt, s.Plan) > 0 && s.Finalized != 0
}

// standing is what a line of this review would make its snapshot stand for.
func (r *review) standing(line int64) standing {
	return standing{
		Line: line, Progress: int64(r.ProgressID), Order: int64(r.PaymentOrderID), Version: int64(r.DataVersion),
		Round: int64(r.SubmitRound), Attempt: int64(r.ApprovalAttempt), Plan: int64(r.ReviewPlanID),
		Finalized: r.FinalizeTime.UnixMicro(),
	}
}

type verdict int

const (
	allow verdict = iota + 1
	skip          // the snapshot stands for a newer review, or for an equal one of another identity
)

// decide keeps a late review from undoing a newer one. Newer is: finalized
// later, then the larger order, then the larger line.
func decide(candidate, current standing) (verdict, error) {
	switch {
	case !candidate.valid():
		return 0, fault.New(fault.IdentityMismatch, "order line id %d has no complete review identity", candidate.Line)
	case !current.valid(), candidate == current:
		return allow, nil
	case cmp.Or(cmp.Compare(candidate.Finalized, current.Finalized), cmp.Compare(candidate.Order, current.Order),
		cmp.Compare(candidate.Line, current.Line)) > 0:
		return allow, nil
	default:
		return skip, nil
	}
}

// prefixed puts a prefix before each column of the lists.
func prefixed(prefix string, lists ...string) string {
	columns := strings.Split(strings.Join(lists, ","), ",")
	for i, column := range columns {
		columns[i] = prefix + strings.TrimSpace(column)
	}
	return strings.Join(columns, ", ")
}
