package bills

import (
	"encoding/csv"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"lockstep.dev/pkg/fault"
)

// shelf has bills of three stations and two months.
func shelf(t testing.TB) (*world, *Reader) {
	t.Helper()
	w := setup(t, Options{})
	w.exec(t, `INSERT INTO bills.bill_snapshot (station_id, id, diff_id, bill_month, partner_org_id, project_company_id, payment_order_no, planned_amount, actual_paid_amount, difference_amount,
			anomaly_flag, bill_dimension_payment_status, external_payment_status, latest_status_time, latest_status_rank, payment_count, fail_count, payee_account_name, data_source_list, settlement_month)
		VALUES
		(1, 11, 11, 202607, 5, 8, 'PO-1', 100, 60, -40, 20, 30, 5, '2026-09-02Z', 3, 1, 0, 'Zhang', '{10,20}', 202608),
		(1, 12, 12, 202608, 5, 8, 'PO-2', 50, 0, -50, 10, 40, 6, '2026-09-03Z', 2, 0, 2, '=cmd()', '{10}', NULL),
		(1, 13, 13, 202608, 6, 9, 'PO-2', 10.50, 10.50, 0, 10, 30, 5, '2026-09-03Z', 3, 1, 0, NULL, '{20}', NULL),
		(2, 21, 21, 202608, 5, 9, 'PO-3', 7, 0, -7, 10, 0, 2, NULL, 1, 0, 0, NULL, '{}', NULL),
		(2, 22, 22, 202608, 5, 9, 'PO-3', 7, 0, -7, 10, 40, 3, '2026-09-01Z', 2, 0, 1, NULL, '{10}', NULL),
		(3, 31, 31, 202608, 6, NULL, NULL, 1, 1, 0, 10, 30, 5, '2026-09-01Z', 3, 1, 0, NULL, '{10}', NULL),
		(3, 32, 32, 202608, 6, NULL, NULL, 1, 2, 1, 20, 60, 4, '2026-09-01Z', 3, 1, 0, NULL, '{10}', NULL)`)
	return w, NewReader(w.pool)
}

func diffIDs(bills []Bill) string {
	var ids []string
	for i := range bills {
		ids = append(ids, fmt.Sprint(bills[i].DiffID))
	}
	return strings.Join(ids, " ")
}

func TestListOfBills(t *testing.T) {
	_, r := shelf(t)
	for name, c := range map[string]struct {
		filter Filter
		want   string
	}{
		"all, newest month first":   {Filter{}, "32 31 22 21 13 12 11"},
		"a station":                 {Filter{StationIDs: []int64{1}}, "13 12 11"},
		"stations":                  {Filter{StationIDs: []int64{3, 1}}, "32 31 13 12 11"},
		"from a month":              {Filter{FirstMonth: 202608}, "32 31 22 21 13 12"},
		"until a month":             {Filter{LastMonth: 202607}, "11"},
		"both":                      {Filter{FirstMonth: 202607, LastMonth: 202607}, "11"},
		"a partner":                 {Filter{PartnerOrgID: 6}, "32 31 13"},
		"companies":                 {Filter{ProjectCompanyIDs: []int64{8}}, "12 11"},
		"an order":                  {Filter{PaymentOrderNo: "PO-2"}, "13 12"},
		"statuses":                  {Filter{PaymentStatuses: []int32{40, 0}}, "22 21 12"},
		"statuses outside":          {Filter{ExternalStatuses: []int32{3, 4}}, "32 22"},
		"anomalous":                 {Filter{Anomalous: true}, "32 11"},
		"several at once":           {Filter{StationIDs: []int64{1}, PaymentStatuses: []int32{30}, PartnerOrgID: 5}, "11"},
		"none":                      {Filter{StationIDs: []int64{4}}, ""},
		"a hostile order number":    {Filter{PaymentOrderNo: "' OR true --"}, ""},
		"anomalous at a station":    {Filter{Anomalous: true, StationIDs: []int64{3}}, "32"},
		"a month without any bills": {Filter{FirstMonth: 202609}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{0, 1, 2, 3} {
				var got []Bill
				for token := ""; ; {
					page, next, err := r.List(t.Context(), c.filter, size, token)
					if err != nil {
						t.Fatal(err)
					}
					if got = append(got, page...); next == "" {
						break
					}
					token = next
				}
				if diffIDs(got) != c.want {
					t.Errorf("pages of %d: got %q, want %q", size, diffIDs(got), c.want)
				}
			}
		})
	}
}

func TestABillAsItIsRead(t *testing.T) {
	_, r := shelf(t)
	bills, _, err := r.List(t.Context(), Filter{FirstMonth: 202607, LastMonth: 202607}, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	b := bills[0]
	got := fmt.Sprintln(b.StationID, b.BillMonth, b.PaymentOrderNo, b.SettlementMonth, b.PlannedAmount, b.ActualPaidAmount, b.DifferenceAmount, b.Anomalous(),
		b.PaymentStatus, b.ExternalStatus, b.DataSources, b.LatestStatusRank, b.PayeeAccountName, *b.ProjectCompanyID, b.PartnerBillID == nil, b.RefreshVersion)
	if want := "1 202607 PO-1 202608 100.00 60.00 -40.00 true 30 5 [10 20] 3 Zhang 8 true 1"; strings.Join(strings.Fields(got), " ") != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestStationSummaries(t *testing.T) {
	_, r := shelf(t)
	var got []string
	for token := ""; ; {
		page, next, err := r.Stations(t.Context(), Filter{}, 2, token)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page {
			got = append(got, fmt.Sprintln(s.StationID, s.Bills, s.PlannedAmount, s.ActualPaidAmount, s.DifferenceAmount, s.PaymentCount, s.FailCount, s.Anomalous,
				"latest", s.LatestDiffID, s.LatestPaymentStatus, s.LatestExternalStatus, s.LatestStatusTime.UTC().Format("01-02")))
		}
		if next == "" {
			break
		}
		token = next
	}
	// 12 and 13 are equal in time, 13 is higher in rank; 21 has no time at all;
	// 31 and 32 are equal in both.
	want := `1 3 160.50 70.50 -90.00 2 2 1 latest 13 30 5 09-03
2 2 14.00 0.00 -14.00 0 1 0 latest 22 40 3 09-01
3 2 2.00 3.00 1.00 2 0 1 latest 32 60 4 09-01
`
	if strings.Join(got, "") != want {
		t.Errorf("got\n%swant\n%s", strings.Join(got, ""), want)
	}
	some, _, err := r.Stations(t.Context(), Filter{PartnerOrgID: 6, ExternalStatuses: []int32{5}}, 0, "")
	if err != nil || len(some) != 2 || some[0].LatestDiffID != 13 || some[1].LatestDiffID != 31 {
		t.Errorf("filtered: %+v (%v)", some, err)
	}
}

func TestBadFiltersAndTokensAreRefused(t *testing.T) {
	_, r := shelf(t)
	for name, f := range map[string]Filter{
		"month 13": {FirstMonth: 202613}, "no month": {LastMonth: 7}, "backwards": {FirstMonth: 202602, LastMonth: 202601},
		"too many": {StationIDs: make([]int64, maxChoices+1)}, "a zero byte": {PaymentOrderNo: "a\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := r.List(t.Context(), f, 0, "")
			expectReason(t, err, fault.InvalidArgument)
			_, _, err = r.Stations(t.Context(), f, 0, "")
			expectReason(t, err, fault.InvalidArgument)
			expectReason(t, r.Export(t.Context(), f, func(string) error { return nil }), fault.InvalidArgument)
		})
	}
	_, bills, err := r.List(t.Context(), Filter{}, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	_, stations, err := r.Stations(t.Context(), Filter{}, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"x", "!", stations} {
		_, _, err := r.List(t.Context(), Filter{}, 0, token)
		expectReason(t, err, fault.CursorInvalid)
	}
	for filter, token := range map[string]string{"the list of bills": bills, "another filter": stations} {
		f := Filter{}
		if filter == "another filter" {
			f.Anomalous = true
		}
		_, _, err = r.Stations(t.Context(), f, 0, token)
		expectReason(t, err, fault.CursorInvalid)
	}
	_, _, err = r.List(t.Context(), Filter{StationIDs: []int64{1}}, 0, bills)
	expectReason(t, err, fault.CursorInvalid)
}

func TestExportIsCSVOfTheList(t *testing.T) {
	w, r := shelf(t)
	before := w.everything(t, "bill_snapshot")
	var text strings.Builder
	if err := r.Export(t.Context(), Filter{StationIDs: []int64{1}}, func(chunk string) error { text.WriteString(chunk); return nil }); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(strings.NewReader(text.String())).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	at := func(line int, column string) string {
		for i, name := range lines[0] {
			if name == column {
				return lines[line][i]
			}
		}
		return "no " + column
	}
	if len(lines) != 4 || at(1, "diff_id") != "13" || at(3, "diff_id") != "11" {
		t.Fatalf("lines %v", lines)
	}
	if got := at(3, "planned_amount") + " " + at(3, "difference_amount") + " " + at(3, "data_sources") + " " + at(3, "latest_status_time"); got != "100.00 -40.00 10 20 2026-09-02T00:00:00Z" {
		t.Errorf("line of 11: %s", got)
	}
	if got := at(2, "payee_account_name"); got != "'=cmd()" {
		t.Errorf("a formula is exported as %q", got)
	}
	if after := w.everything(t, "bill_snapshot"); after != before {
		t.Error("reading wrote something")
	}
}

// A hundred times the rows are no more memory at once, and arrive in chunks
// that end with a line.
func TestExportStreams(t *testing.T) {
	w := setup(t, Options{})
	w.exec(t, `INSERT INTO bills.bill_snapshot (station_id, id, diff_id, bill_month, partner_org_id, payee_account_name)
		SELECT 1 + n % 7, n, n, 202601 + n % 12, 5, repeat('x', 100) FROM generate_series(1, 20000) n`)
	r := NewReader(w.pool)
	lines, chunks, largest := 0, 0, 0
	var peak uint64
	seen := map[string]bool{}
	err := r.Export(t.Context(), Filter{}, func(chunk string) error {
		if !strings.HasSuffix(chunk, "\n") {
			t.Errorf("a chunk ends with %q", chunk[len(chunk)-10:])
		}
		for _, line := range strings.Split(strings.TrimSuffix(chunk, "\n"), "\n") {
			seen[strings.Join(strings.SplitN(line, ",", 4)[:3], ",")] = true
			lines++
		}
		if chunks++; chunks%10 == 0 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
		}
		largest = max(largest, len(chunk))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lines != 20001 || len(seen) != 20001 {
		t.Errorf("%d lines, %d different", lines, len(seen))
	}
	if largest > exportChunk+8<<10 || chunks < 20 {
		t.Errorf("%d chunks, the largest %d bytes", chunks, largest)
	}
	if peak > 32<<20 {
		t.Errorf("%d MiB were alive", peak>>20)
	}
}
