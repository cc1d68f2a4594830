package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/lockstep/internal/api"
	"lockstep.dev/services/lockstep/internal/world"
)

// No request of the demo takes a second; one that hangs must end it.
const refreshTimeout = time.Minute

// Refresh is what the snapshot refresh did: both requests together, and each.
type Refresh struct {
	RefreshFigures

	Requests []RefreshRequest `json:"requests"`

	stations []world.Station
}

// RefreshFigures are counts of scopes and of differences by what became of them.
type RefreshFigures struct {
	Scopes      int64   `json:"scopes"`
	Differences int64   `json:"differences"`
	Created     int64   `json:"created"`
	Updated     int64   `json:"updated"`
	Unchanged   int64   `json:"unchanged"`
	Missed      int64   `json:"missed"`
	Seconds     float64 `json:"seconds"` // from the request's commit to the task's end
}

// RefreshRequest is one request that became a task.
type RefreshRequest struct {
	Mode string `json:"mode"`
	RefreshFigures

	state, code string
	warnings    int64
}

// refresher shows the pages before, lets a review's bills in, pays, refreshes,
// and holds the pages to the written figures.
type refresher struct {
	client *api.Client
	pay    func(ctx context.Context) error
}

func (r *refresher) run(ctx context.Context) (*Refresh, []string, error) {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	out := &Refresh{}
	var bad []string
	stations, err := r.client.Stations(ctx)
	if err != nil {
		return nil, nil, err
	}
	bad = append(bad, unlikeStations("before", world.StationsBefore(), stationLines(stations))...)

	review, err := reviewRequest()
	if err != nil {
		return nil, nil, err
	}
	if bad, err = r.request(ctx, out, bad, review, world.ExpectReview()); err != nil {
		return nil, nil, err
	}
	if err := r.pay(ctx); err != nil {
		return nil, nil, fmt.Errorf("write payments: %w", err)
	}
	if bad, err = r.request(ctx, out, bad, paymentsRequest(), world.ExpectPayments()); err != nil {
		return nil, nil, err
	}

	if stations, err = r.client.Stations(ctx); err != nil {
		return nil, nil, err
	}
	out.stations = stationLines(stations)
	bad = append(bad, unlikeStations("after", world.StationsAfter(), out.stations)...)
	station, month, want := world.BillsAfter()
	bills, err := r.client.Bills(ctx, station, month)
	if err != nil {
		return nil, nil, err
	}
	return out, append(bad, unlikeBills(want, billLines(bills))...), nil
}

// reviewRequest lets the last month's bills into the pages.
func reviewRequest() (*consumerv1.RefreshRequest, error) {
	const first = 1 // version, round and attempt
	r := world.TheReview()
	payload, err := json.Marshal(map[string]any{"mode": "REVIEW_CREATE", "review": map[string]any{
		"review_progress_id": r.Progress, "status_shard_id": r.Shard, "payment_order_id": r.Order, "review_plan_id": r.Plan,
		"data_version": first, "submit_round": first, "approval_attempt": first,
		"finalize_time": r.Finalized, "first_order_bill_id": r.First, "last_order_bill_id": r.Last,
	}})
	if err != nil {
		return nil, fmt.Errorf("write the review's request: %w", err)
	}
	return &consumerv1.RefreshRequest{Projection: "bills", Payload: string(payload), Trigger: "review"}, nil
}

// paymentsRequest refreshes what is on the pages already, all months of it.
func paymentsRequest() *consumerv1.RefreshRequest {
	payload := fmt.Sprintf(`{"mode":"EXISTING_ONLY","month_from":"%d","month_to":"%d"}`, world.FirstMonth, world.LastMonth)
	return &consumerv1.RefreshRequest{Projection: "bills", Payload: payload, Trigger: "payments"}
}

// request submits, waits for the end, adds the figures to out, and adds to bad
// those that are not the expected ones.
func (r *refresher) request(ctx context.Context, out *Refresh, bad []string, in *consumerv1.RefreshRequest, want world.Refreshed) ([]string, error) {
	submission, _, err := r.client.SubmitRefresh(ctx, in)
	if err != nil {
		return nil, err
	}
	if submission.GetCode() != "" {
		return nil, fmt.Errorf("the refresh for %s was refused: %s: %s", in.GetTrigger(), submission.GetCode(), submission.GetMessage())
	}
	task, err := r.await(ctx, submission.GetTaskId())
	if err != nil {
		return nil, err
	}
	done := requestResult(task)
	out.Requests = append(out.Requests, done)
	out.add(done.RefreshFigures)
	return append(bad, done.deviations(want)...), nil
}

// await reads the task until it has ended, or has failed for now.
func (r *refresher) await(ctx context.Context, id string) (*consumerv1.GetTaskResponse, error) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		task, _, err := r.client.RefreshTask(ctx, id)
		if err != nil {
			return nil, err
		}
		switch state := task.GetTask().GetState(); state {
		case consumerv1.RefreshState_REFRESH_STATE_PENDING, consumerv1.RefreshState_REFRESH_STATE_RUNNING:
		default:
			return task, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("refresh task %s has not ended: %w", id, errors.Join(ctx.Err(), context.Cause(ctx)))
		}
	}
}

func requestResult(t *consumerv1.GetTaskResponse) RefreshRequest {
	c := t.GetCounts()
	took := t.GetTask().GetUpdatedAt().AsTime().Sub(t.GetTask().GetCreatedAt().AsTime())
	return RefreshRequest{
		Mode: t.GetTask().GetMode(), state: api.Word(t.GetTask().GetState()), code: t.GetTask().GetCode(), warnings: c.GetWarnings(),
		RefreshFigures: RefreshFigures{
			Scopes: t.GetScopes(), Differences: c.GetDifferences(), Created: c.GetCreated(), Updated: c.GetUpdated(),
			Unchanged: c.GetUnchanged(), Missed: c.GetMissed(), Seconds: seconds(took),
		},
	}
}

func (f *RefreshFigures) add(o RefreshFigures) {
	f.Scopes += o.Scopes
	f.Differences += o.Differences
	f.Created += o.Created
	f.Updated += o.Updated
	f.Unchanged += o.Unchanged
	f.Missed += o.Missed
	// Milliseconds, for sums of decimal fractions show their errors.
	f.Seconds = seconds(time.Duration((f.Seconds+o.Seconds)*1000+0.5) * time.Millisecond)
}

func (r RefreshRequest) deviations(want world.Refreshed) []string {
	var out []string
	compare := func(what string, expected, got any) {
		if expected != got {
			out = append(out, fmt.Sprintf("refresh %s, %s: expected %v, got %v", r.Mode, what, expected, got))
		}
	}
	compare("state", "SUCCESS", r.state)
	compare("code", "", r.code)
	compare("scopes", want.Scopes, r.Scopes)
	compare("differences", want.Differences, r.Differences)
	compare("created", want.Created, r.Created)
	compare("updated", want.Updated, r.Updated)
	compare("unchanged", want.Unchanged, r.Unchanged)
	compare("missed", want.Missed, r.Missed)
	compare("warnings", int64(0), r.warnings)
	return out
}

func stationLines(list []*consumerv1.StationBills) []world.Station {
	lines := make([]world.Station, 0, len(list))
	for _, s := range list {
		lines = append(lines, world.Station{
			ID: s.GetStationId(), Bills: s.GetBills(), Planned: s.GetPlannedAmount(), Paid: s.GetActualPaidAmount(), Difference: s.GetDifferenceAmount(),
			Payments: s.GetPaymentCount(), Failures: s.GetFailCount(), Anomalous: s.GetAnomalous(), LatestBill: s.GetLatestDiffId(),
			LatestPayment: s.GetLatestPaymentStatus(), LatestExternal: s.GetLatestExternalStatus(),
		})
	}
	return lines
}

func billLines(list []*consumerv1.Bill) []world.BillLine {
	lines := make([]world.BillLine, 0, len(list))
	for _, b := range list {
		lines = append(lines, world.BillLine{
			ID: b.GetDiffId(), Paid: b.GetActualPaidAmount(), Difference: b.GetDifferenceAmount(),
			Payment: b.GetPaymentStatus(), External: b.GetExternalStatus(), Anomalous: b.GetAnomalous(), Payee: b.GetPayeeAccountName(),
		})
	}
	return lines
}

func unlikeStations(when string, want, got []world.Station) []string {
	return unlikeLines("stations "+when+" the refresh", want, got)
}

func unlikeBills(want, got []world.BillLine) []string {
	return unlikeLines("bills after the refresh", want, got)
}

// unlikeLines names the lines of a page that are not the expected ones.
func unlikeLines[T comparable](page string, want, got []T) []string {
	var out []string
	if len(want) != len(got) {
		out = append(out, fmt.Sprintf("%s: expected %d lines, got %d", page, len(want), len(got)))
	}
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			out = append(out, fmt.Sprintf("%s, line %d: expected %+v, got %+v", page, i+1, want[i], got[i]))
		}
	}
	return out
}

// WriteRefresh prints what the requests did, and what the stations' page says now.
func WriteRefresh(out io.Writer, r *Refresh) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "refresh\tscopes\tdifferences\tcreated\tupdated\tunchanged\tmissed\tseconds\t\n")
	for _, q := range r.Requests {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t\n", q.Mode, dash(q.Scopes), dash(q.Differences),
			dash(q.Created), dash(q.Updated), dash(q.Unchanged), dash(q.Missed), q.Seconds)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "station\tbills\tplanned\tpaid\tdifference\tpayments\tfailures\tanomalous\t\n")
	for _, s := range r.stations {
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%d\t%d\t%d\t\n", s.ID, s.Bills, s.Planned, s.Paid, s.Difference, s.Payments, s.Failures, s.Anomalous)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out)
	return err
}
