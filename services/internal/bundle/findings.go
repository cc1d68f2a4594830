package bundle

import (
	"fmt"
	"time"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
)

// Findings say in sentences what a bundle proves and what it does not.
type Findings struct {
	TaskID    string   `json:"task_id"`
	Proven    []string `json:"proven"`
	NotProven []string `json:"not_proven"`
}

func (f *Findings) prove(format string, args ...any) {
	f.Proven = append(f.Proven, fmt.Sprintf(format, args...))
}

func (f *Findings) leave(format string, args ...any) {
	f.NotProven = append(f.NotProven, fmt.Sprintf(format, args...))
}

func when(at time.Time) string { return at.UTC().Format(time.RFC3339) }

func (f *Findings) header(d *protocol.Header) {
	f.TaskID = d.At.TaskID
	what := fmt.Sprintf("tenant %d, %s", d.At.TenantID, d.At.CollectionID)
	if d.Scope == protocol.Record {
		what += ", record " + d.Key
	}
	f.prove("%s signed at %s that its rows of %s, read at %s, are %d with the root %x, for %s in task %s",
		d.At.Source, when(d.IssuedAt), what, when(d.WindowStart), d.RowCount, d.Root, d.At.Consumer, d.At.TaskID)
}

func (f *Findings) report(d *protocol.Report) {
	f.prove("%s signed at %s that attempt %d ended %s, having compared %s: %d rows of the center's, %d of its own; %d differences are open",
		d.At.Consumer, when(d.IssuedAt), d.Attempt, d.State, d.Verified, d.CenterScanned, d.LocalScanned, d.Open())
}

func (f *Findings) instruction(d *protocol.Instruction) {
	f.prove("%s signed at %s that this manifest be worked in mode %s, attempt %d", d.At.Source, when(d.IssuedAt), d.Mode, d.Attempt)
}

func (f *Findings) included(key string, n *evidence.Neighbour) {
	deleted := ""
	if n.Row.Deleted {
		deleted = ", deleted"
	}
	f.prove("record %s was among those rows: revision %d%s, content hash %s", key, n.Row.Revision, deleted, n.Row.Hash)
}

func (f *Findings) absent(key string) { f.prove("record %s was not among those rows", key) }

func (f *Findings) wordsAlone(kinds map[string]int64) {
	f.prove("the center signed %d current values, %d absences and %d refusals to state either, each about its record and this task",
		kinds[document.TypeSnapshot], kinds[document.TypeAbsence], kinds[document.TypeUndecidable])
}

func (f *Findings) counted(v *verifier, reported map[protocol.Outcome]int64) {
	f.wordsAlone(v.kinds)
	f.prove("every value gives its content hash, and every absence leads into the root")
	f.prove("the consumer's report counts %d repairs and %d retirements, and each rests on one of these words", reported[protocol.Repaired], reported[protocol.Retired])
	if _, ok := v.reports[v.result.Attempt]; ok {
		f.prove("the center stored the same report as the consumer keeps")
	} else {
		f.report(v.result)
		f.leave("that the center has the report of attempt %d", v.result.Attempt)
	}
}

// rest is what no bundle, or not this one, can show.
func (f *Findings) rest(v *verifier) {
	f.leave("that the center's table held those rows: its signature is its word for it")
	f.leave("that the consumer's table holds what its report says: its signature is its word for it")
	f.leave("when a document was signed, other than by what its signer states in it")
	if v.expect.Source == "" {
		f.leave("that %s is the center: the document says so; name the one you expect", v.header.At.Source)
	}
	if v.headless {
		f.leave("how the manifest is paged and hashed: the bundle is the consumer's and has no header")
	}
	if len(v.reports) == 0 && v.result == nil {
		f.leave("how the task ended: there is no report here")
	}
	if len(v.kinds) == 0 {
		f.leave("which word each repair rests on: the bundle has none of the consumer's words")
		return
	}
	f.leave("what became of each record: the outcome beside a word is bound by the report's counts alone")
	if v.result == nil {
		f.leave("that no word is missing: the bundle has no report of the consumer's to count by")
	}
}
