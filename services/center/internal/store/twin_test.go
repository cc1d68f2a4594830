package store_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// twin is the dumb twin of the center's tables: what tasks do, in plain words
// and without any code of the store or the state table.
type twin struct {
	tasks  []*twinTask
	grants [2]twinGrant
}

type twinGrant struct {
	on    bool
	epoch int64
}

type twinTask struct {
	id         uuid.UUID
	collection int
	epoch      int64
	state      string
	manifest   string
	code       string // of an ended task
	attempt    int
	tries      int
	token      int // number of the claim that holds it, 0 for none
	over       bool
	slot       bool
	waiting    bool
	tooLong    bool
	result     string
	by         int
}

const twinAttempts = 3

func (t *twinTask) String() string {
	code := ""
	if t.ended() {
		code = t.code
	}
	return fmt.Sprintf("%s %s %s attempt %d tries %d claimed %t over %t slot %t waiting %t %t result %s %d", t.state, t.manifest, code,
		t.attempt, t.tries, t.token != 0, t.over, t.slot, t.waiting, t.waiting && t.tooLong, t.result, t.by)
}

func (t *twinTask) ended() bool {
	return t.state != "QUEUED" && t.state != "DISPATCHED" && t.state != "RUNNING"
}

// goTo is what every change of state does besides.
func (t *twinTask) goTo(state, code string) {
	t.state, t.code, t.token, t.over = state, code, 0, false
	t.slot = state == "DISPATCHED" || state == "RUNNING"
	switch {
	case state == "DISPATCHED" && !t.waiting:
		t.waiting, t.tooLong = true, false
	case state != "DISPATCHED" && state != "QUEUED":
		t.waiting = false
	}
}

// lost says why the task may not go on, "" if it may.
func (w *twin) lost(t *twinTask) string {
	switch g := w.grants[t.collection]; {
	case !g.on:
		return "GRANT_REVOKED"
	case g.epoch != t.epoch:
		return "EPOCH_MOVED"
	}
	return ""
}

func (w *twin) open(collection int) *twinTask {
	for _, t := range w.tasks {
		if t.collection == collection && !t.ended() {
			return t
		}
	}
	return nil
}

func (w *twin) slotTaken() bool {
	return slices.ContainsFunc(w.tasks, func(t *twinTask) bool { return t.slot })
}

// next is the task that a claim takes: those that fit are tried in order, and
// what lost its grant is cancelled on the way.
func (w *twin) next(fits func(*twinTask) bool) *twinTask {
	for {
		var first *twinTask
		for _, t := range w.tasks {
			if t.state == "QUEUED" && t.token == 0 && fits(t) && (first == nil || strings.Compare(t.id.String(), first.id.String()) < 0) {
				first = t
			}
		}
		if first == nil || w.lost(first) == "" {
			return first
		}
		first.goTo("CANCELLED", w.lost(first))
	}
}

func (w *twin) takeManifest(token int) *twinTask {
	t := w.next(func(t *twinTask) bool {
		ahead := func(o *twinTask) bool {
			return o.state == "QUEUED" && o.attempt == 0 && (o.manifest == "COMPLETE" || o.token != 0)
		}
		return t.manifest == "PENDING" && !slices.ContainsFunc(w.tasks, ahead)
	})
	if t != nil {
		t.token, t.over = token, false
	}
	return t
}

func (w *twin) takeDispatch(token int) *twinTask {
	t := w.next(func(t *twinTask) bool { return t.manifest == "COMPLETE" && t.attempt < twinAttempts && !w.slotTaken() })
	if t != nil {
		t.token, t.over, t.slot, t.attempt = token, false, true, t.attempt+1
	}
	return t
}

// fails is a materialiser that failed or died.
func (t *twinTask) fails() {
	t.tries++
	if t.tries < twinAttempts {
		t.goTo("QUEUED", "")
		return
	}
	t.goTo("FAILED", "MATERIALISE_FAILED")
	t.manifest = "FAILED"
}

// again is a dispatch or a run that came to nothing.
func (t *twinTask) again(code string) {
	if t.attempt < twinAttempts {
		t.goTo("QUEUED", "")
		return
	}
	t.goTo("FAILED", code)
}

// sweep is the end of a lease at a site, false where it has none there.
func (t *twinTask) sweep(site string) bool {
	switch {
	case site == "materialise" && t.token != 0 && t.manifest == "PENDING":
		t.fails()
	case site == "dispatch" && t.token != 0 && t.manifest == "COMPLETE":
		t.again("DISPATCH_FAILED")
	case site == "lease" && (t.state == "DISPATCHED" || t.state == "RUNNING"):
		t.again("LEASE_EXPIRED")
	default:
		return false
	}
	return true
}

// report gives the decision, or the code of a refusal.
func (w *twin) report(t *twinTask, attempt int, kind string) string {
	switch {
	case t.ended() && t.result != "" && t.by == attempt:
		return "CURRENT_DUPLICATE"
	case t.ended():
		return "CENTER_TERMINAL"
	case attempt > t.attempt:
		return "ATTEMPT_UNKNOWN"
	case attempt < t.attempt:
		return "STALE_RETRY"
	case w.lost(t) != "":
		t.goTo("CANCELLED", w.lost(t))
		return "CENTER_TERMINAL"
	}
	place := t.slot || !w.slotTaken()
	switch kind {
	case "RUNNING":
		if !place {
			return "STALE_RETRY"
		}
		t.goTo("RUNNING", "")
	case "WAITING":
		switch {
		case t.state == "RUNNING":
			t.goTo("RUNNING", "")
		case t.state == "QUEUED" && (!place || t.waiting && t.tooLong):
			return "STALE_RETRY"
		case t.waiting && t.tooLong:
			t.goTo("FAILED", "GIVEN_UP")
			return "CENTER_TERMINAL"
		default:
			t.goTo("DISPATCHED", "")
		}
	case "COMPLETED, half":
		return "RESULT_INCONSISTENT"
	default:
		code := ""
		if kind == "FAILED" {
			code = "ORDER_VIOLATION"
		}
		t.goTo(kind, code)
		t.result, t.by = kind, attempt
	}
	return "CURRENT_ACCEPTED"
}
