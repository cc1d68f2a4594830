package bills

import (
	"testing"
	"time"

	"lockstep.dev/services/consumer/internal/refresh"
)

const money = "planned_amount actual_paid_amount difference_amount anomaly_flag"

// A bill planned at 100 gets one good payment of 60: it is short by 40 and
// marked so, and it is paid all the same. The two are two questions.
func TestABillPlannedAt100GetsOnePaymentOf60(t *testing.T) {
	w := setup(t, Options{})
	w.insert(t,
		difference{ID: 1, PartnerBillID: ptr(int64(900))}, snapshot{ID: 1, PlannedAmount: "100"},
		order{ID: 3}, orderLine{ID: 30, PaymentOrderID: 3, DiffID: ptr(int64(1)), CurrentPaymentAmount: "77"},
		result{ID: 40, PartnerBillID: ptr(int64(900)), ResultStatus: 30, PaidAmount: "60", PaidTime: ptr(at("02 10:00"))})
	expectCounts(t, w.refresh(t), refresh.Counts{Differences: 1, Updated: 1})
	w.expect(t, 1, money, "100.00 60.00 -40.00 20")
	w.expect(t, 1, "payment_count fail_count bill_dimension_payment_status external_payment_status", "1 0 30 5")
	w.expect(t, 1, "latest_payment_time latest_status_time latest_status_rank data_source_list",
		"2026-09-02 10:00:00+00 2026-09-02 10:00:00+00 3 {10}")
	w.expect(t, 1, "snapshot_status refresh_version refresh_source", "20 2 test")
}

// A difference that never got a snapshot gets none from an ordinary refresh, and
// that is no failure.
func TestABillThatNeverHadASnapshotIsMissedAndListed(t *testing.T) {
	w := setup(t, Options{})
	w.insert(t,
		difference{ID: 1, PartnerBillID: ptr(int64(900))},
		result{ID: 40, PartnerBillID: ptr(int64(900)), ResultStatus: 30, PaidAmount: "60"})
	expectCounts(t, w.refresh(t), refresh.Counts{Differences: 1, Missed: 1, MissedIDs: []int64{1}})
	if rows := w.everything(t, "bill_snapshot"); rows != "" {
		t.Errorf("there is a snapshot now: %s", rows)
	}
}

// 250 scopes are three pages of at most 100, in the order of station and month.
// Pages are the engine's; the order and the number are what it pages over.
func TestScopesComeInTheOrderOfStationAndMonth(t *testing.T) {
	w := setup(t, Options{})
	w.exec(t, `INSERT INTO bills.income_difference (station_id, id, bill_month, partner_org_id, project_company_id)
		SELECT 1 + n % 125, n, CASE WHEN n <= 125 THEN 202608 ELSE 202607 END, 5, 8 FROM generate_series(1, 1000) n`)
	scopes := w.resolve(t, `{"project_company_ids":[8]}`)
	if len(scopes) != 250 {
		t.Fatalf("%d scopes, want 250", len(scopes))
	}
	if scopes[0] != (refresh.Scope{ID: 1, Month: 202607}) || scopes[1] != (refresh.Scope{ID: 1, Month: 202608}) || scopes[249] != (refresh.Scope{ID: 125, Month: 202608}) {
		t.Errorf("they begin %v and end with %v", scopes[:2], scopes[249])
	}
}

// bill900 is difference 1, of partner bill 900, planned at 100.
func bill900() []row {
	return []row{difference{ID: 1, PartnerBillID: ptr(int64(900))}, snapshot{ID: 1, PlannedAmount: "100"}}
}

func paid(id int64, amount string) result {
	return result{ID: id, PartnerBillID: ptr(int64(900)), ResultStatus: 30, PaidAmount: amount, PaidTime: ptr(at("02 10:00").Add(time.Duration(id) * time.Minute))}
}

func failed(id int64, amount, reason string) result {
	return result{ID: id, PartnerBillID: ptr(int64(900)), ResultStatus: 40, PaidAmount: amount, FailReason: &reason, UpdatedAt: at("03 10:00").Add(time.Duration(id) * time.Minute)}
}

func waiting(id int64, status int16) result {
	return result{ID: id, PartnerBillID: ptr(int64(900)), ResultStatus: status, PaidAmount: "9", UpdatedAt: at("04 10:00").Add(time.Duration(id) * time.Minute)}
}

func with[R any](r R, change func(*R)) R {
	change(&r)
	return r
}

// pushed is line 30 of order 3 with pushes of these statuses.
func pushed(statuses ...int16) []row {
	rows := []row{order{ID: 3}, orderLine{ID: 30, PaymentOrderID: 3, DiffID: ptr(int64(1))}}
	for i, status := range statuses {
		rows = append(rows, push{ID: int64(50 + i), SourceOrderBillID: 30, Status: status})
	}
	return rows
}

func TestStatusAndAmounts(t *testing.T) {
	w := setup(t, Options{})
	const columns = "bill_dimension_payment_status external_payment_status actual_paid_amount difference_amount anomaly_flag payment_count fail_count latest_status_rank"
	for name, c := range map[string]struct {
		facts []row
		want  string
	}{
		"nothing at all":                   {nil, "0 2 0.00 -100.00 10 0 0 1"},
		"waiting":                          {[]row{waiting(1, 10)}, "0 2 0.00 -100.00 10 0 0 1"},
		"being paid":                       {[]row{waiting(1, 20)}, "0 2 0.00 -100.00 10 0 0 1"},
		"paid in full":                     {[]row{paid(1, "100")}, "30 5 100.00 0.00 10 1 0 3"},
		"paid in two parts":                {[]row{paid(1, "60.10"), paid(2, "39.90")}, "30 5 100.00 0.00 10 2 0 3"},
		"paid short":                       {[]row{paid(1, "99.99")}, "30 5 99.99 -0.01 20 1 0 3"},
		"paid too much":                    {[]row{paid(1, "100.01")}, "30 5 100.01 0.01 20 1 0 3"},
		"paid nothing":                     {[]row{paid(1, "0")}, "30 5 0.00 -100.00 10 1 0 3"},
		"a success beats a failure":        {[]row{paid(1, "60"), failed(2, "40", "x")}, "30 5 60.00 -40.00 20 1 1 3"},
		"a success beats what is open":     {[]row{paid(1, "60"), waiting(2, 20)}, "30 5 60.00 -40.00 20 1 0 3"},
		"not a normal payment":             {[]row{with(paid(1, "60"), func(r *result) { r.ResultType = 20 })}, "0 2 0.00 -100.00 10 0 0 1"},
		"another source":                   {[]row{with(paid(1, "60"), func(r *result) { r.ResultSource = 30 })}, "0 2 0.00 -100.00 10 0 0 1"},
		"offline":                          {[]row{with(paid(1, "60"), func(r *result) { r.ResultSource = 20 })}, "30 5 60.00 -40.00 20 1 0 3"},
		"a status that is none of four":    {[]row{with(paid(1, "60"), func(r *result) { r.ResultStatus = 60 })}, "0 2 0.00 -100.00 10 0 0 1"},
		"failed, of a source not counted":  {[]row{with(failed(1, "5", "x"), func(r *result) { r.ResultSource = 30; r.ResultType = 20 })}, "40 3 0.00 -100.00 10 0 1 2"},
		"failed, no line":                  {[]row{failed(1, "5", "x")}, "40 3 0.00 -100.00 10 0 1 2"},
		"failed, never pushed":             {append(pushed(), failed(1, "5", "x")), "40 3 0.00 -100.00 10 0 1 2"},
		"failed, all pushes ended":         {append(pushed(30, 40), failed(1, "5", "x")), "40 6 0.00 -100.00 10 0 1 2"},
		"failed, a push is prepared":       {append(pushed(30, 10), failed(1, "5", "x")), "40 3 0.00 -100.00 10 0 1 2"},
		"failed, a push is on its way":     {append(pushed(20, 40), failed(1, "5", "x")), "40 3 0.00 -100.00 10 0 1 2"},
		"failed, the open push is deleted": {append(pushed(40), failed(1, "5", "x"), push{ID: 60, SourceOrderBillID: 30, Status: 20, Deleted: true}), "40 6 0.00 -100.00 10 0 1 2"},
		"failed, offline":                  {[]row{order{ID: 3, PaymentType: 20}, orderLine{ID: 30, PaymentOrderID: 3, DiffID: ptr(int64(1))}, push{ID: 50, SourceOrderBillID: 30, Status: 20}, failed(1, "5", "x")}, "40 6 0.00 -100.00 10 0 1 2"},
		// The old comparison of two counts: two pushes, two results, one of them open.
		"failed, as many results as pushes, one open": {append(pushed(40, 20), failed(1, "5", "x"), waiting(2, 20)), "40 3 0.00 -100.00 10 0 1 2"},
	} {
		t.Run(name, func(t *testing.T) {
			w.clear(t)
			w.insert(t, append(bill900(), c.facts...)...)
			w.refresh(t)
			w.expect(t, 1, columns, c.want)
		})
	}
}

func TestPartialPaymentWhereThePolicyIsOn(t *testing.T) {
	w := setup(t, Options{PartialPayment: true})
	const columns = "bill_dimension_payment_status external_payment_status latest_status_rank"
	for name, c := range map[string]struct {
		facts []row
		want  string
	}{
		"paid in full":             {[]row{paid(1, "100")}, "30 5 3"},
		"paid more":                {[]row{paid(1, "101")}, "30 5 3"},
		"paid less":                {[]row{paid(1, "60")}, "60 4 1"},
		"beside a failure":         {[]row{paid(1, "100"), failed(2, "1", "x")}, "60 4 1"},
		"beside one waiting":       {[]row{paid(1, "100"), waiting(2, 10)}, "60 4 1"},
		"beside one being paid":    {[]row{paid(1, "100"), waiting(2, 20)}, "60 4 1"},
		"beside one not counted":   {[]row{paid(1, "100"), with(paid(2, "1"), func(r *result) { r.ResultType = 20 })}, "30 5 3"},
		"failed alone, not partly": {[]row{failed(1, "1", "x")}, "40 3 2"},
		"waiting alone":            {[]row{waiting(1, 10)}, "0 2 1"},
	} {
		t.Run(name, func(t *testing.T) {
			w.clear(t)
			w.insert(t, append(bill900(), c.facts...)...)
			w.refresh(t)
			w.expect(t, 1, columns, c.want)
		})
	}
}

func TestWhichResultsBelongToABill(t *testing.T) {
	w := setup(t, Options{})
	byBill, bySmall := ptr(int64(900)), ptr("S-1")
	success := result{ID: 1, ResultStatus: 30, PaidAmount: "60"}
	for name, c := range map[string]struct {
		difference difference
		result     func(*result)
		want       string // payments counted, amount, status
	}{
		"partner bill": {difference{PartnerBillID: byBill}, func(r *result) { r.PartnerBillID = byBill }, "1 60.00 30"},
		"partner bill, small number disagrees": {
			difference{PartnerBillID: byBill, SmallStationNo: bySmall}, func(r *result) { r.PartnerBillID, r.SmallStationNo = byBill, ptr("S-2") }, "1 60.00 30",
		},
		"another partner bill":               {difference{PartnerBillID: byBill}, func(r *result) { r.PartnerBillID = ptr(int64(901)) }, "0 0.00 0"},
		"partner bill, result has none":      {difference{PartnerBillID: byBill, SmallStationNo: bySmall}, func(r *result) { r.SmallStationNo = bySmall }, "0 0.00 0"},
		"small number":                       {difference{SmallStationNo: bySmall}, func(r *result) { r.SmallStationNo = bySmall }, "1 60.00 30"},
		"small number, result has a bill":    {difference{SmallStationNo: bySmall}, func(r *result) { r.PartnerBillID, r.SmallStationNo = byBill, bySmall }, "0 0.00 0"},
		"neither":                            {difference{}, func(*result) {}, "0 0.00 0"},
		"another partner":                    {difference{PartnerBillID: byBill}, func(r *result) { r.PartnerBillID, r.PartnerOrgID = byBill, 6 }, "0 0.00 0"},
		"another month":                      {difference{PartnerBillID: byBill}, func(r *result) { r.PartnerBillID, r.BillMonth = byBill, 202607 }, "0 0.00 0"},
		"another station":                    {difference{PartnerBillID: byBill}, func(r *result) { r.PartnerBillID, r.StationID = byBill, 18 }, "0 0.00 0"},
		"small number of another partner":    {difference{SmallStationNo: bySmall}, func(r *result) { r.SmallStationNo, r.PartnerOrgID = bySmall, 6 }, "0 0.00 0"},
		"small number in another month":      {difference{SmallStationNo: bySmall}, func(r *result) { r.SmallStationNo, r.BillMonth = bySmall, 202609 }, "0 0.00 0"},
		"two results, small number and bill": {difference{PartnerBillID: byBill}, func(r *result) { r.PartnerBillID = byBill }, "1 60.00 30"},
	} {
		t.Run(name, func(t *testing.T) {
			w.clear(t)
			c.difference.ID = 1
			w.insert(t, c.difference, snapshot{ID: 1, PlannedAmount: "100"}, with(success, c.result))
			w.refresh(t)
			w.expect(t, 1, "payment_count actual_paid_amount bill_dimension_payment_status", c.want)
		})
	}
}

// The newest line decides whose pushes are looked at: 6 where line 30's were
// (all ended), 3 where it was another's or nobody's.
func TestWhichLineIsTheNewest(t *testing.T) {
	w := setup(t, Options{})
	own := orderLine{ID: 30, PaymentOrderID: 3, DiffID: ptr(int64(1))}
	byBill := orderLine{ID: 30, PaymentOrderID: 3, PartnerBillID: ptr(int64(900))}
	for name, c := range map[string]struct {
		lines []row
		want  string
	}{
		"its own":                  {[]row{order{ID: 3}, own}, "6"},
		"its own, order paid":      {[]row{order{ID: 3, Status: 50}, own}, "6"},
		"order not alive":          {[]row{order{ID: 3, Status: 30}, own}, "3"},
		"order deleted":            {[]row{order{ID: 3, Deleted: true}, own}, "3"},
		"order gone":               {[]row{own}, "3"},
		"line deleted":             {[]row{order{ID: 3}, with(own, func(l *orderLine) { l.Deleted = true })}, "3"},
		"not payable":              {[]row{order{ID: 3}, with(own, func(l *orderLine) { l.LineType = 20 })}, "3"},
		"line status 30":           {[]row{order{ID: 3}, with(own, func(l *orderLine) { l.LineStatus = 30 })}, "6"},
		"line status 40":           {[]row{order{ID: 3}, with(own, func(l *orderLine) { l.LineStatus = 40 })}, "6"},
		"line status 10":           {[]row{order{ID: 3}, with(own, func(l *orderLine) { l.LineStatus = 10 })}, "3"},
		"line status 50":           {[]row{order{ID: 3}, with(own, func(l *orderLine) { l.LineStatus = 50 })}, "3"},
		"another partner":          {[]row{order{ID: 3}, with(own, func(l *orderLine) { l.PartnerOrgID = 6 })}, "3"},
		"another month":            {[]row{order{ID: 3}, with(own, func(l *orderLine) { l.BillMonth = ptr(int32(202607)) })}, "3"},
		"by the partner's bill":    {[]row{order{ID: 3}, byBill}, "6"},
		"by another bill":          {[]row{order{ID: 3}, with(byBill, func(l *orderLine) { l.PartnerBillID = ptr(int64(901)) })}, "3"},
		"a larger one":             {[]row{order{ID: 3}, own, with(own, func(l *orderLine) { l.ID = 31 })}, "3"},
		"a larger one of no order": {[]row{order{ID: 3}, own, with(own, func(l *orderLine) { l.ID, l.PaymentOrderID = 31, 4 })}, "6"},
		// Its own lines are asked first, whatever became of their orders.
		"own line dead, bill line alive": {[]row{order{ID: 3}, order{ID: 4, Status: 10}, byBill, with(own, func(l *orderLine) { l.ID, l.PaymentOrderID = 29, 4 })}, "3"},
		"own line never valid, bill line alive": {
			[]row{order{ID: 3}, byBill, with(own, func(l *orderLine) { l.ID, l.LineStatus = 31, 10 })}, "6",
		},
		"own line smaller than bill line": {[]row{order{ID: 3}, byBill, with(own, func(l *orderLine) { l.ID = 29 })}, "3"},
	} {
		t.Run(name, func(t *testing.T) {
			w.clear(t)
			w.insert(t, append(bill900(), append(c.lines, failed(1, "5", "x"), push{ID: 50, SourceOrderBillID: 30, Status: 40})...)...)
			w.refresh(t)
			w.expect(t, 1, "external_payment_status", c.want)
		})
	}
}

func TestTimesReasonsAndSources(t *testing.T) {
	w := setup(t, Options{})
	const columns = "latest_payment_time latest_status_time latest_update_time data_source_list treasury_fail_amount"
	for name, c := range map[string]struct {
		facts        []row
		want, reason string
	}{
		"none": {nil, "- - - {} 0.00", ""},
		"newest success": {
			[]row{paid(1, "1"), paid(2, "1"), failed(3, "7", "late")},
			"2026-09-02 10:02:00+00 2026-09-02 10:02:00+00 2026-09-03 10:03:00+00 {10} 7.00", "late",
		},
		"newest failure": {
			[]row{failed(1, "7", "b"), failed(2, "3.50", "a"), waiting(3, 10)},
			"- 2026-09-03 10:02:00+00 2026-09-04 10:03:00+00 {10} 10.50", "b; a",
		},
		"newest of the open ones": {[]row{waiting(1, 10), waiting(2, 20)}, "- 2026-09-04 10:02:00+00 2026-09-04 10:02:00+00 {10} 0.00", ""},
		"sources once each, ascending": {
			[]row{with(paid(1, "1"), func(r *result) { r.ResultSource = 20 }), paid(2, "1"), with(paid(3, "1"), func(r *result) { r.ResultSource = 20 })},
			"2026-09-02 10:03:00+00 2026-09-02 10:03:00+00 2026-09-01 00:00:00+00 {10,20} 0.00", "",
		},
		"failures offline are no failures of the treasury": {
			[]row{with(failed(1, "7", "b"), func(r *result) { r.ResultSource = 20 })},
			"- 2026-09-03 10:01:00+00 2026-09-03 10:01:00+00 {20} 0.00", "",
		},
		"blank reasons are left out": {
			[]row{failed(1, "1", "one"), failed(2, "1", "  "), with(failed(3, "1", ""), func(r *result) { r.FailReason = nil }), failed(4, "1", "four")},
			"- 2026-09-03 10:04:00+00 2026-09-03 10:04:00+00 {10} 4.00", "one; four",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w.clear(t)
			w.insert(t, append(bill900(), c.facts...)...)
			w.refresh(t)
			w.expect(t, 1, columns, c.want)
			w.expect(t, 1, "fail_reason", c.reason)
		})
	}
}

func TestPayee(t *testing.T) {
	w := setup(t, Options{})
	line := orderLine{ID: 30, PaymentOrderID: 3, SharingCardName: ptr("Card"), SharingCardBank: ptr("Card-Bank"), SharingCardNo: ptr("Card-No")}
	success := with(paid(1, "1"), func(r *result) { r.OrderBillID = ptr(int64(30)) })
	imported := record{ID: 70, PaymentResultID: ptr(int64(1)), PayeeAccountName: ptr("Import"), PayeeOpenBank: ptr("Import-Bank"), PayeeAccountNo: ptr("Import-No")}
	for name, c := range map[string]struct {
		facts []row
		want  string
	}{
		"no success keeps the old":    {[]row{line, failed(1, "1", "x")}, "Old Old-Bank -"},
		"nothing known keeps the old": {[]row{success}, "Old Old-Bank -"},
		"imported":                    {[]row{line, success, imported}, "Import Import-Bank Import-No"},
		"not imported":                {[]row{line, success}, "Card Card-Bank Card-No"},
		"import not taken":            {[]row{line, success, with(imported, func(r *record) { r.RecordStatus = 10 })}, "Card Card-Bank Card-No"},
		"imported in part":            {[]row{line, success, with(imported, func(r *record) { r.PayeeOpenBank, r.PayeeAccountNo = ptr(" "), nil })}, "Import Card-Bank Card-No"},
		"imported in part, no line":   {[]row{success, with(imported, func(r *record) { r.PayeeOpenBank, r.PayeeAccountNo = ptr(""), nil })}, "Import Old-Bank -"},
		"the newest payment, not the last id": {
			[]row{line, with(success, func(r *result) { r.PaidTime = ptr(at("05 00:00")) }), paid(2, "1"), record{ID: 71, PaymentResultID: ptr(int64(2)), PayeeAccountName: ptr("Second")}},
			"Card Card-Bank Card-No",
		},
		"the larger id where the times are equal": {
			[]row{line, success, with(success, func(r *result) { r.ID, r.OrderBillID = 2, nil }), record{ID: 71, PaymentResultID: ptr(int64(2)), PayeeAccountName: ptr("Second")}},
			"Second Old-Bank -",
		},
		"a success that is not counted": {[]row{line, with(success, func(r *result) { r.ResultType = 20 })}, "Old Old-Bank -"},
		"a payment without a time comes last": {
			[]row{line, success, with(paid(2, "1"), func(r *result) { r.PaidTime = nil }), record{ID: 71, PaymentResultID: ptr(int64(2)), PayeeAccountName: ptr("Second")}},
			"Card Card-Bank Card-No",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w.clear(t)
			w.insert(t, difference{ID: 1, PartnerBillID: ptr(int64(900))},
				snapshot{ID: 1, PlannedAmount: "100", PayeeAccountName: ptr("Old"), PayeeOpenBank: ptr("Old-Bank")}, order{ID: 3})
			w.insert(t, c.facts...)
			w.refresh(t)
			w.expect(t, 1, "payee_account_name payee_open_bank payee_account_no", c.want)
		})
	}
}
