package worker_test

import (
	"testing"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/consumer/internal/centertest"
	"lockstep.dev/services/consumer/internal/work"
)

// What can't get better by trying ends FAILED with its code; nothing is written
// to the projection and no extra row is retired.
func TestForeignManifests(t *testing.T) {
	other := centertest.New(t)
	header := func(f func(*protocol.Header)) centertest.Lies { return centertest.Lies{Header: f} }
	index := func(f func(*centerv1.ListPageIndexResponse)) centertest.Lies {
		return centertest.Lies{Index: func(r *centerv1.ListPageIndexResponse) {
			if len(r.GetEntries()) == 3 { // the first answer
				f(r)
			}
		}}
	}
	pages := func(f func(*centerv1.GetPagesResponse)) centertest.Lies { return centertest.Lies{Pages: f} }
	rows := func(f func([]evidence.PageRow) []evidence.PageRow) centertest.Lies {
		return pages(func(r *centerv1.GetPagesResponse) {
			page, err := evidence.DecodePage(r.GetPages()[0].GetBody(), nil, 100)
			if err != nil {
				t.Error(err)
			}
			r.Pages[0].Body = evidence.AppendPage(nil, f(page))
		})
	}
	for name, c := range map[string]struct {
		lie  centertest.Lies
		code fault.Reason
	}{
		"a header signed by another key":   {centertest.Lies{Signer: other.Signer()}, fault.SignatureInvalid},
		"a header tampered with":           {centertest.Lies{Signed: centertest.Flip}, fault.SignatureInvalid},
		"a header of another type":         {centertest.Lies{Signed: centertest.Retype}, fault.DocumentType},
		"a header for another consumer":    {header(func(h *protocol.Header) { h.At.Consumer = "other" }), fault.AudienceMismatch},
		"a header from another source":     {header(func(h *protocol.Header) { h.At.Source = "other" }), fault.AudienceMismatch},
		"a header of another task":         {header(func(h *protocol.Header) { h.At.TaskID = protocol.FormatKey(k(9)) }), fault.TaskMismatch},
		"a header of another tenant":       {header(func(h *protocol.Header) { h.At.TenantID++ }), fault.TenantMismatch},
		"a header of another collection":   {header(func(h *protocol.Header) { h.At.CollectionID = "x" }), fault.CollectionMismatch},
		"a header of another grant epoch":  {header(func(h *protocol.Header) { h.At.GrantEpoch++ }), fault.GrantEpochMismatch},
		"a header of another center epoch": {header(func(h *protocol.Header) { h.At.CenterEpoch++ }), fault.GrantEpochMismatch},
		"a header of another scope":        {header(func(h *protocol.Header) { h.Scope = protocol.Record }), fault.TaskMismatch},
		"a header of another mode":         {header(func(h *protocol.Header) { h.Mode = protocol.DryRun }), fault.TaskMismatch},
		"a header of another window":       {header(func(h *protocol.Header) { h.WindowStart = h.WindowStart.Add(1e6) }), fault.TaskMismatch},
		"a header about another record":    {header(func(h *protocol.Header) { h.Key = protocol.FormatKey(k(1)) }), fault.KeyMismatch},
		"another manifest":                 {header(func(h *protocol.Header) { h.ManifestID = protocol.FormatKey(k(1)) }), fault.ManifestMismatch},
		"another root":                     {header(func(h *protocol.Header) { h.Root[0]++ }), fault.ManifestMismatch},
		"another row count":                {header(func(h *protocol.Header) { h.RowCount++ }), fault.ManifestMismatch},
		"an override the instruction lacks": {
			header(func(h *protocol.Header) { h.BreakerOverride = true }), fault.ManifestMismatch,
		},
		"another canonicalisation": {header(func(h *protocol.Header) { h.CanonID = "canon.v2" }), fault.FormatMismatch},
		"another key kind":         {header(func(h *protocol.Header) { h.KeyKind = "int64" }), fault.FormatMismatch},
		"a page size that is no power of two": {
			header(func(h *protocol.Header) { h.PageRows = 3 }), fault.ManifestIncomplete,
		},
		"a page count that does not fit": {header(func(h *protocol.Header) { h.PageCount++ }), fault.ManifestIncomplete},
		"too many pages":                 {header(func(h *protocol.Header) { h.PageCount = 1<<20 + 1 }), fault.ResourceLimit},

		"an index with a forged root": {index(func(r *centerv1.ListPageIndexResponse) { r.Entries[1].Root[0]++ }), fault.PageNotProven},
		"an index with a short root":  {index(func(r *centerv1.ListPageIndexResponse) { r.Entries[1].Root = r.Entries[1].Root[1:] }), fault.PageNotProven},
		"an index cut short and called complete": {
			index(func(r *centerv1.ListPageIndexResponse) { r.Entries, r.Completed = r.Entries[:1], true }), fault.ManifestIncomplete,
		},
		"an index out of order": {
			index(func(r *centerv1.ListPageIndexResponse) { r.Entries[0], r.Entries[1] = r.Entries[1], r.Entries[0] }), fault.OrderViolation,
		},
		"an index whose rows do not add up": {index(func(r *centerv1.ListPageIndexResponse) { r.Entries[1].Rows-- }), fault.ManifestIncomplete},
		"an index with a page too many": {
			centertest.Lies{Index: func(r *centerv1.ListPageIndexResponse) {
				if r.Completed {
					r.Entries = append(r.Entries, r.Entries[0])
				}
			}}, fault.ManifestIncomplete,
		},

		"a page with a row changed":  {rows(func(p []evidence.PageRow) []evidence.PageRow { p[0].Revision++; return p }), fault.PageNotProven},
		"a page with a row left out": {rows(func(p []evidence.PageRow) []evidence.PageRow { return p[1:] }), fault.PageNotProven},
		"a page with a row added": {rows(func(p []evidence.PageRow) []evidence.PageRow {
			return append(p, evidence.PageRow{Row: evidence.Row{Key: k(999), Revision: 1}})
		}), fault.PageNotProven},
		"a page out of order": {rows(func(p []evidence.PageRow) []evidence.PageRow { p[0], p[1] = p[1], p[0]; return p }), fault.OrderViolation},
		"a page that is none": {pages(func(r *centerv1.GetPagesResponse) { r.Pages[0].Body = []byte("x") }), fault.PageNotProven},
		"a page that is cut off": {
			pages(func(r *centerv1.GetPagesResponse) { r.Pages[0].Body = r.Pages[0].Body[:20] }), fault.PageNotProven,
		},
		"pages swapped": {
			pages(func(r *centerv1.GetPagesResponse) {
				r.Pages[0].Body, r.Pages[1].Body = r.Pages[1].Body, r.Pages[0].Body
			}), fault.PageNotProven,
		},
		"a page never asked for": {pages(func(r *centerv1.GetPagesResponse) { r.Pages[0].Page = 3 }), fault.PageNotProven},
		"a page twice":           {pages(func(r *centerv1.GetPagesResponse) { r.Pages = append(r.Pages, r.Pages[0]) }), fault.PageNotProven},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			for n := range 14 { // pages of 4: two that differ, one that does not, a short one
				w.center.Put(k(n), rec(1, `{}`))
				if n >= 8 {
					w.local(k(n), rec(1, `{}`))
				}
			}
			w.local(k(500), rec(1, `{}`))
			w.center.Lie(c.lie)
			before := w.dump("hall.answer_projection", "lockstep.high_water", "lockstep.outcome", "lockstep.audit")
			task := w.run()
			w.wantState(task, work.Failed, string(c.code))
			if w.dump("hall.answer_projection", "lockstep.high_water", "lockstep.outcome", "lockstep.audit") != before {
				t.Error("something was written")
			}
			if last := w.center.Last(); last.State != protocol.Failed || last.Code != string(c.code) {
				t.Errorf("report %s %s", last.State, last.Code)
			}
		})
	}
}

// What may get better is tried again from the checkpoint, and never taken for an end.
func TestFailedRounds(t *testing.T) {
	unavailable := fault.New(fault.Unavailable, "away")
	for name, c := range map[string]struct {
		lie  centertest.Lies
		code fault.Reason
	}{
		"the center is away at the first report": {centertest.Lies{Call: failing("ReportResult", unavailable)}, fault.Unavailable},
		"the center is away at the header":       {centertest.Lies{Call: failing("GetManifest", unavailable)}, fault.Unavailable},
		"the manifest is not ready":              {centertest.Lies{Call: failing("GetManifest", fault.New(fault.ManifestNotReady, "wait"))}, fault.ManifestNotReady},
		"the center is away at the records":      {centertest.Lies{Call: failing("GetRecords", unavailable)}, fault.Unavailable},
		"an empty index answer is no end": {
			centertest.Lies{Index: func(r *centerv1.ListPageIndexResponse) { r.Entries, r.Completed = nil, false }}, fault.ManifestNotReady,
		},
		"no page comes": {centertest.Lies{Pages: func(r *centerv1.GetPagesResponse) { r.LeftOver, r.Pages = nil, nil }}, fault.ManifestNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.both(k(1), rec(1, `{}`))
			w.center.Put(k(2), rec(1, `{}`))
			w.local(k(3), rec(1, `{}`))
			w.center.Lie(c.lie)
			task := w.run()
			w.wantState(task, work.Queued, string(c.code))
			var seconds float64
			for tries, wait := range []float64{60, 120, 240} {
				if err := w.pool.QueryRow(t.Context(), `SELECT extract(epoch FROM due_at - updated_at) FROM lockstep.work`).Scan(&seconds); err != nil {
					t.Fatal(err)
				}
				if row := w.row(task); row.RetryCount != tries+1 || seconds != wait {
					t.Errorf("retry %d after %.0f s, want %d after %.0f s", row.RetryCount, seconds, tries+1, wait)
				}
				w.due()
				w.work()
			}
			w.wantState(task, work.Parked, string(c.code))
			if !w.alive(3) {
				t.Error("an extra row was retired")
			}
			if w.center.Last() != nil {
				t.Error("a result was reported")
			}
			w.center.Lie(centertest.Lies{})
			w.center.Redispatch(task, 2)
			w.accept(task, 2)
			w.work()
			w.wantState(task, work.Completed, "")
		})
	}
}
