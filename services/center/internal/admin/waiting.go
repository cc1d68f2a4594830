package admin

import (
	"fmt"
	"time"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// waitingBecause says in words why nothing moves; "" while something does, and
// of a task that ended. It names no task that the operator may not see.
func (s *Server) waitingBecause(op identity.Operator, t *task.Task, traffic store.Traffic, now time.Time) string {
	switch t.State {
	case protocol.Queued:
		return s.queuedBecause(op, t, traffic, now)
	case protocol.Dispatched:
		if t.WaitingCode == "" {
			return "the consumer has the instruction and has not begun"
		}
		return "the consumer waits: " + t.WaitingCode
	case protocol.Running:
		if t.WaitingCode != "" {
			return "the consumer waits: " + t.WaitingCode
		}
	case protocol.Completed, protocol.Partial, protocol.Failed, protocol.Cancelled:
	}
	return ""
}

func (s *Server) queuedBecause(op identity.Operator, t *task.Task, traffic store.Traffic, now time.Time) string {
	switch {
	case !s.Dispatching:
		return "dispatch is switched off"
	case t.Claimed() && t.LeaseUntil.Before(now):
		return "its worker is gone; the sweep will take it back"
	case t.ManifestState == task.ManifestPending && t.WaitingCode != "":
		return readingBecause(t)
	case t.Claimed() && t.ManifestState == task.ManifestPending:
		return "the manifest is being made"
	case t.Claimed():
		return "" // the instruction is on its way
	case t.DueAt.After(now):
		return fmt.Sprintf("back-off until %s%s", t.DueAt.UTC().Format(time.RFC3339), because(t.Code))
	case t.ManifestState == task.ManifestPending:
		return pendingBecause(op, t, traffic)
	}
	if other, taken := s.inFlight(t, traffic); taken {
		return "another task is in flight" + named(op, other)
	}
	if _, ok := s.Targets[t.Consumer]; !ok {
		return fmt.Sprintf("no target is registered for %s (%s)", t.Consumer, fault.TargetNotRegistered)
	}
	return "it is due and will be dispatched"
}

// readingBecause is about the source: LOAD_GUARD where it has too much to do
// for others, RATE_LIMITED where it is read at limits.source_rows_per_second.
func readingBecause(t *task.Task) string {
	if t.Claimed() {
		return "the manifest is being made, and reading the source waits: " + t.WaitingCode
	}
	return "the manifest is to be made, and reading the source waits: " + t.WaitingCode
}

func because(code string) string {
	if code == "" {
		return ""
	}
	return " after " + code
}

func pendingBecause(op identity.Operator, t *task.Task, traffic store.Traffic) string {
	if ahead := traffic.Ahead; t.Scope == protocol.Collection && ahead != (store.Holder{}) && ahead.ID != t.ID {
		return "the manifest of another task is ready first" + named(op, ahead)
	}
	return "the manifest is to be made"
}

// named tells which task it is, to those who may know.
func named(op identity.Operator, other store.Holder) string {
	if !op.MaySee(other.TenantID) {
		return ""
	}
	return ": " + protocol.FormatID(other.ID)
}

// inFlight gives a task that holds a slot this one would need, where none is free.
func (s *Server) inFlight(t *task.Task, traffic store.Traffic) (other store.Holder, taken bool) {
	first, last := 1, s.Policy.Slots
	if t.Scope == protocol.Record {
		first, last = 0, 0
	}
	for slot := first; slot <= last; slot++ {
		if other, taken = traffic.Slots[slot]; !taken {
			return store.Holder{}, false
		}
	}
	return other, true
}
