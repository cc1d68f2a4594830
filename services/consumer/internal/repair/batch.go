package repair

import (
	"context"
	"errors"

	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/lockstep"
	"lockstep.dev/services/consumer/internal/store"
)

// Asked are differences about which the center was asked, and its words.
type Asked struct {
	rows  []*row // to be acted upon
	words map[string]*word
	// noted and conflicts are written down first: what is only reported, and what
	// contradicts the center.
	noted     []store.Entry
	conflicts []*row
	err       error // why there are no words about rows
}

// Differences counts what the effects of a are about.
func (a *Asked) Differences() int { return len(a.noted) + len(a.rows) }

// Ask asks the center about differences, of which the caller gives at most
// MaxBatch that are not OnlyNoted, and hands on what
// Apply needs, in pieces as large as the answers: so a piece is bounded in
// bytes. It changes nothing, and may be ahead of the effects of other
// differences: no key is in two batches of a scan. Where the center declines,
// the piece says so too, and Ask ends with its error.
func (r *Repairer) Ask(ctx context.Context, t *Task, diffs []lockstep.Difference, take func(*Asked) error) error {
	rows, marks, err := r.unfinished(ctx, t, diffs)
	if err != nil || len(rows) == 0 {
		return err
	}
	a := &Asked{}
	var wanted []*row
	for _, d := range rows {
		if OnlyNoted(d.class, t.Work.Mode) {
			a.noted = append(a.noted, d.noted(t.Work.Mode))
			continue
		}
		wanted = append(wanted, d)
		if d.class == protocol.HashConflict {
			a.conflicts = append(a.conflicts, d)
		}
	}
	if len(wanted) == 0 {
		return take(a)
	}
	allowed := 0
	for ; len(wanted) > 0; a, marks = new(Asked), nil {
		if allowed == 0 {
			if allowed, err = r.Limit.take(ctx, t, len(wanted)); err != nil {
				return err
			}
		}
		n := min(allowed, len(wanted))
		a.words = make(map[string]*word, n)
		var rest []*row
		if rest, a.err = r.askSome(ctx, t, wanted[:n:n], marks, a.words); a.err != nil {
			a.rows = wanted
			return errors.Join(take(a), a.err)
		}
		for _, d := range wanted[:n] {
			if a.words[d.key] != nil {
				a.rows = append(a.rows, d)
			}
		}
		allowed -= len(a.rows)
		wanted = append(rest, wanted[n:]...)
		if err := take(a); err != nil {
			return err
		}
	}
	return nil
}

// Apply brings what was asked about to an outcome. A DeferredError ends the run;
// every other error fails the round, and what was done before it stands in the
// ledger. What is to be asked again it asks itself.
func (r *Repairer) Apply(ctx context.Context, t *Task, a *Asked) error {
	// Read behind the words: a row that is now as it was then is older than they are.
	stored, err := r.Projection.Rows(ctx, t.Work.TenantID, keysOf(append(a.rows[:len(a.rows):len(a.rows)], a.conflicts...)), r.Content)
	if err != nil {
		return err
	}
	entries, conflicts := r.contradictions(t, a.conflicts, stored)
	if err := r.record(ctx, t, append(a.noted, entries...), nil, conflicts); err != nil {
		return err
	}
	if gone := (*DeferredError)(nil); errors.As(a.err, &gone) {
		return errors.Join(gone, r.deferRows(ctx, t, a.rows, gone.Code))
	}
	if a.err != nil {
		return a.err
	}
	again, err := r.decideAll(ctx, t, a.rows, a.words, stored)
	if err != nil {
		return err
	}
	return r.settle(ctx, t, again, 1)
}
