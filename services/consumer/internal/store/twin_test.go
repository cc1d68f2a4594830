package store_test

import (
	"cmp"
	"fmt"

	"github.com/google/uuid"

	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/work"
)

// twin is the dumb twin of the work table: what rows do, in plain words and
// without any code of the store or the state table.
type twin struct{ rows []*twinRow }

type twinRow struct {
	id             uuid.UUID
	in             *protocol.Instruction
	state          string
	attempt        int
	wanted         int
	retries, tries int
	token          int // number of the claim that holds it, 0 for none
	over           bool
	page           int
	frozen         int // attempt of the stored report, 0 for none
	ledger         int // keys
}

const twinRetries = 2

func (r *twinRow) String() string {
	return fmt.Sprintf("%s attempt %d of %d retries %d tries %d claimed %t over %t page %d report %d ended %t ledger %d",
		r.state, r.attempt, r.wanted, r.retries, r.tries, r.token != 0, r.over, r.page, r.frozen, r.ended(), r.ledger)
}

func (r *twinRow) ended() bool {
	return r.state == "COMPLETED" || r.state == "PARTIAL" || r.state == "FAILED" || r.state == "CANCELLED"
}

func (r *twinRow) leave(state string) { r.state, r.token, r.over = state, 0, false }

func (r *twinRow) accept(attempt int) {
	if attempt <= r.wanted {
		return
	}
	r.wanted, r.retries, r.tries = attempt, 0, 0
	switch {
	case r.token != 0 && !r.over: // its worker is not disturbed
	case r.state == "REPORTING":
		r.leave("REPORTING")
	default:
		r.leave("QUEUED")
	}
}

// claim gives the row that a claim takes, the first by id.
func (w *twin) claim(token int, reportsOnly bool) *twinRow {
	var first *twinRow
	for _, r := range w.rows {
		due := r.token == 0 && (r.state == "REPORTING" || r.state == "QUEUED" && !reportsOnly)
		if due && (first == nil || cmp.Less(r.id.String(), first.id.String())) {
			first = r
		}
	}
	if first != nil {
		first.token, first.over, first.attempt = token, false, first.wanted
		if first.state == "QUEUED" {
			first.state = "RUNNING"
		}
	}
	return first
}

func (w *twin) sweep() (swept int) {
	for _, r := range w.rows {
		if r.token == 0 || !r.over {
			continue
		}
		swept++
		r.tries++
		if r.state == "RUNNING" {
			r.leave("QUEUED")
		} else {
			r.leave("REPORTING")
		}
	}
	return swept
}

// step is an owner's; false where its row is in no state for it.
func (r *twinRow) step(e work.Event) bool {
	switch e { //nolint:exhaustive // a worker makes no others
	case work.RoundDone:
		if r.state != "RUNNING" {
			return false
		}
		r.attempt, r.retries, r.tries, r.page = r.wanted, 0, 0, r.page+1
	case work.RoundFailed, work.AckLost:
		if (r.state == "RUNNING") != (e == work.RoundFailed) {
			return false
		}
		switch {
		case r.retries >= twinRetries:
			r.leave("PARKED")
		case r.state == "RUNNING":
			r.retries++
			r.leave("QUEUED")
		default:
			r.retries++
			r.leave("REPORTING")
		}
	case work.GivenBack:
		if r.state == "RUNNING" {
			r.leave("QUEUED")
		} else {
			r.leave("REPORTING")
		}
	case work.Stale:
		if r.wanted == r.attempt {
			r.leave("PARKED")
		}
		r.attempt = r.wanted
	case work.Unknown:
		r.leave("PARKED")
	case work.EndCompleted:
		r.leave("COMPLETED")
	case work.EndCancelled:
		r.leave("CANCELLED")
	case work.Frozen:
		r.state, r.attempt, r.retries, r.tries, r.frozen = "REPORTING", r.wanted, 0, 0, r.wanted
	}
	return true
}

// waits is the answer to a WAITING report of an attempt, false where it is about the past.
func (r *twinRow) waits(attempt int, e work.Event) bool {
	if r.state != "QUEUED" || r.wanted != attempt {
		return false
	}
	r.attempt = r.wanted
	return r.step(e)
}
