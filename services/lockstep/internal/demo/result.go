package demo

import (
	"fmt"
	"math"
	"time"

	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/lockstep/internal/api"
	"lockstep.dev/services/lockstep/internal/world"
)

// Result is what the demo found, in the shape of --json.
type Result struct {
	Rows int `json:"rows"`
	// Seconds that the rounds took, without starting, loading and checking.
	Seconds float64 `json:"seconds"`
	Rounds  []Round `json:"rounds"`
	// Refresh is the snapshot refresh's part.
	Refresh *Refresh `json:"refresh"`
}

// Round is one reconciliation of every form.
type Round struct {
	Round   int     `json:"round"`
	Seconds float64 `json:"-"`
	Tasks   []Task  `json:"tasks"`
}

// Task is the result of one form.
type Task struct {
	Tenant     int64          `json:"tenant"`
	Collection string         `json:"collection"`
	State      string         `json:"state"`
	Code       string         `json:"-"`
	Found      map[string]int `json:"found"` // every difference class, by how often it was found
	Repaired   int            `json:"repaired"`
	Retired    int            `json:"retired"`
	// Quarantined and ReportOnly stay open.
	Quarantined int     `json:"quarantined"`
	ReportOnly  int     `json:"report_only"`
	Fetched     int     `json:"fetched"`
	WireBytes   int64   `json:"wire_bytes"`
	Seconds     float64 `json:"seconds"`

	classes map[string]classFigures
	settled int64 // found, and equal by the time of the effect
	undone  int64 // deferred, or out of tries
}

// classFigures is what became of one class.
type classFigures struct{ found, repaired, retired, reported, quarantined int64 }

// taskResult turns an ended task into its line.
func taskResult(t *centerv1.Task) Task {
	figures := t.GetProgress()
	r := Task{
		Tenant: t.GetTenantId(), Collection: t.GetCollectionId(), State: api.Word(t.GetState()), Code: t.GetCode(),
		Found: map[string]int{}, Fetched: int(figures.GetFetched()), WireBytes: figures.GetWireBytes(),
		classes: map[string]classFigures{},
	}
	for _, class := range world.Classes() {
		r.Found[string(class)] = 0
	}
	for _, c := range figures.GetCounts() {
		r.Found[c.GetClass()] += int(c.GetFound())
		r.Repaired += int(c.GetRepaired())
		r.Retired += int(c.GetRetired())
		r.Quarantined += int(c.GetQuarantined())
		r.ReportOnly += int(c.GetReported())
		r.settled += c.GetSettled()
		r.undone += c.GetDeferred() + c.GetExhausted()
		r.classes[c.GetClass()] = classFigures{c.GetFound(), c.GetRepaired(), c.GetRetired(), c.GetReported(), c.GetQuarantined()}
	}
	r.Seconds = seconds(duration(t))
	return r
}

// duration of a task: from its first run to its end.
func duration(t *centerv1.Task) time.Duration {
	started := t.GetProgress().GetStartedAt()
	if started == nil {
		started = t.GetCreatedAt()
	}
	if started == nil || t.GetEndedAt() == nil {
		return 0
	}
	return max(0, t.GetEndedAt().AsTime().Sub(started.AsTime()))
}

// total adds milliseconds, for sums of decimal fractions show their errors.
func total(rounds []Round) float64 {
	var sum time.Duration
	for _, r := range rounds {
		sum += time.Duration(math.Round(r.Seconds*1000)) * time.Millisecond
	}
	return seconds(sum)
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// deviations lists every figure of a task that is not the expected one.
func (r Task) deviations(round int, want world.Expected) []string {
	var out []string
	where := fmt.Sprintf("round %d, tenant %d, %s: ", round, r.Tenant, r.Collection)
	compare := func(what string, expected, got any) {
		if expected != got {
			out = append(out, fmt.Sprintf("%s%s: expected %v, got %v", where, what, expected, got))
		}
	}
	compare("state", string(want.State), r.State)
	for _, class := range world.Classes() {
		compare("found "+string(class), want.Found[class], r.Found[string(class)])
	}
	compare("found "+string(protocol.ClassQuarantined), 0, r.Found[string(protocol.ClassQuarantined)])
	compare("repaired", want.Repaired, r.Repaired)
	compare("retired", want.Retired, r.Retired)
	compare("quarantined", want.Quarantined, r.Quarantined)
	compare("report_only", want.ReportOnly, r.ReportOnly)
	compare("settled", int64(0), r.settled)
	compare("deferred or exhausted", int64(0), r.undone)
	compare("fetched", want.Fetched, r.Fetched)
	return out
}
