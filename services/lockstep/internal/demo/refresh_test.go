package demo

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/lockstep/internal/world"
)

// refreshed is what the consumer shows of the request after the payments.
func refreshed() *consumerv1.GetTaskResponse {
	begin := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	return &consumerv1.GetTaskResponse{
		Task: &consumerv1.RefreshTask{
			Mode: "EXISTING_ONLY", State: consumerv1.RefreshState_REFRESH_STATE_SUCCESS,
			CreatedAt: timestamppb.New(begin), UpdatedAt: timestamppb.New(begin.Add(350 * time.Millisecond)),
		},
		Scopes: 12, ScopesDone: 12,
		Counts: &consumerv1.RefreshCounts{Differences: 73, Updated: 60, Unchanged: 12, Missed: 1},
	}
}

func TestRefreshDeviations(t *testing.T) {
	if got := requestResult(refreshed()).deviations(world.ExpectPayments()); got != nil {
		t.Errorf("got %q", got)
	}
	task := refreshed()
	task.Task.State, task.Task.Code = consumerv1.RefreshState_REFRESH_STATE_FAILED, "LOCATOR_MISSING"
	task.Counts.Updated = 59
	want := []string{
		"refresh EXISTING_ONLY, state: expected SUCCESS, got FAILED",
		"refresh EXISTING_ONLY, code: expected , got LOCATOR_MISSING",
		"refresh EXISTING_ONLY, updated: expected 60, got 59",
	}
	if got := requestResult(task).deviations(world.ExpectPayments()); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPagesThatDeviate(t *testing.T) {
	a, b := world.BillLine{ID: 1, Paid: "60.00"}, world.BillLine{ID: 1, Paid: "0.00"}
	got := unlikeLines("bills", []world.BillLine{a, a}, []world.BillLine{b})
	want := []string{
		"bills: expected 2 lines, got 1",
		"bills, line 1: expected {ID:1 Paid:60.00 Difference: Payment:0 External:0 Anomalous:false Payee:}, " +
			"got {ID:1 Paid:0.00 Difference: Payment:0 External:0 Anomalous:false Payee:}",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFiguresAddUp(t *testing.T) {
	var sum RefreshFigures
	sum.add(RefreshFigures{Scopes: 4, Differences: 24, Created: 24, Seconds: 0.1})
	sum.add(RefreshFigures{Scopes: 12, Differences: 73, Updated: 60, Unchanged: 12, Missed: 1, Seconds: 0.2})
	if want := (RefreshFigures{Scopes: 16, Differences: 97, Created: 24, Updated: 60, Unchanged: 12, Missed: 1, Seconds: 0.3}); sum != want {
		t.Errorf("got %+v", sum)
	}
}

func TestWriteRefresh(t *testing.T) {
	var out strings.Builder
	r := &Refresh{Requests: []RefreshRequest{requestResult(refreshed())}, stations: world.StationsAfter()[:1]}
	if err := WriteRefresh(&out, r); err != nil {
		t.Fatal(err)
	}
	want := `        refresh  scopes  differences  created  updated  unchanged  missed  seconds
  EXISTING_ONLY      12           73        ·       60         12       1     0.35

  station  bills  planned    paid  difference  payments  failures  anomalous
       11     18  1800.00  631.50    -1168.50        12         6          6

`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
