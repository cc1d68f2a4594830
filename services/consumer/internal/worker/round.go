package worker

import (
	"context"
	"errors"
	"fmt"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/center"
	"lockstep.dev/services/consumer/internal/lockstep"
	"lockstep.dev/services/consumer/internal/projection"
)

const (
	// mostPages and roundRows are what a round covers: at 128 rows a page both, and
	// its pages fit one answer, and its checkpoint is never long ago. A single page
	// may have more rows.
	mostPages = 64
	roundRows = mostPages * 128
	// imageRows is read by one statement, which so stays under a tenth of a second:
	// a round, and a quarter for the rows that only the local side has.
	imageRows = roundRows * 5 / 4
	// maxIndexPages bounds the index in memory, at some 80 bytes a page.
	maxIndexPages = 1 << 20
	// heldRounds share one checkpoint, if their differences fill fewer than heldBatches.
	heldRounds, heldBatches = 8, 4
)

// roundPages is how many pages a round covers.
func roundPages(pageRows int) int { return max(1, min(mostPages, roundRows/pageRows)) }

// reconcile runs the protocol from the row's checkpoint to the end of both
// scans and the retirements:
//
//  1. report RUNNING
//  2. verify the manifest's header, and fold its index into the signed root
//  3. compare round by round, repair, store the checkpoint
//  4. retire what both sides' complete scans show to be extra
//
// Everything that stops it comes back as an error.
func (j *job) reconcile() error {
	if err := j.tell(protocol.Scanning); err != nil {
		return err
	}
	header, err := j.header()
	if err != nil {
		return err
	}
	index, err := j.index(header)
	if err != nil {
		return err
	}
	if err := j.scan(index); err != nil {
		return err
	}
	return j.retire()
}

// header verifies the manifest's head: signed by the source, and about exactly
// what the instruction says.
func (j *job) header() (*protocol.Header, error) {
	env, err := j.Center.Manifest(j.ctx, j.row.ID(), j.Self)
	if err != nil {
		return nil, err
	}
	h, err := document.OpenHeader(env, j.SourceKeys())
	if err != nil {
		return nil, &hopelessError{center.Refusal(err), err}
	}
	if code, why := j.foreign(h); code != "" {
		return nil, &hopelessError{code, errors.New(why)}
	}
	return h, nil
}

// foreign says how a header differs from the instruction.
func (j *job) foreign(h *protocol.Header) (fault.Reason, string) {
	w := j.row
	if code := document.Mismatch(h.At, w.Coordinates(j.Self)); code != "" {
		return fault.Reason(code), "the header states other coordinates than the instruction"
	}
	switch {
	case h.At.CenterEpoch != w.CenterEpoch:
		return fault.GrantEpochMismatch, "the header is of another center epoch"
	case h.CanonID != canon.ID, h.KeyKind != protocol.KeyKindUUID:
		return fault.FormatMismatch, fmt.Sprintf("canonicalisation %q, keys %q", h.CanonID, h.KeyKind)
	case h.Scope != w.Scope, h.Mode != w.Mode, !h.WindowStart.Equal(w.WindowStart):
		return fault.TaskMismatch, "the header is of another scope, mode or window"
	case h.Key != w.RecordKey:
		return fault.KeyMismatch, "the header is about another record"
	case h.ManifestID != protocol.FormatID(w.ManifestID), string(h.Root[:]) != string(w.ManifestRoot),
		h.RowCount != w.RowCount, h.BreakerOverride != w.BreakerOverride:
		return fault.ManifestMismatch, "the header is of another manifest than the instruction's"
	case h.PageCount > maxIndexPages:
		return fault.ResourceLimit, fmt.Sprintf("%d pages", h.PageCount)
	}
	return "", ""
}

// index reads the page index and proves it against the signed root, before the
// first comparison.
func (j *job) index(h *protocol.Header) (*lockstep.Index, error) {
	shape := lockstep.Shape{Root: h.Root, RowCount: h.RowCount, PageRows: h.PageRows, PageCount: h.PageCount}
	if h.Scope == protocol.Record {
		var err error
		if shape.Record, err = protocol.ParseKey(h.Key); err != nil {
			return nil, &hopelessError{fault.KeyMismatch, err}
		}
	}
	builder, err := lockstep.NewIndexBuilder(shape)
	if err != nil {
		return nil, unproven(err)
	}
	for from, done := 0, h.PageCount == 0; !done; {
		j.keeper.Tick()
		entries, completed, err := j.Center.Index(j.ctx, j.row.ID(), from)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if err := builder.Add(e); err != nil {
				return nil, unproven(err)
			}
		}
		if from, done = from+len(entries), completed; len(entries) == 0 && !completed {
			// An empty answer is no end mark; nothing moves.
			return nil, fault.New(fault.ManifestNotReady, "the page index stops at page %d", from)
		}
	}
	x, err := builder.Index()
	if err != nil {
		return nil, unproven(err)
	}
	return x, nil
}

// unproven gives the codes of what package lockstep refuses.
func unproven(err error) error {
	switch {
	case errors.Is(err, lockstep.ErrIncomplete):
		return &hopelessError{fault.ManifestIncomplete, err}
	case errors.Is(err, lockstep.ErrNotProven), errors.Is(err, evidence.ErrPage), errors.Is(err, evidence.ErrPageRows):
		return &hopelessError{fault.PageNotProven, err}
	case errors.Is(err, lockstep.ErrOrder), errors.Is(err, evidence.ErrOrder), errors.Is(err, protocol.ErrKey):
		return &hopelessError{fault.OrderViolation, err}
	default:
		return err
	}
}

func (j *job) chunk(r lockstep.Range) projection.Chunk {
	return projection.Chunk{
		Scope: projection.Scope{TenantID: j.row.TenantID, CollectionID: j.row.CollectionID},
		After: r.After, UpTo: r.UpTo, Limit: imageRows, Content: j.Set.VerifyContent,
	}
}

// pages fetches and proves the pages of the parts; the tail has none.
func (j *job) pages(ctx context.Context, x *lockstep.Index, parts []lockstep.Part) (map[int][]evidence.PageRow, error) {
	want := map[int]bool{}
	for _, p := range parts {
		if p.Range < x.Pages() {
			want[p.Range] = true
		}
	}
	out := make(map[int][]evidence.PageRow, len(want))
	for len(want) > 0 {
		var list []int
		for _, p := range parts {
			if want[p.Range] {
				list = append(list, p.Range)
			}
		}
		got, _, err := j.Center.Pages(ctx, j.row.ID(), list)
		if err != nil {
			return nil, err
		}
		j.keeper.Tick()
		if len(got) == 0 {
			return nil, fault.New(fault.ManifestNotReady, "none of %d pages came", len(list))
		}
		for _, p := range got {
			if !want[p.Number] {
				return nil, &hopelessError{fault.PageNotProven, fmt.Errorf("page %d was not asked for, or came twice", p.Number)}
			}
			rows, err := evidence.DecodePage(p.Body, nil, x.PageRows())
			if err != nil {
				return nil, unproven(err)
			}
			if err := x.VerifyPage(p.Number, rows); err != nil {
				return nil, unproven(err)
			}
			out[p.Number] = rows
			delete(want, p.Number)
		}
	}
	return out, nil
}

// rows fetches every row of the pages [from, to) one by one, and proves them as
// pages are proved.
func (j *job) rows(ctx context.Context, x *lockstep.Index, from, to int) (map[int][]evidence.PageRow, error) {
	to = min(to, x.Pages())
	out := make(map[int][]evidence.PageRow, to-from)
	after := ""
	if from > 0 && from < to {
		after = x.Entry(from - 1).LastKey
	}
	var held []evidence.PageRow
	for page := from; page < to; {
		want := min(int(x.RowsOf(page, to))-len(held), center.MaxRows)
		rows, completed, err := j.Center.Rows(ctx, j.row.ID(), after, want)
		if err != nil {
			return nil, err
		}
		j.keeper.Tick()
		if len(rows) == 0 && !completed {
			// An empty answer is no end mark; nothing moves.
			return nil, fault.New(fault.ManifestNotReady, "the rows stop in page %d", page)
		}
		held = append(held, rows...)
		for ; page < to && len(held) >= x.Entry(page).Rows; page++ {
			n := x.Entry(page).Rows
			if err := x.VerifyPage(page, held[:n]); err != nil {
				return nil, unproven(err)
			}
			out[page], held = held[:n:n], held[n:]
		}
		if page < to && completed {
			return nil, &hopelessError{fault.ManifestIncomplete, fmt.Errorf("the rows end in page %d of %d", page, x.Pages())}
		}
		if len(rows) > 0 {
			after = rows[len(rows)-1].Key
		}
	}
	return out, nil
}

// retire decides about the extra rows, once both scans are complete and stored so.
func (j *job) retire() error {
	if j.row.Mode == protocol.DryRun {
		return nil
	}
	if err := j.yield(); err != nil {
		return err
	}
	if err := j.tell(protocol.Retiring); err != nil {
		return err
	}
	ctx, ended := j.Tracer.Start(j.ctx, "retire")
	code, err := j.Repairer.Retire(ctx, j.task)
	ended(err)
	if err != nil {
		return err
	}
	if code != "" && j.Withheld != nil {
		j.Withheld(code)
	}
	j.saved.RetireCode = string(code)
	return nil
}
