// Package explain says in what, and probably why, the two sides' forms of one
// record differ. It is pure: it reads two answers and decides nothing.
package explain

import (
	"fmt"

	"lockstep.dev/pkg/canon"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// Cause is a likely cause, one word or two.
type Cause string

// The causes, from the outside in.
const (
	None           Cause = ""
	MissingHere    Cause = "missing at the consumer"
	MissingThere   Cause = "missing at the center"
	Collection     Cause = "another collection"
	Retired        Cause = "retired"
	NoForm         Cause = "no canonical form"
	Revision       Cause = "revision"
	Tombstone      Cause = "tombstone"
	StoredHash     Cause = "stored hash"
	MissingKey     Cause = "missing key"
	Kind           Cause = "kind of value"
	Precision      Cause = "precision"
	Number         Cause = "number"
	Case           Cause = "case"
	Normalisation  Cause = "normalisation"
	Space          Cause = "white space"
	Text           Cause = "text"
	Order          Cause = "order of elements"
	ElementMissing Cause = "number of elements"
)

// Finding is what was found out. It holds content: for the operator who asked.
type Finding struct {
	// Equal: the two sides hold the same value, and the consumer a hash that says so.
	Equal bool `json:"equal"`
	// Path to the first difference of the contents, such as $.lines[2].price, and
	// its byte in the canonical forms; "" where they do not differ.
	Path   string `json:"path,omitempty"`
	Offset int    `json:"offset,omitempty"`
	// Center and Consumer are the two values there, cut short.
	Center   string `json:"center,omitempty"`
	Consumer string `json:"consumer,omitempty"`
	Cause    Cause  `json:"cause,omitempty"`
	Advice   string `json:"advice,omitempty"`
}

// Compare finds the first thing that keeps the two sides from being equal.
func Compare(center *centerv1.ExplainRecordResponse, local *consumerv1.ExplainRecordResponse, collection string) Finding {
	switch {
	case !center.GetFound() && !local.GetFound():
		return Finding{Equal: true}
	case !center.GetFound():
		return Finding{Cause: MissingThere, Advice: "a reconciliation retires the row once the center has proved the absence" + elsewhere(center)}
	case !local.GetFound():
		return Finding{Cause: MissingHere, Advice: "replay the record, or reconcile it"}
	case local.GetCollectionId() != collection:
		return Finding{Cause: Collection, Advice: fmt.Sprintf("the consumer holds the key in collection %s: no repair gets past that", local.GetCollectionId())}
	case local.GetRetiredAt() != nil:
		return Finding{Cause: Retired, Advice: retiredAdvice(local)}
	case center.GetRefused() != "":
		return Finding{Cause: NoForm, Center: center.GetRefused(), Advice: "the center's content can't be hashed, so the record is quarantined until it is mended there"}
	case local.GetRefused() != "":
		return Finding{Cause: NoForm, Consumer: local.GetRefused(), Advice: "reconcile the record: the center's value replaces the content"}
	}
	f := contents(center.GetCanonical(), local.GetCanonical())
	switch {
	case center.GetRevision() != local.GetRevision():
		f.Equal, f.Cause = false, Revision
		f.Center, f.Consumer = fmt.Sprint(center.GetRevision()), fmt.Sprint(local.GetRevision())
		f.Advice = "a change is on its way, or was not delivered: see the deliveries, replay the record, or reconcile it"
		if local.GetRevision() > center.GetRevision() {
			f.Advice = "the consumer is ahead and is never lowered: was the center restored from a backup, or the row changed by the host?"
		}
	case center.GetDeleted() != local.GetDeleted():
		f.Equal, f.Cause = false, Tombstone
		f.Center, f.Consumer = fmt.Sprintf("deleted=%t", center.GetDeleted()), fmt.Sprintf("deleted=%t", local.GetDeleted())
		f.Advice = "reconcile the record"
	case f.Path == "" && local.GetStoredHash() != center.GetContentHash():
		f.Equal, f.Cause = false, StoredHash
		f.Center, f.Consumer = center.GetContentHash(), local.GetStoredHash()
		f.Advice = "the contents are the same and the stored hash is of another spelling of them (order of keys, white space, form of numbers), " +
			"or stale; the host must hash the canonical form, " + canon.ID
	}
	return f
}

func elsewhere(center *centerv1.ExplainRecordResponse) string {
	if center.GetElsewhere() {
		return "; but the key lives under another tenant or collection there, so it is reported only"
	}
	return ""
}

func retiredAdvice(local *consumerv1.ExplainRecordResponse) string {
	advice := "the center has the record again: a reconciliation brings it back"
	if floor := local.GetHighWater(); floor.GetRetired() {
		advice += fmt.Sprintf("; a delivery does so only above revision %d of center epoch %d", floor.GetRevision(), floor.GetCenterEpoch())
	}
	return advice
}
