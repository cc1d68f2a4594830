package console

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/fault"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/consumer/internal/admin"
	"lockstep.dev/services/consumer/internal/refreshapi"
	shell "lockstep.dev/services/internal/console"
)

func request(query string) *shell.Request {
	return &shell.Request{HTTP: httptest.NewRequest(http.MethodGet, "/console/bills?"+query, nil)}
}

// TestNothingIsShownToNobody: every page and action asks for a token, and each
// template parses.
func TestNothingIsShownToNobody(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///nowhere", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // it was never used
	rules := admin.Rules()
	maps.Copy(rules, refreshapi.Rules())
	handler, err := New(t.Context(), "hall", conn, rules, zap.NewNop(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"", "work", "work/1", "work/1/pause", "work/1/resume", "work/1/evidence", "quarantine", "quarantine/retry", "retired", "retired/restore", "record",
		"refresh", "refresh/1", "refresh/submit", "refresh/now", "refresh/1/retry", "refresh/1/force", "refresh/1/cancel", "refresh/1/reopen",
		"bills", "bills/csv", "stations", "scores", "audit",
	} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/console/"+path, nil))
		if to := answer.Header().Get("Location"); answer.Code != http.StatusSeeOther || !strings.HasPrefix(to, "/console/sign-in") {
			t.Errorf("%s: %d, to %q", path, answer.Code, to)
		}
	}
}

func TestBillFilter(t *testing.T) {
	t.Run("reads every field", func(t *testing.T) {
		got, err := billFilter(request("stations=1,+2%3B3&from=202601&to=202612&partner=9&companies=4+5&order=PO-1&payment=0&outside=6&anomalous=yes"))
		want := &consumerv1.BillFilter{
			StationIds: []int64{1, 2, 3}, FirstMonth: 202601, LastMonth: 202612, PartnerOrgId: 9, ProjectCompanyIds: []int64{4, 5}, PaymentOrderNo: "PO-1",
			PaymentStatuses: []int32{0}, ExternalStatuses: []int32{6}, Anomalous: true,
		}
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	})
	t.Run("asks for nothing where nothing is asked", func(t *testing.T) {
		if got, err := billFilter(request("stations=&payment=")); err != nil || !proto.Equal(got, &consumerv1.BillFilter{}) {
			t.Errorf("%v, %v", got, err)
		}
	})
	t.Run("names each field that can't be read", func(t *testing.T) {
		_, err := billFilter(request("stations=1,two&from=soon&to=99999999999&partner=1.5&payment=paid"))
		var fields []string
		for _, field := range fault.FieldsOf(err) {
			fields = append(fields, field.Name)
		}
		slices.Sort(fields)
		if want := []string{"from", "partner", "payment", "stations", "to"}; fault.ReasonOf(err) != fault.InvalidArgument || !slices.Equal(fields, want) {
			t.Errorf("%v names %v, want %v", err, fields, want)
		}
	})
}

func TestAFilterGoesOnToTheOtherPages(t *testing.T) {
	got, err := url.Parse(withFilter(request("stations=1&order=a%26b&page_token=t"), "bills/csv"))
	if err != nil || got.Path != "/console/bills/csv" || got.RawQuery != "order=a%26b&stations=1" {
		t.Errorf("%v, %v", got, err)
	}
	if got := withFilter(request("stations=1,2&from=202601"), "bills", "stations", "2"); got != "/console/bills?from=202601&stations=2" {
		t.Errorf("a station's bills are at %s", got)
	}
	if got := withFilter(request(""), "stations"); got != "/console/stations" {
		t.Errorf("without a filter: %s", got)
	}
}

func TestTimeline(t *testing.T) {
	at := timestamppb.New(time.Unix(1_700_000_000, 0))
	for name, test := range map[string]struct {
		work *consumerv1.Work
		want []string
	}{
		"waiting":   {&consumerv1.Work{Phase: evidencev1.Phase_PHASE_WAITING, WaitingBecause: "PAUSED"}, []string{"Accepted", "Waiting PAUSED"}},
		"scanning":  {&consumerv1.Work{Phase: evidencev1.Phase_PHASE_SCANNING}, []string{"Accepted", "Scanning 0 rows of the manifest, 0 local ones"}},
		"retiring":  {&consumerv1.Work{Phase: evidencev1.Phase_PHASE_RETIRING, CenterRowsScanned: 3, LocalRowsScanned: 4}, []string{"Accepted", "Scanning 3 rows of the manifest, 4 local ones", "Retiring what only this side has"}},
		"reporting": {&consumerv1.Work{Phase: evidencev1.Phase_PHASE_REPORTING, LocalRowsScanned: 1}, []string{"Accepted", "Scanning 0 rows of the manifest, 1 local ones", "Reporting until the center acknowledges it"}},
		"cancelled": {&consumerv1.Work{State: consumerv1.WorkState_WORK_STATE_CANCELLED, Code: "GRANT_REVOKED", EndedAt: at}, []string{"Accepted", "Ended CANCELLED GRANT_REVOKED"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, step := range stepsOf(test.work) {
				got = append(got, strings.TrimSpace(step.What+" "+step.More))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
