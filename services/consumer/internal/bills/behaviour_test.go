package bills

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
	"lockstep.dev/services/consumer/internal/refresh"
)

func (w *world) resolve(t testing.TB, text string) []refresh.Scope {
	t.Helper()
	payload := w.request(t, text)
	var scopes []refresh.Scope
	err := pg.InTx(t.Context(), w.pool, func(tx pgx.Tx) error {
		scopes = nil
		return w.Resolve(t.Context(), tx, payload, func(s refresh.Scope) error {
			scopes = append(scopes, s)
			// The transaction is free for the caller's own statements.
			_, err := tx.Exec(t.Context(), `SELECT 1`)
			return err
		})
	})
	if err != nil {
		t.Fatalf("resolve %s: %v", text, err)
	}
	return scopes
}

// A bill without the partner's id has its status and its amount from the same
// results: no "paid" with nothing paid.
func TestStatusAndAmountsHaveOneLocator(t *testing.T) {
	w := setup(t, Options{})
	w.insert(t, difference{ID: 1, SmallStationNo: ptr("S-1")}, snapshot{ID: 1, PlannedAmount: "100"},
		result{ID: 1, SmallStationNo: ptr("S-1"), ResultStatus: 30, PaidAmount: "100"})
	w.refresh(t)
	w.expect(t, 1, "bill_dimension_payment_status payment_count actual_paid_amount", "30 1 100.00")
}

func TestARowWhoseFactsDidNotChangeIsNotRewritten(t *testing.T) {
	w := setup(t, Options{})
	w.insert(t, append(bill900(), paid(1, "60"), difference{ID: 2}, snapshot{ID: 2}, difference{ID: 3})...)
	expectCounts(t, w.refresh(t), refresh.Counts{Differences: 3, Updated: 1, Unchanged: 1, Missed: 1, MissedIDs: []int64{3}})
	before := w.everything(t, "bill_snapshot")
	expectCounts(t, w.refresh(t), refresh.Counts{Differences: 3, Unchanged: 2, Missed: 1, MissedIDs: []int64{3}})
	if after := w.everything(t, "bill_snapshot"); after != before {
		t.Errorf("the second refresh changed\n%s\nto\n%s", before, after)
	}
	w.exec(t, `DELETE FROM bills.payment_result`)
	expectCounts(t, w.refresh(t), refresh.Counts{Differences: 3, Updated: 1, Unchanged: 1, Missed: 1, MissedIDs: []int64{3}})
	w.expect(t, 1, money+" refresh_version bill_dimension_payment_status", "100.00 0.00 -100.00 10 3 0")
}

// Whatever the facts are, these columns and all facts stay as they were.
func TestARefreshNeverTouchesWhatIsNotItsOwn(t *testing.T) {
	w := setup(t, Options{})
	w.insert(t, append(bill900(), order{ID: 3, SettlementMonth: ptr(int32(202609))},
		orderLine{ID: 30, PaymentOrderID: 3, DiffID: ptr(int64(1)), CurrentPaymentAmount: "77", SharingCardName: ptr("New")},
		with(paid(1, "60"), func(r *result) { r.OrderBillID = ptr(int64(30)) }), record{ID: 70, PaymentResultID: ptr(int64(1))})...)
	w.exec(t, `UPDATE bills.bill_snapshot SET partner_org_id = 6, partner_bill_id = 1, small_bill_id = 2, small_station_no = 'S-0', project_company_id = 3,
		sharing_card_name = 'Frozen', sharing_card_bank = 'Frozen', sharing_card_no = 'Frozen', latest_payment_order_id = 4, latest_order_bill_id = 5,
		payment_order_no = 'PO-0', settlement_month = 202601, snapshot_status = 10, created_at = '2026-01-01Z'`)
	tables := allTables[:len(allTables)-1]
	before := map[string]string{}
	for _, table := range tables {
		before[table] = w.everything(t, table)
	}
	w.refresh(t)
	w.expect(t, 1, "station_id bill_month partner_org_id partner_bill_id small_bill_id small_station_no project_company_id", "17 202608 6 1 2 S-0 3")
	w.expect(t, 1, "sharing_card_name sharing_card_bank sharing_card_no latest_payment_order_id latest_order_bill_id payment_order_no settlement_month",
		"Frozen Frozen Frozen 4 5 PO-0 202601")
	w.expect(t, 1, "planned_amount created_at", "100.00 2026-01-01 00:00:00+00")
	w.expect(t, 1, "actual_paid_amount payee_account_name snapshot_status refresh_version", "60.00 New 20 2")
	for _, table := range tables {
		if after := w.everything(t, table); after != before[table] {
			t.Errorf("%s changed from\n%s\nto\n%s", table, before[table], after)
		}
	}
}

func TestAScopeWithoutDifferencesKeepsItsSnapshots(t *testing.T) {
	w := setup(t, Options{})
	w.insert(t, snapshot{ID: 1, PlannedAmount: "100"})
	before := w.everything(t, "bill_snapshot")
	expectCounts(t, w.refresh(t), refresh.Counts{Warnings: 1})
	if after := w.everything(t, "bill_snapshot"); after != before {
		t.Errorf("the snapshot changed to %s", after)
	}
}

func TestAllDifferencesOfAScopeAreRefreshedWhateverLedToIt(t *testing.T) {
	w := setup(t, Options{})
	w.insert(t, append(bill900(), paid(1, "60"), difference{ID: 2, PartnerOrgID: 6}, snapshot{ID: 2, PlannedAmount: "5"},
		difference{ID: 3, BillMonth: 202607}, snapshot{ID: 3, BillMonth: 202607})...)
	counts, err := w.try(t, w.request(t, `{"diff_ids":[1]}`), here)
	if err != nil {
		t.Fatal(err)
	}
	expectCounts(t, counts, refresh.Counts{Differences: 2, Updated: 1, Unchanged: 1})
	w.expect(t, 1, "refresh_source", "EXISTING_ONLY") // nobody said who asked
}

func TestWhoAskedStandsInTheRowWhereverItWasSaid(t *testing.T) {
	for name, c := range map[string]struct{ payload, beside, want string }{
		"in the payload":             {`{"diff_ids":[1],"trigger":"import"}`, "", "import"},
		"beside it":                  {`{"diff_ids":[1]}`, "operator/anna", "operator/anna"},
		"in both: beside it is said": {`{"diff_ids":[1],"trigger":"import"}`, "operator/anna", "operator/anna"},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t, Options{})
			w.insert(t, append(bill900(), paid(1, "60"))...)
			parsed, err := w.Parse([]byte(c.payload), c.beside)
			if err != nil || parsed.Trigger != c.want {
				t.Fatalf("trigger %q, %v", parsed.Trigger, err)
			}
			if _, err := w.try(t, parsed.Payload, here); err != nil {
				t.Fatal(err)
			}
			w.expect(t, 1, "refresh_source", c.want)
		})
	}
}

func TestBatchesOfAScopeAddUp(t *testing.T) {
	w := setup(t, Options{})
	w.batch = 7
	w.exec(t, `INSERT INTO bills.income_difference (station_id, id, bill_month, partner_org_id, partner_bill_id) SELECT 17, n, 202608, 5, n FROM generate_series(1, 300) n`)
	w.exec(t, `INSERT INTO bills.bill_snapshot (station_id, id, diff_id, bill_month, partner_org_id) SELECT 17, n, n, 202608, 5 FROM generate_series(1, 150) n`)
	w.exec(t, `INSERT INTO bills.payment_result (station_id, id, bill_month, partner_org_id, partner_bill_id, result_status, result_type, result_source, paid_amount)
		SELECT 17, n, 202608, 5, n, 30, 10, 10, n FROM generate_series(1, 300, 3) n`)
	counts := w.refresh(t)
	if len(counts.MissedIDs) != refresh.MaxMissedIDs || counts.MissedIDs[0] != 151 || counts.MissedIDs[99] != 250 {
		t.Errorf("missed %v", counts.MissedIDs)
	}
	counts.MissedIDs = nil
	expectCounts(t, counts, refresh.Counts{Differences: 300, Updated: 50, Unchanged: 100, Missed: 150})
	w.expect(t, 148, "actual_paid_amount", "148.00")
}

func TestResolve(t *testing.T) {
	w := setup(t, Options{})
	w.insert(t,
		difference{ID: 1, StationID: 20}, difference{ID: 2, StationID: 3, BillMonth: 202607, ProjectCompanyID: ptr(int64(8)), PartnerOrgID: 6},
		difference{ID: 3, StationID: 3, ProjectCompanyID: ptr(int64(9))}, difference{ID: 4, StationID: 20},
		snapshot{ID: 1, StationID: 99}, snapshot{ID: 50, StationID: 44},
		order{ID: 5, PaymentOrderNo: "N-5", Status: 10, Deleted: true}, order{ID: 6, PaymentOrderNo: "N-6"},
		orderLine{ID: 60, PaymentOrderID: 5, StationID: 61, LineType: 30, LineStatus: 90, Deleted: true},
		orderLine{ID: 61, PaymentOrderID: 6, StationID: 62}, orderLine{ID: 62, PaymentOrderID: 6, StationID: 62},
		record{ID: 70, StationID: 71, BillMonth: ptr(int32(202605)), ImportBatchNo: "B", RecordStatus: 99}, record{ID: 71, StationID: 72, ImportBatchNo: "B"})
	s := func(id int64, month int32) refresh.Scope { return refresh.Scope{ID: id, Month: month} }
	for name, c := range map[string]struct {
		request string
		want    []refresh.Scope
	}{
		"scopes as given, once, in order":    {`{"scopes":[{"station_id":9,"bill_month":"2026-08"},{"station_id":"7","bill_month":"202612"},{"station_id":9,"bill_month":"202608"}]}`, []refresh.Scope{s(7, 202612), s(9, 202608)}},
		"differences":                        {`{"diff_ids":[4,2,1,1]}`, []refresh.Scope{s(3, 202607), s(20, august)}},
		"a difference that is gone":          {`{"diff_ids":[50,51]}`, []refresh.Scope{s(44, august)}},
		"an order, whatever its status":      {`{"payment_order_ids":[5]}`, []refresh.Scope{s(61, august)}},
		"an order's number":                  {`{"payment_order_nos":["N-6"]}`, []refresh.Scope{s(62, august)}},
		"an import batch, whatever's status": {`{"import_batch_no":"B"}`, []refresh.Scope{s(71, 202605)}},
		"months":                             {`{"month_from":"202608","month_to":"2026-08"}`, []refresh.Scope{s(3, august), s(20, august)}},
		"until a month":                      {`{"month_to":"202607"}`, []refresh.Scope{s(3, 202607)}},
		"companies":                          {`{"project_company_ids":[8,9]}`, []refresh.Scope{s(3, 202607), s(3, august)}},
		"a partner":                          {`{"partner_org_id":6}`, []refresh.Scope{s(3, 202607)}},
		"months and companies and partner":   {`{"month_from":"202607","project_company_ids":[8,9],"partner_org_id":5}`, []refresh.Scope{s(3, august)}},
		"the union of two":                   {`{"diff_ids":[1],"project_company_ids":[9],"month_to":"202608"}`, []refresh.Scope{s(3, august), s(20, august)}},
		"nothing":                            {`{"partner_org_id":77}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.resolve(t, c.request)
			if toJSON(t, got) != toJSON(t, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
