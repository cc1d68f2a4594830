// Package world makes the example data of the demo: forms and answers of a
// system of record, a host application's projection of them, and the damage
// done to it. Everything follows from one seed and the number of rows, so that
// what a reconciliation must find is known before it runs.
//
// It is pure: it does no I/O and knows no clock.
package world

import (
	"fmt"

	"lockstep.dev/pkg/protocol"
)

// MinRows leaves every form room for its damage many times over.
const MinRows = 2000

// MaxRows is what one machine holds comfortably while people watch.
const MaxRows = 400_000

// Damage is how many rows of each kind a form's projection is given.
type Damage struct {
	Missing      int // deleted from the projection
	Stale        int // the projection kept an older revision
	HashConflict int // same revision, other content
	Tombstone    int // one side says deleted, the other does not
	LocalAhead   int // the projection claims a revision the center never had
	ExtraOld     int // only in the projection, from before the manifest
	ExtraNew     int // only in the projection, from after the manifest
	RevisionZero int // differs, and the center never kept its revision
	Unrepairable int // the center's content is larger than the host stores
}

// Form is one collection with its damage.
type Form struct {
	TenantID   int64
	Collection string
	Title      string
	Damage     Damage
}

// Forms lists the forms of the example in the order of the results. No two
// have the same damage, so that figures of the wrong form are noticed. Extra
// rows stay at or below 20 a form: above that, retiring asks for an operator.
func Forms() []Form {
	return []Form{
		{101, "course-feedback", "Course feedback", Damage{
			Missing: 12, Stale: 15, HashConflict: 9, Tombstone: 7, LocalAhead: 5,
			ExtraOld: 6, ExtraNew: 3, RevisionZero: 4, Unrepairable: 1,
		}},
		{101, "enrolment", "Enrolment", Damage{Missing: 10, Stale: 8, HashConflict: 6, Tombstone: 4, ExtraOld: 5}},
		{102, "health-check", "Health check", Damage{Missing: 14, Stale: 11, HashConflict: 3, Tombstone: 6, ExtraOld: 8}},
		{102, "parents-survey", "Parents' survey", Damage{Missing: 7, Stale: 13, HashConflict: 5, Tombstone: 2, ExtraOld: 4}},
	}
}

// TotalDamage adds up the damage of all forms.
func TotalDamage() (d Damage) {
	for _, form := range Forms() {
		d.Missing += form.Damage.Missing
		d.Stale += form.Damage.Stale
		d.HashConflict += form.Damage.HashConflict
		d.Tombstone += form.Damage.Tombstone
		d.LocalAhead += form.Damage.LocalAhead
		d.ExtraOld += form.Damage.ExtraOld
		d.ExtraNew += form.Damage.ExtraNew
		d.RevisionZero += form.Damage.RevisionZero
		d.Unrepairable += form.Damage.Unrepairable
	}
	return d
}

// Mended says whether a repair can put everything right.
func (d Damage) Mended() bool { return d.LocalAhead+d.ExtraNew+d.RevisionZero+d.Unrepairable == 0 }

// onCenter is how many of the center's rows the damage concerns.
func (d Damage) onCenter() int {
	return d.Missing + d.Stale + d.HashConflict + d.Tombstone + d.LocalAhead + d.RevisionZero + d.Unrepairable
}

// Expected is what one task must report.
type Expected struct {
	State       protocol.State
	Found       map[protocol.Class]int
	Repaired    int
	Retired     int
	Quarantined int
	ReportOnly  int
	// Fetched counts the records asked for by key: everything but what is only
	// reported without a question, which is revision zero.
	Fetched int
}

// Expect says what the task of a form with this damage reports in a round. In
// the first everything is found; later only what stays open is.
func (d Damage) Expect(round int) Expected {
	if round > 1 {
		d = Damage{LocalAhead: d.LocalAhead, ExtraNew: d.ExtraNew, RevisionZero: d.RevisionZero, Unrepairable: d.Unrepairable}
	}
	e := Expected{
		State: protocol.Completed,
		Found: map[protocol.Class]int{
			protocol.Missing: d.Missing,
			// An answer that grew too large for the host is stale there for ever.
			protocol.Stale:        d.Stale + d.Unrepairable,
			protocol.HashConflict: d.HashConflict,
			protocol.Tombstone:    d.Tombstone,
			protocol.LocalAhead:   d.LocalAhead,
			protocol.ExtraRow:     d.ExtraOld + d.ExtraNew,
			protocol.RevisionZero: d.RevisionZero,
		},
		Repaired:    d.Missing + d.Stale + d.HashConflict + d.Tombstone,
		Retired:     d.ExtraOld,
		Quarantined: d.Unrepairable,
		ReportOnly:  d.LocalAhead + d.ExtraNew + d.RevisionZero,
	}
	e.Fetched = e.Repaired + e.Retired + e.Quarantined + e.ReportOnly - d.RevisionZero
	if !d.Mended() {
		e.State = protocol.Partial
	}
	return e
}

// Classes are the seven difference classes in the order of the tables.
func Classes() []protocol.Class {
	return []protocol.Class{
		protocol.Missing, protocol.Stale, protocol.HashConflict, protocol.Tombstone,
		protocol.LocalAhead, protocol.ExtraRow, protocol.RevisionZero,
	}
}

// CheckRows refuses a number of rows that the example can't be made with.
func CheckRows(rows int) error {
	if rows < MinRows || rows > MaxRows {
		return fmt.Errorf("rows: %d is not between %d and %d", rows, MinRows, MaxRows)
	}
	return nil
}
