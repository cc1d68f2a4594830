package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/store"
)

// breakerFloor: below this many candidates a percentage says nothing.
const breakerFloor = 20

var (
	// errBreaker rolls the retirement back: too large a share would go.
	errBreaker = errors.New("the retire breaker tripped")
	// errAged: a proof grew too old before it could take effect.
	errAged = errors.New("a proof is older than it may be")
)

// Retire decides about the extra rows of a task whose scans of both sides are
// complete and stored as such. Rows are retired all in one transaction, or none
// is. The code says why none was, where that has a reason; a DeferredError and
// every other error mean the same as Batch's.
func (r *Repairer) Retire(ctx context.Context, t *Task) (code fault.Reason, err error) {
	for try := 0; try <= r.MaxRetries; try++ {
		switch rolledBack, err := r.Store.HasCode(ctx, t.Work, string(fault.RollbackDetected)); {
		case err != nil:
			return "", err
		case rolledBack:
			return fault.RollbackDetected, nil
		}
		code, err := r.retireOnce(ctx, t, try > 0)
		if !errors.Is(err, errAged) && !errors.Is(err, store.ErrOvertaken) {
			return code, err
		}
	}
	return "", &RefusedError{Code: fault.DocumentStale, Why: "the proofs grew old, or were overtaken, before they could be used"}
}

// candidates reads the next extra rows behind a key that are still open, and the
// last key read, "" at the end. Rows an operator brought back are no candidates,
// nor those that turned out to be none before, however often a round fails; nor,
// where only the open ones are wanted, any that a word was had about.
func (r *Repairer) candidates(ctx context.Context, t *Task, after string, onlyOpen bool) (out []*row, last string, err error) {
	batch, err := r.Store.Candidates(ctx, t.Work, after, MaxBatch)
	if err != nil || len(batch) == 0 {
		return nil, "", err
	}
	keys := make([]string, len(batch))
	for i := range batch {
		keys[i] = batch[i].Key
	}
	stored, err := r.Projection.Rows(ctx, t.Work.TenantID, keys, r.Content)
	if err != nil {
		return nil, "", err
	}
	var held []store.Entry
	for _, e := range batch {
		d := &row{key: e.Key, class: protocol.ExtraRow, local: r.live(t, stored, e.Key)}
		switch {
		case d.local != nil && stored[e.Key].Hold:
			held = append(held, d.entry(protocol.Reported, fault.NotRetirable))
		case e.Code == string(fault.NotRetirable), e.Code == string(fault.ScopeMismatch), onlyOpen && e.Code != "":
		default:
			out = append(out, d)
		}
	}
	return out, keys[len(keys)-1], r.note(ctx, t, held)
}

// retireOnce asks about every candidate first, acts on what turned out to be
// something else, piece by piece, and then retires what is left. Of an answer
// nothing but the absence proofs is held until then, and of those no more than
// may be retired: a row that never can be does not count.
func (r *Repairer) retireOnce(ctx context.Context, t *Task, again bool) (fault.Reason, error) {
	var proved []planned
	rolledBack := false
	for after := ""; len(proved) <= r.MaxExtras; {
		candidates, last, err := r.candidates(ctx, t, after, again)
		if err != nil {
			return "", err
		}
		if last == "" {
			break
		}
		after = last
		if err := t.Between(); err != nil {
			return "", err
		}
		some, older, err := r.prove(ctx, t, candidates)
		if err != nil {
			return "", err
		}
		proved, rolledBack = append(proved, some...), rolledBack || older
	}
	switch {
	case rolledBack:
		return fault.RollbackDetected, nil
	case len(proved) > r.MaxExtras:
		return fault.ExtrasLimit, nil
	case len(proved) == 0:
		return "", nil
	}
	err := r.retireAll(ctx, t, proved)
	if errors.Is(err, errBreaker) {
		return fault.RetireBreaker, nil
	}
	return "", err
}

// prove returns the candidates that the center proved absent and that may be
// retired. rolledBack: a word was older than what was stated before.
func (r *Repairer) prove(ctx context.Context, t *Task, candidates []*row) (proved []planned, rolledBack bool, err error) {
	for len(candidates) > 0 {
		words := map[string]*word{}
		rest, err := r.askSome(ctx, t, candidates, nil, words)
		if err != nil {
			return nil, false, err
		}
		answered := make([]*row, 0, len(words))
		for _, d := range candidates {
			if words[d.key] != nil {
				answered = append(answered, d)
			}
		}
		candidates = rest
		for _, w := range words {
			if r.Now().Sub(w.asked) > r.MaxAge {
				return nil, false, errAged
			}
			rolledBack = rolledBack || w.rollback
		}
		stored, err := r.Projection.Rows(ctx, t.Work.TenantID, keysOf(answered), r.Content)
		if err != nil {
			return nil, false, err
		}
		p := r.planAll(t, answered, words, stored)
		if err := r.withhold(ctx, t, p); err != nil {
			return nil, false, err
		}
		left, err := r.carryOut(ctx, t, p, stored)
		if err != nil {
			return nil, false, err
		}
		if err := r.settle(ctx, t, left, 0); err != nil {
			return nil, false, err
		}
		for _, w := range p.retires {
			w.word.absence.Evidence = evidence.Absence{} // verified; the envelope has it
			proved = append(proved, w)
		}
	}
	return proved, rolledBack, nil
}

// withhold reports the proved rows that must not be retired all the same: a
// create time that is missing, or after the manifest was read, says that the
// row may be newer than what the center was asked about.
func (r *Repairer) withhold(ctx context.Context, t *Task, p *plan) error {
	stored, err := r.Projection.Rows(ctx, t.Work.TenantID, plannedKeys(p.retires), false)
	if err != nil {
		return err
	}
	var proved []planned
	for _, w := range p.retires {
		s, ok := stored[w.row.key]
		if ok && (s.Created.IsZero() || s.Created.After(t.Work.WindowStart) || s.Hold) {
			p.entries = append(p.entries, evidenced(w.row, w.word, protocol.Reported, fault.NotRetirable))
			continue
		}
		proved = append(proved, w)
	}
	p.retires = proved
	return nil
}

func plannedKeys(list []planned) []string {
	keys := make([]string, len(list))
	for i := range list {
		keys[i] = list[i].row.key
	}
	return keys
}

// retireAll retires together what the host lets be retired. A row that its own
// table refuses is found by trials that are rolled back, and decided before; one
// that something of the host's holds is waited for a little first.
func (r *Repairer) retireAll(ctx context.Context, t *Task, proved []planned) error {
	for try := 1; len(proved) > 0; try++ {
		err := r.retireTogether(ctx, t, proved)
		if err == nil || errors.Is(err, claim.ErrFenced) {
			return err
		}
		what := projection.FaultOf(err)
		if what != projection.RowsOwn && what != projection.Busy {
			return err
		}
		if what == projection.Busy && try <= r.MaxRetries {
			if err := pause(ctx, try); err != nil {
				return err
			}
			continue
		}
		rest, tried := r.retirable(ctx, t, proved)
		switch {
		case tried != nil:
			return tried
		case len(rest) == len(proved):
			return err // no row's own: nothing is retired
		}
		proved = rest
	}
	return nil
}

// retirable leaves out the rows that the host refuses to retire, and notes them:
// quarantined where it is for what they are, and like any row that moved where
// something of the host's own holds them.
func (r *Repairer) retirable(ctx context.Context, t *Task, proved []planned) (rest []planned, err error) {
	for piece := range slices.Chunk(proved, MaxBatch) {
		refused, err := r.refused(ctx, t, piece)
		if err != nil {
			return nil, err
		}
		if err := r.note(ctx, t, refused); err != nil {
			return nil, err
		}
		for _, w := range piece {
			if !slices.ContainsFunc(refused, func(e store.Entry) bool { return e.Key == w.row.key }) {
				rest = append(rest, w)
			}
		}
	}
	return rest, nil
}

// refused halves the rows until each that the host refuses is alone. Each trial
// may wait for a lock of the host's: that ends when the proofs are too old.
func (r *Repairer) refused(ctx context.Context, t *Task, rows []planned) ([]store.Entry, error) {
	t.Alive()
	err := r.Store.InTrial(ctx, t.Work, func(e *store.Effect) error {
		_, err := r.retireRows(ctx, t, e, rows)
		return err
	})
	if err == nil {
		return nil, nil
	}
	what := projection.FaultOf(err)
	switch {
	case what != projection.RowsOwn && what != projection.Busy:
		return nil, err
	case what == projection.Busy && r.aged(rows):
		return nil, errAged
	case len(rows) > 1:
		half := len(rows) / 2
		left, err := r.refused(ctx, t, rows[:half])
		if err != nil {
			return nil, err
		}
		right, err := r.refused(ctx, t, rows[half:])
		return append(left, right...), err
	case what == projection.Busy:
		return []store.Entry{evidenced(rows[0].row, rows[0].word, protocol.Reported, fault.RevisionMismatch)}, nil
	default:
		return []store.Entry{evidenced(rows[0].row, rows[0].word, protocol.Quarantined, fault.Quarantined)}, nil
	}
}

// retireRows returns the keys of the rows that it retired: those that were
// still as expected.
func (r *Repairer) retireRows(ctx context.Context, t *Task, e *store.Effect, rows []planned) (keys []string, err error) {
	items := make([]projection.RetireItem, len(rows))
	for i, w := range rows {
		items[i] = projection.RetireItem{Key: w.row.key, Expected: w.item.Expected, ProofID: w.word.absence.ProofID}
	}
	err = r.changing(ctx, t, e, plannedKeys(rows), func() (err error) {
		keys, err = r.Projection.Retire(ctx, e.Tx, t.scope(), t.Work.WindowStart, items)
		return err
	})
	return keys, err
}

// retireTogether is the one transaction, in pieces in key order: one order of
// locks, and no statement larger than a repair's.
func (r *Repairer) retireTogether(ctx context.Context, t *Task, proved []planned) error {
	slices.SortFunc(proved, func(a, b planned) int { return strings.Compare(a.row.key, b.row.key) })
	oldest := proved[0].word.asked
	for _, w := range proved {
		if w.word.asked.Before(oldest) {
			oldest = w.word.asked
		}
	}
	return r.Store.InEffect(ctx, t.Claim, t.Work, store.RetirePoints, func(e *store.Effect) error {
		if err := r.breaker(ctx, t, e, oldest); err != nil {
			return err
		}
		retired := 0
		for piece := range slices.Chunk(proved, projection.MaxBatch) {
			n, err := r.retirePiece(ctx, t, e, piece)
			if err != nil {
				return err
			}
			retired += n
		}
		reason := ""
		if t.Work.BreakerOverride {
			reason = "breaker override in the signed instruction"
		}
		return e.Audit(ctx, t.Work.Source, "retire", "task "+t.Work.ID(), fmt.Sprintf("retired %d of %d", retired, len(proved)), reason)
	})
}

// retirePiece retires some of the rows in the one transaction, with their ledger
// rows and floors, and says how many. A row whose version moved is left and noted.
func (r *Repairer) retirePiece(ctx context.Context, t *Task, e *store.Effect, piece []planned) (int, error) {
	t.Alive()
	keys, err := r.retireRows(ctx, t, e, piece)
	if err != nil {
		return 0, err
	}
	gone := make(map[string]bool, len(keys))
	for _, key := range keys {
		gone[key] = true
	}
	var entries []store.Entry
	var floors []store.Mark
	for _, w := range piece {
		if !gone[w.row.key] {
			entries = append(entries, evidenced(w.row, w.word, protocol.Reported, fault.RevisionMismatch))
			continue
		}
		entries = append(entries, evidenced(w.row, w.word, protocol.Retired, ""))
		floors = append(floors, store.Mark{
			Key: w.row.key, CenterEpoch: w.word.centerEpoch(), Revision: w.row.local.Revision, Retired: true,
		})
	}
	if err := e.Note(entries); err != nil {
		return 0, err
	}
	e.RaiseHighWater(floors, true) // a newer word about one of them: all are asked about again
	return len(keys), e.Flush(ctx)
}

// breaker is evaluated inside the retiring transaction, from durable figures
// alone, so that a resumed run forgets nothing. It also looks at the proofs'
// age a last time.
func (r *Repairer) breaker(ctx context.Context, t *Task, e *store.Effect, oldest time.Time) error {
	if r.Now().Sub(oldest) > r.MaxAge {
		return errAged
	}
	// Of a single record's task an operator named the record; the proof still counts.
	if t.Work.Scope == protocol.Record || t.Work.BreakerOverride {
		return nil
	}
	extras, err := e.Extras(ctx, string(fault.NotRetirable))
	if err != nil {
		return err
	}
	scanned, err := e.Scanned(ctx)
	if err != nil {
		return err
	}
	if tripped(extras, scanned, t.Work.RowCount, r.MaxRetirePercent) {
		return errBreaker
	}
	return nil
}

// tripped: an empty manifest facing rows, or too large a share of them.
func tripped(extras, scanned, manifest int64, percent int) bool {
	if manifest == 0 && scanned > 0 {
		return true
	}
	return extras > breakerFloor && extras*100 > scanned*int64(percent)
}
