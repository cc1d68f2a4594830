package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/store"
)

// verdict is what a word and the local row together call for.
type verdict int

const (
	write      verdict = iota + 1
	settled            // the sides are equal by now
	report             // only noted, with the code
	again              // both sides have to be read again
	contradict         // same revision, other value: note that first, then write
	retire             // local only, and proved so
)

// decide is pure. local is the live row now; d.local is what it was when the
// center was asked, so equal ones mean that the word is newer than the row.
func decide(d *row, local *evidence.Row, w *word) (verdict, fault.Reason) {
	switch {
	case w.rollback:
		return report, fault.RollbackDetected
	case w.undecidable != "":
		return report, w.undecidable
	case w.absence != nil && local == nil:
		return settled, ""
	case w.absence != nil && d.class == protocol.ExtraRow:
		return retire, ""
	case w.absence != nil:
		// The record left the center after the manifest was frozen; the next task retires it.
		return report, fault.RowGone
	case local == nil:
		return write, ""
	}
	s := w.snapshot
	switch {
	case same(local, value(d.key, s)):
		return settled, ""
	case local.Revision < s.Revision:
		return write, ""
	case local.Revision > s.Revision && same(local, d.local):
		if w.overrules(local) {
			return write, ""
		}
		return report, fault.LocalAhead
	case local.Revision > s.Revision:
		return again, ""
	case d.class == protocol.ExtraRow:
		return report, fault.HashConflict
	case local.Deleted != s.Deleted, d.class == protocol.HashConflict && same(local, d.local):
		return write, ""
	default:
		return contradict, ""
	}
}

func value(key string, s *protocol.Snapshot) *evidence.Row {
	return &evidence.Row{Key: key, Revision: s.Revision, Hash: s.Hash, Deleted: s.Deleted}
}

// planned is a write that was decided upon.
type planned struct {
	row  *row
	word *word
	item projection.Item
}

// plan is what becomes of a batch.
type plan struct {
	writes    []planned
	retires   []planned
	entries   []store.Entry
	marks     []store.Mark
	conflicts []*row
	again     []*row
}

// decideAll brings the rows to an outcome and returns those that have none yet.
// stored is what was read of them after the words were had.
func (r *Repairer) decideAll(ctx context.Context, t *Task, rows []*row, words map[string]*word, stored map[string]projection.LocalRow) ([]*row, error) {
	p := r.planAll(t, rows, words, stored)
	// An extra row that moved while it was being decided about is left alone.
	for _, w := range p.retires {
		p.entries = append(p.entries, evidenced(w.row, w.word, protocol.Reported, fault.RevisionMismatch))
	}
	return r.carryOut(ctx, t, p, stored)
}

func (r *Repairer) planAll(t *Task, rows []*row, words map[string]*word, stored map[string]projection.LocalRow) *plan {
	p := &plan{}
	for _, d := range rows {
		w := words[d.key]
		if r.Now().Sub(w.asked) > r.MaxAge {
			p.again = append(p.again, d)
			continue
		}
		expected := projection.Absent()
		if s, ok := stored[d.key]; ok {
			if s.CollectionID != t.Work.CollectionID && w.snapshot != nil {
				p.add(d, w, protocol.Quarantined, fault.ScopeMismatch)
				continue
			}
			expected = s.Expected()
		}
		local := r.live(t, stored, d.key)
		p.decided(d, local, w, projection.Item{Key: d.key, Expected: expected, Snapshot: w.snapshot})
	}
	return p
}

func (p *plan) decided(d *row, local *evidence.Row, w *word, item projection.Item) {
	what, code := decide(d, local, w)
	d.local = local
	if w.snapshot != nil {
		d.center = value(d.key, w.snapshot)
	}
	switch what {
	case contradict:
		p.conflicts = append(p.conflicts, d)
		p.writes = append(p.writes, planned{d, w, item})
	case write:
		p.writes = append(p.writes, planned{d, w, item})
	case retire:
		p.retires = append(p.retires, planned{d, w, item})
	case settled:
		p.add(d, w, protocol.Settled, "")
	case report:
		p.add(d, w, protocol.Reported, code)
	case again:
		p.again = append(p.again, d)
	}
}

func (p *plan) add(d *row, w *word, outcome protocol.Outcome, code fault.Reason) {
	p.entries = append(p.entries, evidenced(d, w, outcome, code))
	// The mark that tells where a row which is ahead has come from stays.
	attributed := code == fault.LocalAhead && w.mark != nil && d.local.Revision <= w.mark.Revision
	if w.snapshot != nil && !w.rollback && !attributed {
		p.marks = append(p.marks, mark(d, w))
	}
}

// evidenced is a ledger row with the word it rests on.
func evidenced(d *row, w *word, outcome protocol.Outcome, code fault.Reason) store.Entry {
	e := d.entry(outcome, code)
	e.Evidence = w.envelope
	switch {
	case w.snapshot != nil:
		e.EvidenceID = w.snapshot.EventID
	case w.absence != nil:
		e.EvidenceID = w.absence.ProofID
	}
	return e
}

func mark(d *row, w *word) store.Mark {
	return store.Mark{Key: d.key, CenterEpoch: w.snapshot.At.CenterEpoch, Revision: w.snapshot.Revision}
}

// carryOut notes, marks and writes; the retirements of a plan are not its business.
func (r *Repairer) carryOut(ctx context.Context, t *Task, p *plan, stored map[string]projection.LocalRow) ([]*row, error) {
	entries, conflicts := r.contradictions(t, p.conflicts, stored)
	if err := r.record(ctx, t, append(p.entries, entries...), p.marks, conflicts); err != nil {
		return nil, err
	}
	missed, err := r.write(ctx, t, p.writes)
	if err != nil {
		return nil, err
	}
	missed, err = r.held(ctx, t, missed)
	if err != nil {
		return nil, err
	}
	for _, m := range missed {
		p.again = append(p.again, m.row)
	}
	return p.again, nil
}

// write repairs rows in one transaction and returns those that were not as
// expected any more. Where the host refuses a row for what it is, the batch is
// halved until that row is alone.
func (r *Repairer) write(ctx context.Context, t *Task, batch []planned) (missed []planned, err error) {
	if len(batch) == 0 {
		return nil, nil
	}
	if r.aged(batch) {
		return batch, nil // halving took long; the words are asked for again
	}
	t.Alive()
	missed, err = r.writeOnce(ctx, t, batch)
	if err == nil || errors.Is(err, claim.ErrFenced) {
		return missed, err
	}
	what := projection.FaultOf(err)
	switch {
	case what != projection.RowsOwn && what != projection.Busy:
		return nil, err
	case len(batch) > 1:
		half := len(batch) / 2
		left, err := r.write(ctx, t, batch[:half])
		if err != nil {
			return nil, err
		}
		right, err := r.write(ctx, t, batch[half:])
		return append(left, right...), err
	case what == projection.Busy:
		return batch, nil
	default:
		return nil, r.note(ctx, t, []store.Entry{evidenced(batch[0].row, batch[0].word, protocol.Quarantined, fault.Quarantined)})
	}
}

// aged says whether a word of the batch is too old to take effect.
func (r *Repairer) aged(batch []planned) bool {
	return slices.ContainsFunc(batch, func(w planned) bool { return r.Now().Sub(w.word.asked) > r.MaxAge })
}

func (r *Repairer) writeOnce(ctx context.Context, t *Task, batch []planned) (missed []planned, err error) {
	items := make([]projection.Item, len(batch))
	for i := range batch {
		items[i] = batch[i].item
	}
	err = r.Store.InEffect(ctx, t.Claim, t.Work, store.RepairPoints, func(e *store.Effect) error {
		missed = missed[:0]
		var keys []string
		err := r.changing(ctx, t, e, plannedKeys(batch), func() (err error) {
			keys, err = r.Projection.Repair(ctx, e.Tx, t.scope(), items)
			return err
		})
		if err != nil {
			return err
		}
		written := make(map[string]bool, len(keys))
		for _, key := range keys {
			written[key] = true
		}
		var entries []store.Entry
		var marks []store.Mark
		for _, w := range batch {
			if !written[w.row.key] {
				missed = append(missed, w)
				continue
			}
			entry := evidenced(w.row, w.word, protocol.Repaired, "")
			entry.Wrote = value(w.row.key, w.word.snapshot)
			entries, marks = append(entries, entry), append(marks, mark(w.row, w.word))
		}
		if len(entries) != len(keys) {
			return fmt.Errorf("repair: %d rows written, %d of them asked for", len(keys), len(entries))
		}
		if err := e.Note(entries); err != nil {
			return err
		}
		e.RaiseHighWater(marks, true)
		return nil
	})
	if errors.Is(err, store.ErrOvertaken) {
		return batch, nil
	}
	return missed, err
}

// held quarantines the missed rows whose key a row of another tenant or
// collection holds: no number of tries gets past it.
func (r *Repairer) held(ctx context.Context, t *Task, missed []planned) ([]planned, error) {
	var keys []string
	for _, m := range missed {
		if m.row.local == nil {
			keys = append(keys, m.row.key)
		}
	}
	if len(keys) == 0 {
		return missed, nil
	}
	holders, err := r.Projection.Holders(ctx, t.scope(), keys)
	if err != nil {
		return nil, err
	}
	var rest []planned
	var entries []store.Entry
	for _, m := range missed {
		if _, ok := holders[m.row.key]; ok && m.row.local == nil {
			entries = append(entries, evidenced(m.row, m.word, protocol.Quarantined, fault.ScopeMismatch))
			continue
		}
		rest = append(rest, m)
	}
	return rest, r.note(ctx, t, entries)
}
