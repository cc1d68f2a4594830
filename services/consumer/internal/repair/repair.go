// Package repair makes differing rows what the center says they are now, and
// retires rows that it proves it does not have.
//
// It promises: nothing is written but from a word that the center signed for
// this very question, verified item by item, and still fresh when it takes
// effect; every effect names what the local row must still be, is in one short
// transaction with its ledger row, and ends with the check of the claim; a
// local row is never downgraded within a center epoch; one bad row never takes the others with it.
//
//	difference ──known and unchanged──▶ skipped
//	     │  ├──report only──▶ REPORTED
//	     ▼  ▼
//	   ask the center ──equal by now──▶ SETTLED
//	     │ ▲   ├──undecidable──▶ REPORTED
//	     ▼ │   └──grant gone──▶ DEFERRED, and the run ends
//	   write ──not as expected──▶ read both sides again ──too often──▶ EXHAUSTED
//	     ├──the row itself is refused──▶ QUARANTINED
//	     └──▶ REPAIRED
//
// A retirement goes the same way, but all of a task's are one transaction.
package repair

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/center"
	"lockstep.dev/services/consumer/internal/lockstep"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/store"
)

const (
	// MaxBatch is the most differences acted upon at once. While one batch takes
	// effect the next one's words are asked for: after a revocation both may still be
	// written, which together is at most the page of 200 that is promised.
	MaxBatch = 100
	// MaxNoted is the most differences of a batch, with those that are only noted.
	MaxNoted = 400
)

// Repairer repairs and retires.
type Repairer struct {
	Self       string // the consumer's app key
	Center     *center.Client
	Store      *store.Store
	Projection *projection.Projection
	// SourceKeys are the keys that may sign statements of the source now.
	SourceKeys func() []evidence.Key
	// Now has a monotonic reading: ages are measured on this process's own clock.
	Now      func() time.Time
	NewNonce func() ([]byte, error)
	Log      *zap.Logger

	MaxRetries       int
	MaxAge           time.Duration
	MaxExtras        int
	MaxRetirePercent int
	// Content: local hashes are recomputed from the content.
	Content bool
	// Limit holds back what a scan repairs; a row that is tried again, and what is
	// retired in the end, is not held back.
	Limit *Limit
	// Changed, if set, is told of every repair and retirement, in its transaction.
	Changed Changed

	slowed atomic.Pointer[slowed] // of the task whose call failed last
}

// Task is the held row that an effect belongs to.
type Task struct {
	Claim claim.Claim
	Work  *store.Work
	// Fetched counts the records asked for by key.
	Fetched atomic.Int64
	// Alive is told of every call to the center: a slow center is no hung worker.
	Alive func()
	// Between is called between two batches of extra rows; its error ends the retiring.
	Between func() error

	// recordBytes is what the last answers took a record; most is how many records
	// may be asked for at once, 0 before the first call.
	recordBytes atomic.Int64
	most        atomic.Int64
	limited     atomic.Bool
}

func (t *Task) scope() projection.Scope {
	return projection.Scope{TenantID: t.Work.TenantID, CollectionID: t.Work.CollectionID}
}

// DeferredError: the grant is gone or another one. Nothing more can be decided;
// the checkpoint stays where it is.
type DeferredError struct{ Code fault.Reason }

func (e *DeferredError) Error() string { return "deferred: " + string(e.Code) }

// RefusedError: an answer of the center does not verify. Nothing was written.
type RefusedError struct {
	Code fault.Reason
	Key  string // raw; "" where it is no key
	Why  string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("refused an answer about %s: %s: %s", protocol.FormatKey(e.Key), e.Code, e.Why)
}

// row is a difference on its way to an outcome.
type row struct {
	key    string
	class  protocol.Class
	center *evidence.Row // of the manifest, or of the latest word
	local  *evidence.Row // the live row as it was known when the center was asked
}

func (d *row) entry(outcome protocol.Outcome, code fault.Reason) store.Entry {
	return store.Entry{Key: d.key, Class: d.class, Outcome: outcome, Code: string(code), Center: d.center, Local: d.local}
}

// unfinished drops the rows that hold what an earlier effect of this task
// wrote: the manifest is older than they are. The marks of the others come along.
func (r *Repairer) unfinished(ctx context.Context, t *Task, diffs []lockstep.Difference) ([]*row, map[string]store.Mark, error) {
	keys := make([]string, len(diffs))
	for i := range diffs {
		keys[i] = diffs[i].Key()
	}
	known, err := r.Store.Known(ctx, t.Work, keys)
	if err != nil {
		return nil, nil, err
	}
	rows, marks := make([]*row, 0, len(diffs)), make(map[string]store.Mark, len(diffs))
	for i := range diffs {
		d := &row{key: keys[i], class: diffs[i].Class, local: diffs[i].Local}
		if diffs[i].Center != nil {
			d.center = &diffs[i].Center.Row
		}
		if same(d.local, known[d.key].Wrote) && d.local != nil {
			continue
		}
		rows = append(rows, d)
		if mark := known[d.key].Mark; mark != nil {
			marks[d.key] = *mark
		}
	}
	return rows, marks, nil
}

// same compares two live rows of one key; nil is no row.
func same(a, b *evidence.Row) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Revision == b.Revision && a.Hash == b.Hash && a.Deleted == b.Deleted
}

// OnlyNoted says which differences are not acted upon in the scan: extra rows wait
// for the end of both scans, the others only need an entry in the ledger. A class that
// is listed here has its entry in noted.
func OnlyNoted(class protocol.Class, mode protocol.Mode) bool {
	switch class {
	case protocol.ExtraRow, protocol.RevisionZero, protocol.ClassQuarantined:
		return true
	default:
		return mode == protocol.DryRun
	}
}

// noted is the ledger's row of a difference that is only noted.
func (d *row) noted(mode protocol.Mode) store.Entry {
	switch {
	case mode == protocol.DryRun, d.class == protocol.ExtraRow:
		return d.entry(protocol.Reported, "")
	case d.class == protocol.RevisionZero:
		return d.entry(protocol.Reported, fault.RevisionZero)
	default:
		return d.entry(protocol.Quarantined, fault.CanonRefused)
	}
}

// note writes ledger rows that go with no other effect.
func (r *Repairer) note(ctx context.Context, t *Task, entries []store.Entry) error {
	return r.record(ctx, t, entries, nil, nil)
}

// contradictions are what is written down of rows of one revision and another
// value, before anything is done about them: in the ledger, and in the row where
// that is still the one that was compared.
func (r *Repairer) contradictions(t *Task, rows []*row, stored map[string]projection.LocalRow) ([]store.Entry, []projection.Conflict) {
	entries := make([]store.Entry, 0, len(rows))
	conflicts := make([]projection.Conflict, 0, len(rows))
	for _, d := range rows {
		entries = append(entries, d.entry(protocol.Reported, fault.HashConflict))
		if now := r.live(t, stored, d.key); now != nil && same(now, d.local) {
			s := stored[d.key]
			conflicts = append(conflicts, projection.Conflict{Key: d.key, Expected: s.Expected(), Center: *d.center})
		}
	}
	return entries, conflicts
}

// mostBusy is how long marks of contradictions are tried that transactions of the
// host keep from being made: each try may wait for a lock.
const mostBusy = 15 * time.Second

// record writes entries, marks and contradictions in one transaction. Where the
// host refuses a contradiction's mark, they are halved until that row is alone:
// then the contradiction is in the ledger only, and the write that follows tells
// whether the row can be repaired. A mark that a host transaction keeps from
// being made is tried again first, for mostBusy at most.
func (r *Repairer) record(ctx context.Context, t *Task, entries []store.Entry, marks []store.Mark, conflicts []projection.Conflict) error {
	return r.recordUntil(ctx, t, r.Now().Add(mostBusy), entries, marks, conflicts)
}

func (r *Repairer) recordUntil(ctx context.Context, t *Task, until time.Time, entries []store.Entry, marks []store.Mark, conflicts []projection.Conflict) error {
	if len(entries) == 0 {
		return nil
	}
	for try := 1; ; try++ {
		err := r.recordOnce(ctx, t, entries, marks, conflicts)
		if err == nil || len(conflicts) == 0 || errors.Is(err, claim.ErrFenced) {
			return err
		}
		t.Alive()
		what := projection.FaultOf(err)
		switch {
		case what != projection.RowsOwn && what != projection.Busy:
			return err
		case what == projection.Busy && r.Now().After(until):
			return r.recordOnce(ctx, t, entries, marks, nil)
		case len(conflicts) > 1:
			half := len(conflicts) / 2
			theirs, others := apart(entries, conflicts[half:])
			if err := r.recordUntil(ctx, t, until, others, marks, conflicts[:half]); err != nil {
				return err
			}
			return r.recordUntil(ctx, t, until, theirs, nil, conflicts[half:])
		case what == projection.RowsOwn || try > r.MaxRetries:
			return r.recordOnce(ctx, t, entries, marks, nil)
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// apart parts the entries of the contradictions from the others.
func apart(entries []store.Entry, conflicts []projection.Conflict) (theirs, others []store.Entry) {
	for i := range entries {
		if slices.ContainsFunc(conflicts, func(c projection.Conflict) bool { return c.Key == entries[i].Key }) {
			theirs = append(theirs, entries[i])
		} else {
			others = append(others, entries[i])
		}
	}
	return theirs, others
}

func (r *Repairer) recordOnce(ctx context.Context, t *Task, entries []store.Entry, marks []store.Mark, conflicts []projection.Conflict) error {
	return r.Store.InEffect(ctx, t.Claim, t.Work, store.RepairPoints, func(e *store.Effect) error {
		if _, err := r.Projection.MarkConflict(ctx, e.Tx, t.scope(), conflicts); err != nil {
			return err
		}
		if err := e.Note(entries); err != nil {
			return err
		}
		e.RaiseHighWater(marks, false)
		return nil
	})
}

// settle asks, decides and writes until every row has an outcome. try counts
// the times that it was tried before.
func (r *Repairer) settle(ctx context.Context, t *Task, rows []*row, try int) error {
	for ; len(rows) > 0; try++ {
		if try > 0 {
			if err := pause(ctx, min(try, r.MaxRetries)); err != nil {
				return err
			}
			if err := r.reread(ctx, t, rows); err != nil {
				return err
			}
		}
		if try > r.MaxRetries {
			return r.exhaust(ctx, t, rows)
		}
		words, err := r.fetch(ctx, t, rows)
		if gone := (*DeferredError)(nil); errors.As(err, &gone) {
			return errors.Join(gone, r.deferRows(ctx, t, rows, gone.Code))
		}
		if err != nil {
			return err
		}
		stored, err := r.Projection.Rows(ctx, t.Work.TenantID, keysOf(rows), r.Content)
		if err != nil {
			return err
		}
		if rows, err = r.decideAll(ctx, t, rows, words, stored); err != nil {
			return err
		}
	}
	return nil
}

// The pauses before a row is tried again: long enough for a host's short
// transaction to end, short enough to be nothing beside a lease.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = time.Second
)

// pause waits before the try-th retry, twice as long each time, with jitter so
// that two writers of one row part.
func pause(ctx context.Context, try int) error {
	d := firstPause
	for n := 1; n < try && d < mostPause; n++ {
		d *= 2
	}
	d = min(d, mostPause)
	timer := time.NewTimer(d/2 + rand.N(d)) //nolint:gosec // jitter is no secret
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reread reads the local side again before the center is asked again.
func (r *Repairer) reread(ctx context.Context, t *Task, rows []*row) error {
	stored, err := r.Projection.Rows(ctx, t.Work.TenantID, keysOf(rows), r.Content)
	if err != nil {
		return err
	}
	for _, d := range rows {
		d.local = r.live(t, stored, d.key)
	}
	return nil
}

// live gives the row as the comparison sees it: nil unless it is in the image.
func (r *Repairer) live(t *Task, stored map[string]projection.LocalRow, key string) *evidence.Row {
	s, ok := stored[key]
	if !ok || s.Retired || s.CollectionID != t.Work.CollectionID {
		return nil
	}
	out := s.Row
	if r.Content {
		out.Hash = s.Content
	}
	return &out
}

func keysOf(rows []*row) []string {
	keys := make([]string, len(rows))
	for i, d := range rows {
		keys[i] = d.key
	}
	return keys
}

func (r *Repairer) exhaust(ctx context.Context, t *Task, rows []*row) error {
	entries := make([]store.Entry, 0, len(rows))
	for _, d := range rows {
		entries = append(entries, d.entry(protocol.Exhausted, fault.RetriesExhausted))
	}
	return r.note(ctx, t, entries)
}

func (r *Repairer) deferRows(ctx context.Context, t *Task, rows []*row, code fault.Reason) error {
	entries := make([]store.Entry, 0, len(rows))
	for _, d := range rows {
		if d.class == protocol.ExtraRow {
			continue // stays a candidate
		}
		entries = append(entries, d.entry(protocol.Deferred, code))
	}
	return r.note(ctx, t, entries)
}
