// Package protocol holds the nouns both services speak of: the closed sets of
// states, classes and outcomes, and one plain struct for each signed document.
//
// It promises that these are the same words in the databases, the contracts
// and the reports. It does no I/O, knows no clock and no wire format; package
// document turns these structs into signed bytes and back.
package protocol

// State of a task at the center. Closed: see package task of the center.
type State string

// The seven states. Only a result report reaches Completed or Partial.
const (
	Queued     State = "QUEUED"
	Dispatched State = "DISPATCHED"
	Running    State = "RUNNING"
	Completed  State = "COMPLETED"
	Partial    State = "PARTIAL"
	Failed     State = "FAILED"
	Cancelled  State = "CANCELLED"
)

// Terminal says whether a task in s has ended for good.
func (s State) Terminal() bool {
	return s == Completed || s == Partial || s == Failed || s == Cancelled
}

// Scope of a request or task.
type Scope string

// All exists in requests only: it becomes one Collection task per subscription.
const (
	All        Scope = "ALL"
	Collection Scope = "COLLECTION"
	Record     Scope = "RECORD"
)

// Mode of a task.
type Mode string

// DryRun classifies and reports; it writes nothing to the projection and fetches nothing.
const (
	Repair Mode = "REPAIR"
	DryRun Mode = "DRY_RUN"
)

// Phase is where a running task is.
type Phase string

// The phases a progress report may state.
const (
	Waiting   Phase = "WAITING"
	Scanning  Phase = "SCANNING"
	Retiring  Phase = "RETIRING"
	Reporting Phase = "REPORTING"
)

// Class of a difference between the frozen manifest and the local image.
type Class string

// The seven classes, in the order in which the first match wins, and
// ClassQuarantined for a record whose content has no hash at the center.
const (
	RevisionZero     Class = "REVISION_ZERO"
	Missing          Class = "MISSING"
	ExtraRow         Class = "EXTRA_ROW"
	LocalAhead       Class = "LOCAL_AHEAD"
	Tombstone        Class = "TOMBSTONE"
	Stale            Class = "STALE"
	HashConflict     Class = "HASH_CONFLICT"
	ClassQuarantined Class = "QUARANTINED"
)

// Classes lists every class in report order.
func Classes() []Class {
	return []Class{Missing, Stale, HashConflict, Tombstone, LocalAhead, ExtraRow, RevisionZero, ClassQuarantined}
}

// Outcome of a difference: the latest thing that is true of it.
type Outcome string

// Open outcomes keep a task from COMPLETED; see Open.
const (
	Repaired    Outcome = "REPAIRED"
	Settled     Outcome = "SETTLED"
	Retired     Outcome = "RETIRED"
	Reported    Outcome = "REPORTED"
	Deferred    Outcome = "DEFERRED"
	Exhausted   Outcome = "EXHAUSTED"
	Quarantined Outcome = "QUARANTINED"
)

// Open says whether a difference with this outcome is still a difference.
func (o Outcome) Open() bool { return o != Repaired && o != Settled && o != Retired }

// Decision is the center's answer to a report.
type Decision string

// The four decisions.
const (
	CurrentAccepted  Decision = "CURRENT_ACCEPTED"
	CurrentDuplicate Decision = "CURRENT_DUPLICATE"
	StaleRetry       Decision = "STALE_RETRY"
	CenterTerminal   Decision = "CENTER_TERMINAL"
)

// Verified says what a run compared.
type Verified string

// Hashes: the consumer's stored hashes. Content: hashes recomputed from its content.
const (
	Hashes  Verified = "HASHES"
	Content Verified = "CONTENT"
)
