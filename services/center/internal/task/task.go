// Package task is the center's task: its nouns and, as one table, every way in
// which its state may move.
//
// It promises that the table is the whole truth: every transition of the
// running system asks Next first. It does no I/O and knows no clock.
package task

import (
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
)

// ManifestState says how far a task's frozen set of rows is.
type ManifestState string

// Purged: the pages went after the retention time; header and results remain.
const (
	ManifestPending  ManifestState = "PENDING"
	ManifestComplete ManifestState = "COMPLETE"
	ManifestFailed   ManifestState = "FAILED"
	ManifestPurged   ManifestState = "PURGED"
)

// Task is one row of the center's queue. Absent times are zero. The claim
// token is never read back into it.
type Task struct {
	ID           uuid.UUID
	Consumer     string
	TenantID     int64
	CollectionID string
	Scope        protocol.Scope
	Key          string // of a RECORD task, as in the API; "" otherwise
	Mode         protocol.Mode

	State   protocol.State
	Code    string // why it ended or waits
	Reason  string
	Attempt int

	GrantEpoch      int64
	CenterEpoch     int64
	BreakerOverride bool
	OverrideReason  string
	CreatedBy       string
	TraceContext    string // of the creation, a W3C traceparent; "" for none

	ManifestState    ManifestState
	ManifestID       uuid.UUID
	ManifestRoot     evidence.Node
	RowCount         int64
	PageRows         int
	PageCount        int
	WindowStart      time.Time
	Header           []byte // the signed header envelope as stored
	MaterialiseTries int

	Slot         *int
	ClaimedBy    string // "" unless a materialiser or dispatcher holds it
	LeaseUntil   time.Time
	DueAt        time.Time
	DispatchedAt time.Time
	WaitingSince time.Time // it was dispatched then and has not run since
	WaitingCode  string

	Progress   []byte // payload of the newest progress report of this attempt
	ProgressAt time.Time

	CreatedAt time.Time
	UpdatedAt time.Time
	EndedAt   time.Time
}

// Coordinates are what every document of the task carries; source is the
// center's app key.
func (t *Task) Coordinates(source string) protocol.Coordinates {
	return protocol.Coordinates{
		Source: source, Consumer: t.Consumer, TaskID: protocol.FormatID(t.ID),
		TenantID: t.TenantID, CollectionID: t.CollectionID,
		GrantEpoch: t.GrantEpoch, CenterEpoch: t.CenterEpoch,
	}
}

// Claimed says whether a materialiser or a dispatcher holds the task.
func (t *Task) Claimed() bool { return t.ClaimedBy != "" }

// Policy holds the bounds that decide a task's way.
type Policy struct {
	MaxAttempts int           // dispatches, and tries to materialise
	Slots       int           // collection tasks in flight for one consumer
	Lease       time.Duration // of the consumer, from report to report
	ClaimLease  time.Duration // of a materialiser or dispatcher
	GiveUp      time.Duration // a dispatched task may wait this long to run
	BackoffBase time.Duration
	BackoffCap  time.Duration
}

// Backoff is the wait after the given number of attempts.
func (p Policy) Backoff(attempts int) time.Duration {
	return Backoff(p.BackoffBase, p.BackoffCap, attempts)
}

// Backoff is base × 2^(attempts−1), at most limit: the first wait is base.
func Backoff(base, limit time.Duration, attempts int) time.Duration {
	wait := base
	for ; attempts > 1 && wait < limit; attempts-- {
		wait *= 2
	}
	return min(wait, limit)
}
