package admin_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/store"
)

// results stores the reports of a task's attempts, with the codes of their items.
func (w *world) results(id uuid.UUID, attempts ...[]string) {
	w.T.Helper()
	signer := evidence.NewSigner("k", make([]byte, 64))
	for i, codes := range attempts {
		r := &protocol.Report{
			At: w.Read(id).Coordinates(centertest.Center), Attempt: i + 1, State: protocol.Partial, Verified: protocol.Hashes,
		}
		for n, code := range codes {
			r.Items = append(r.Items, protocol.ErrorItem{Key: fmt.Sprintf("%032x", n+1), Revision: int64(n), Code: code})
		}
		env, err := document.SealReport(signer, r)
		w.Must(err)
		stored, err := document.MarshalEnvelope(env)
		w.Must(err)
		w.Exec(`INSERT INTO lockstep.task_result (task_id, attempt, state, report) VALUES ($1, $2, 'PARTIAL', $3)`, id, i+1, stored)
	}
}

// outcomes reads every page, each as "attempt key code".
func (w *world) outcomes(ctx context.Context, req *centerv1.ListOutcomesRequest) (pages [][]string, err error) {
	w.T.Helper()
	for {
		got, err := w.s.ListOutcomes(ctx, req)
		if err != nil {
			return nil, err
		}
		var page []string
		for _, o := range got.GetOutcomes() {
			page = append(page, fmt.Sprintf("%d %s %s", o.GetAttempt(), o.GetItem().GetKey()[30:], o.GetItem().GetCode()))
		}
		pages = append(pages, page)
		if req.PageToken = got.GetNextPageToken(); req.PageToken == "" {
			return pages, nil
		}
	}
}

func TestListOutcomes(t *testing.T) {
	w := setup(t)
	id := w.Running(centertest.Scope)
	w.results(id, []string{"QUARANTINED", "STALE"}, nil, []string{"STALE", "STALE", "ROW_GONE"})
	name := protocol.FormatID(id)
	before := w.Everything()
	for what, c := range map[string]struct {
		req  *centerv1.ListOutcomesRequest
		want [][]string
	}{
		"the_newest_attempt_first": {
			&centerv1.ListOutcomesRequest{},
			[][]string{{"3 01 STALE", "3 02 STALE", "3 03 ROW_GONE", "1 01 QUARANTINED", "1 02 STALE"}},
		},
		"pages_cover_every_item_once": {
			&centerv1.ListOutcomesRequest{PageSize: 2},
			[][]string{{"3 01 STALE", "3 02 STALE"}, {"3 03 ROW_GONE", "1 01 QUARANTINED"}, {"1 02 STALE"}},
		},
		"a_page_may_end_with_a_report": {
			&centerv1.ListOutcomesRequest{PageSize: 3},
			[][]string{{"3 01 STALE", "3 02 STALE", "3 03 ROW_GONE"}, {"1 01 QUARANTINED", "1 02 STALE"}},
		},
		"one_code": {
			&centerv1.ListOutcomesRequest{PageSize: 2, Code: "STALE"},
			[][]string{{"3 01 STALE", "3 02 STALE"}, {"1 02 STALE"}},
		},
		"one_attempt":    {&centerv1.ListOutcomesRequest{PageSize: 1, Attempt: 1}, [][]string{{"1 01 QUARANTINED"}, {"1 02 STALE"}}},
		"an_empty_one":   {&centerv1.ListOutcomesRequest{Attempt: 2}, [][]string{nil}},
		"an_unknown_one": {&centerv1.ListOutcomesRequest{Attempt: 9}, [][]string{nil}},
	} {
		t.Run(what, func(t *testing.T) {
			c.req.TaskId = name
			got, err := w.outcomes(w.eva, c.req)
			w.Must(err)
			if !slices.EqualFunc(got, c.want, slices.Equal) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	if w.Everything() != before {
		t.Error("a read wrote something")
	}
	t.Run("refusals", func(t *testing.T) {
		first, err := w.s.ListOutcomes(w.eva, &centerv1.ListOutcomesRequest{TaskId: name, PageSize: 1})
		w.Must(err)
		elsewhere := store.Scope{Consumer: centertest.Consumer, TenantID: 9, CollectionID: "form-2"}
		w.Grant(elsewhere)
		other := w.Pending(elsewhere)
		for what, c := range map[string]struct {
			ctx  context.Context
			req  *centerv1.ListOutcomesRequest
			want fault.Reason
		}{
			"another filter":      {w.eva, &centerv1.ListOutcomesRequest{TaskId: name, Code: "STALE", PageToken: first.GetNextPageToken()}, fault.CursorInvalid},
			"another task":        {w.eva, &centerv1.ListOutcomesRequest{TaskId: protocol.FormatID(other), PageToken: first.GetNextPageToken()}, fault.CursorInvalid},
			"no token":            {w.eva, &centerv1.ListOutcomesRequest{TaskId: name, PageToken: "x"}, fault.CursorInvalid},
			"page size":           {w.eva, &centerv1.ListOutcomesRequest{TaskId: name, PageSize: 501}, fault.InvalidArgument},
			"attempt":             {w.eva, &centerv1.ListOutcomesRequest{TaskId: name, Attempt: -1}, fault.InvalidArgument},
			"a tenant out of eye": {w.tom, &centerv1.ListOutcomesRequest{TaskId: name}, fault.TaskNotFound},
			"nobody":              {t.Context(), &centerv1.ListOutcomesRequest{TaskId: name}, fault.PermissionDenied},
		} {
			_, err := w.s.ListOutcomes(c.ctx, c.req)
			if got := fault.ReasonOf(err); got != c.want {
				t.Errorf("%s: %v, want %s", what, err, c.want)
			}
		}
	})
}

func TestEstimate(t *testing.T) {
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		state  string
		rows   int
		report protocol.Report
		want   string // percent, rows a second, seconds until the scan ends
	}{
		"in the middle":            {"RUNNING", 1000, protocol.Report{CenterScanned: 250, Phase: protocol.Scanning, IssuedAt: start.Add(10 * time.Second)}, "25 25 30"},
		"not an even part":         {"RUNNING", 3, protocol.Report{CenterScanned: 1, Phase: protocol.Scanning, IssuedAt: start.Add(time.Second)}, "33.333 1 2"},
		"just begun":               {"RUNNING", 1000, protocol.Report{Phase: protocol.Scanning, IssuedAt: start}, "0 0 -"},
		"waiting":                  {"RUNNING", 1000, protocol.Report{CenterScanned: 500, Phase: protocol.Waiting, IssuedAt: start.Add(5 * time.Second)}, "50 100 -"},
		"after the scan":           {"RUNNING", 1000, protocol.Report{CenterScanned: 1000, CenterComplete: true, Phase: protocol.Retiring, IssuedAt: start.Add(5 * time.Second)}, "100 200 -"},
		"an empty manifest before": {"RUNNING", 0, protocol.Report{Phase: protocol.Scanning, IssuedAt: start.Add(time.Second)}, "0 0 -"},
		"an empty manifest after":  {"RUNNING", 0, protocol.Report{CenterComplete: true, Phase: protocol.Retiring, IssuedAt: start.Add(time.Second)}, "100 0 -"},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			id := w.Running(centertest.Scope)
			r := c.report
			r.At, r.Attempt, r.State, r.Verified, r.StartedAt = w.Read(id).Coordinates(centertest.Center), 1, protocol.Running, protocol.Hashes, start
			env, err := document.SealReport(evidence.NewSigner("k", make([]byte, 64)), &r)
			w.Must(err)
			reported := start.Add(time.Hour)
			w.Set(id, `row_count = $2, progress = $3, progress_at = $4`, c.rows, env.Payload, reported)
			tk, err := w.get(w.eva, id)
			w.Must(err)
			e, ends := tk.GetEstimate(), "-"
			if e.GetScanEndsAt() != nil {
				ends = fmt.Sprintf("%.5g", e.GetScanEndsAt().AsTime().Sub(reported).Seconds())
			}
			if got := fmt.Sprintf("%.5g %.5g %s", e.GetScannedPercent(), e.GetRowsPerSecond(), ends); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	t.Run("before there is a manifest there is none", func(t *testing.T) {
		w := setup(t)
		tk, err := w.get(w.eva, w.Pending(centertest.Scope))
		w.Must(err)
		if tk.GetEstimate() != nil {
			t.Errorf("got %v", tk.GetEstimate())
		}
	})
	t.Run("before the first report nothing is scanned", func(t *testing.T) {
		w := setup(t)
		tk, err := w.get(w.eva, w.Dispatched(centertest.Scope))
		w.Must(err)
		if e := tk.GetEstimate(); e == nil || e.GetScannedPercent() != 0 || e.GetScanEndsAt() != nil {
			t.Errorf("got %v", e)
		}
	})
}
