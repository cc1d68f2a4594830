package protocol

import (
	"errors"
	"slices"
	"time"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
)

// Coordinates say what a task is about; every document of a task carries them.
type Coordinates struct {
	Source       string // the center's app key
	Consumer     string // the consumer's app key
	TaskID       string // 32 lower-case hex digits
	TenantID     int64
	CollectionID string
	GrantEpoch   int64
	CenterEpoch  int64
}

// Instruction tells a consumer to work a task under an attempt.
type Instruction struct {
	At              Coordinates
	Attempt         int
	Scope           Scope
	Key             string // the record of a RECORD task, as in the API
	Mode            Mode
	WindowStart     time.Time
	ManifestID      string
	ManifestRoot    evidence.Node
	RowCount        int64
	IssuedAt        time.Time
	BreakerOverride bool
}

// Header is the signed head of a frozen set of rows.
type Header struct {
	At              Coordinates
	ManifestID      string
	Scope           Scope
	Key             string
	Mode            Mode
	WindowStart     time.Time // start of the source transaction that read every row
	CanonID         string
	KeyKind         string
	RowCount        int64
	PageRows        int
	PageCount       int
	Root            evidence.Node
	IssuedAt        time.Time
	BreakerOverride bool
}

// Snapshot is a record's current value as the center states it.
type Snapshot struct {
	At            Coordinates
	Key           string
	Revision      int64
	Hash          canon.Hash
	Deleted       bool
	SchemaVersion int64
	Sequence      int64
	Content       []byte // JSON text; nil for SQL NULL
	Nonce         []byte
	EventID       string
	IssuedAt      time.Time
}

// Absence states that the center has no such record in the tenant and
// collection, with the manifest's own evidence that it had none when frozen.
type Absence struct {
	At               Coordinates
	Key              string
	ExpectedRevision int64
	Nonce            []byte
	ProofID          string
	IssuedAt         time.Time
	ManifestID       string
	ManifestRoot     evidence.Node
	Evidence         evidence.Absence
}

// Undecidable states why neither a value nor an absence can be stated.
type Undecidable struct {
	At       Coordinates
	Key      string
	Nonce    []byte
	Code     string // one of UndecidableCodes
	IssuedAt time.Time
}

// UndecidableCodes is the closed list of why nothing can be stated: a center
// signs no other, and a consumer refuses the whole answer for one.
func UndecidableCodes() []string {
	return []string{
		"ORDER_VIOLATION",    // the key is there twice
		"SCOPE_MISMATCH",     // it lives under another tenant or collection
		"ROW_GONE",           // it is in the frozen manifest, and no longer there
		"ROLLBACK_SUSPECTED", // it is not there, and neither is the database that is known
		"REVISION_ZERO",      // no revision was kept of it
		"CANON_REFUSED",      // its content has no canonical form
	}
}

// ClassCount is the ledger's rows of one class, by outcome.
type ClassCount struct {
	Class                                                                              Class
	Found, Repaired, Settled, Retired, Reported, Deferred, Exhausted, QuarantinedCount int64
}

// Open is how many of the class are still differences.
func (c ClassCount) Open() int64 { return c.Reported + c.Deferred + c.Exhausted + c.QuarantinedCount }

// CheckCounts refuses counts that no ledger has.
func CheckCounts(counts []ClassCount) error {
	seen := make(map[Class]bool, len(counts))
	for _, c := range counts {
		if !slices.Contains(Classes(), c.Class) || seen[c.Class] {
			return errors.New("a class is unknown or stated twice")
		}
		seen[c.Class] = true
		if min(c.Found, c.Repaired, c.Settled, c.Retired, c.Reported, c.Deferred, c.Exhausted, c.QuarantinedCount) < 0 {
			return errors.New("a count is negative")
		}
	}
	return nil
}

// ErrorItem names one difference, without content.
type ErrorItem struct {
	Consumer, TaskID, Range, Key string
	Revision                     int64
	Code                         string
}

// Report is the consumer's word on an attempt: progress while RUNNING, else its result.
type Report struct {
	At                          Coordinates
	Attempt                     int
	State                       State
	Phase                       Phase
	Code                        string
	ManifestID                  string
	ManifestRoot                evidence.Node
	CenterScanned, LocalScanned int64
	CenterComplete              bool
	LocalComplete               bool
	Verified                    Verified
	Counts                      []ClassCount
	Fetched                     int64
	WireBytes                   int64
	Resumed                     int
	RetireCode                  string
	Items                       []ErrorItem
	IssuedAt                    time.Time
	StartedAt                   time.Time // zero until the first run
}

// Open is how many differences the report leaves open.
func (r *Report) Open() int64 {
	var n int64
	for _, c := range r.Counts {
		n += c.Open()
	}
	return n
}
