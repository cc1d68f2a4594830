package bills

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/services/consumer/internal/refresh"
)

const reviewText = `{"mode":"REVIEW_CREATE","trigger":"review","review":{"review_progress_id":1,"status_shard_id":2,"payment_order_id":3,"data_version":4,
	"submit_round":5,"approval_attempt":6,"review_plan_id":7,"finalize_time":"2026-09-01T10:00:00.123456Z","first_order_bill_id":100,"last_order_bill_id":200}}`

// reviewed stores the four facts of the review above.
func (w *world) reviewed(t testing.TB) {
	t.Helper()
	w.insert(t, order{ID: 3, PaymentOrderNo: "PO-3", Status: 40, SettlementMonth: ptr(int32(202609)), CurrentPublishVersion: 4, SubmitRound: 5, ReviewPlanID: ptr(int64(7))})
	w.exec(t, `INSERT INTO bills.review_progress (id, payment_order_id, data_version, submit_round, approval_attempt, review_plan_id, review_passed, main_task_status, payable_count, target_order_status, finalize_time)
		VALUES (1, 3, 4, 5, 6, 7, true, 'SUCCESS', 1, 40, '2026-09-01T10:00:00.123456Z')`)
	w.exec(t, `INSERT INTO bills.order_approval (id, payment_order_id, data_version, submit_round, approval_attempt, review_plan_id, approval_status) VALUES (1, 3, 4, 5, 6, 7, 'APPROVED')`)
	w.exec(t, `INSERT INTO bills.status_shard (id, source_type, source_id, payment_order_id, data_version, submit_round, approval_attempt, review_plan_id, first_order_bill_id, last_order_bill_id)
		VALUES (2, 'REVIEW_APPROVED', 1, 3, 4, 5, 6, 7, 100, 200)`)
}

// payable is line 100 of the review, of difference 1.
func payable(change func(*orderLine)) orderLine {
	line := orderLine{
		ID: 100, PaymentOrderID: 3, DataVersion: 4, SubmitRound: 5, DiffID: ptr(int64(1)), PartnerBillID: ptr(int64(900)), CurrentPaymentAmount: "100",
		SharingCardName: ptr("Card"), SharingCardBank: ptr("Card-Bank"), SharingCardNo: ptr("Card-No"), ProjectCompanyID: ptr(int64(8)), SmallStationNo: ptr("S-9"),
	}
	if change != nil {
		change(&line)
	}
	return line
}

func (w *world) check(t testing.TB) error {
	t.Helper()
	payload := w.request(t, reviewText)
	return pg.InTx(t.Context(), w.pool, func(tx pgx.Tx) error { return w.Check(t.Context(), tx, payload) })
}

func (w *world) create(t testing.TB) (refresh.Counts, error) {
	t.Helper()
	return w.try(t, w.request(t, reviewText), here)
}

func (w *world) created(t testing.TB) refresh.Counts {
	t.Helper()
	counts, err := w.create(t)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return counts
}

// Each stored fact is asked by itself: one untrue word is enough.
func TestAReviewNeedsAllItsStoredFacts(t *testing.T) {
	w := setup(t, Options{})
	world := func(t *testing.T) {
		w.clear(t)
		w.reviewed(t)
		w.insert(t, difference{ID: 1, PartnerBillID: ptr(int64(900))}, payable(nil))
	}
	world(t)
	if err := w.check(t); err != nil {
		t.Fatalf("an allowed review is refused: %v", err)
	}
	for name, lie := range map[string]string{
		"progress: not passed":          `UPDATE bills.review_progress SET review_passed = false`,
		"progress: task not done":       `UPDATE bills.review_progress SET main_task_status = 'RUNNING'`,
		"progress: another time":        `UPDATE bills.review_progress SET finalize_time = finalize_time + interval '1 microsecond'`,
		"progress: no time":             `UPDATE bills.review_progress SET finalize_time = NULL`,
		"progress: nothing payable":     `UPDATE bills.review_progress SET payable_count = 0`,
		"progress: another target":      `UPDATE bills.review_progress SET target_order_status = 50`,
		"progress: no target":           `UPDATE bills.review_progress SET target_order_status = NULL`,
		"progress: another order":       `UPDATE bills.review_progress SET payment_order_id = 9`,
		"progress: another version":     `UPDATE bills.review_progress SET data_version = 9`,
		"progress: another round":       `UPDATE bills.review_progress SET submit_round = 9`,
		"progress: another attempt":     `UPDATE bills.review_progress SET approval_attempt = 9`,
		"progress: another plan":        `UPDATE bills.review_progress SET review_plan_id = 9`,
		"progress: gone":                `DELETE FROM bills.review_progress`,
		"approval: not approved":        `UPDATE bills.order_approval SET approval_status = 'REJECTED'`,
		"approval: another order":       `UPDATE bills.order_approval SET payment_order_id = 9`,
		"approval: another version":     `UPDATE bills.order_approval SET data_version = 9`,
		"approval: another round":       `UPDATE bills.order_approval SET submit_round = 9`,
		"approval: another attempt":     `UPDATE bills.order_approval SET approval_attempt = 9`,
		"approval: another plan":        `UPDATE bills.order_approval SET review_plan_id = 9`,
		"approval: gone":                `DELETE FROM bills.order_approval`,
		"order: deleted":                `UPDATE bills.payment_order SET deleted = true`,
		"order: another version":        `UPDATE bills.payment_order SET current_publish_version = 9`,
		"order: another round":          `UPDATE bills.payment_order SET submit_round = 9`,
		"order: another plan":           `UPDATE bills.payment_order SET review_plan_id = 9`,
		"order: no plan":                `UPDATE bills.payment_order SET review_plan_id = NULL`,
		"order: gone":                   `DELETE FROM bills.payment_order`,
		"shard: deleted":                `UPDATE bills.status_shard SET deleted = true`,
		"shard: another kind of source": `UPDATE bills.status_shard SET source_type = 'IMPORT'`,
		"shard: another source":         `UPDATE bills.status_shard SET source_id = 9`,
		"shard: another order":          `UPDATE bills.status_shard SET payment_order_id = 9`,
		"shard: another version":        `UPDATE bills.status_shard SET data_version = 9`,
		"shard: another round":          `UPDATE bills.status_shard SET submit_round = 9`,
		"shard: another attempt":        `UPDATE bills.status_shard SET approval_attempt = 9`,
		"shard: another plan":           `UPDATE bills.status_shard SET review_plan_id = 9`,
		"shard: begins elsewhere":       `UPDATE bills.status_shard SET first_order_bill_id = 99`,
		"shard: ends elsewhere":         `UPDATE bills.status_shard SET last_order_bill_id = 201`,
		"shard: gone":                   `DELETE FROM bills.status_shard`,
	} {
		t.Run(name, func(t *testing.T) {
			world(t)
			w.exec(t, lie)
			err := w.check(t)
			expectReason(t, err, fault.IdentityMismatch)
			_, err = w.create(t)
			expectReason(t, err, fault.IdentityMismatch)
			if rows := w.everything(t, "bill_snapshot"); rows != "" {
				t.Errorf("there is a snapshot: %s", rows)
			}
		})
	}
	for name, change := range map[string]string{
		"the order's own status": `UPDATE bills.payment_order SET status = 10`,
		"the shard's success":    `UPDATE bills.status_shard SET status = 'FAILED'`,
	} {
		t.Run("not asked: "+name, func(t *testing.T) {
			world(t)
			w.exec(t, change)
			if err := w.check(t); err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
}

func TestAReviewLetsABillIn(t *testing.T) {
	w := setup(t, Options{})
	w.reviewed(t)
	w.insert(t, difference{ID: 1, PartnerBillID: ptr(int64(900))}, payable(nil), paid(40, "60"))
	expectCounts(t, w.created(t), refresh.Counts{Differences: 1, Created: 1})
	w.expect(t, 1, "station_id id diff_id bill_month partner_org_id partner_bill_id small_station_no project_company_id", "17 1 1 202608 5 900 S-9 8")
	w.expect(t, 1, "sharing_card_name sharing_card_bank sharing_card_no latest_payment_order_id latest_order_bill_id payment_order_no settlement_month",
		"Card Card-Bank Card-No 3 100 PO-3 202609")
	w.expect(t, 1, money+" bill_dimension_payment_status external_payment_status", "100.00 60.00 -40.00 20 30 5")
	w.expect(t, 1, "payee_account_name payee_open_bank payee_account_no snapshot_status refresh_version refresh_source", "Card Card-Bank Card-No 20 1 review")

	// The same again changes nothing; a facts' change makes the next version.
	w.exec(t, `UPDATE bills.bill_snapshot SET created_at = '2026-01-01Z'`)
	expectCounts(t, w.created(t), refresh.Counts{Differences: 1, Unchanged: 1})
	w.expect(t, 1, "refresh_version", "1")
	w.exec(t, `UPDATE bills.payment_order_bill SET current_payment_amount = 80, sharing_card_no = 'New'`)
	expectCounts(t, w.created(t), refresh.Counts{Differences: 1, Updated: 1})
	w.expect(t, 1, money+" sharing_card_no payee_account_no refresh_version created_at", "80.00 60.00 -20.00 20 New New 2 2026-01-01 00:00:00+00")

	// An ordinary refresh finds the row as it would have computed it.
	expectCounts(t, w.refresh(t), refresh.Counts{Differences: 1, Unchanged: 1})
}

func TestAReviewUpdatesButNeverMovesARow(t *testing.T) {
	w := setup(t, Options{})
	w.reviewed(t)
	w.insert(t, difference{ID: 1, PartnerBillID: ptr(int64(900))}, payable(nil), snapshot{ID: 1, BillMonth: 202607, PlannedAmount: "1"})
	expectCounts(t, w.created(t), refresh.Counts{Differences: 1, Updated: 1})
	w.expect(t, 1, "station_id bill_month planned_amount", "17 202607 100.00")
}

func TestPayeeOfAReview(t *testing.T) {
	w := setup(t, Options{})
	for name, c := range map[string]struct {
		facts []row
		want  string
	}{
		"without any success, the line's card": {[]row{payable(nil)}, "Card Card-Bank Card-No"},
		"a field the card lacks is kept":       {[]row{payable(func(l *orderLine) { l.SharingCardBank = ptr(" ") })}, "Card Old-Bank Card-No"},
		"the import, then the card": {
			[]row{payable(nil), paid(40, "1"), record{ID: 1, PaymentResultID: ptr(int64(40)), PayeeAccountName: ptr("Import")}}, "Import Card-Bank Card-No",
		},
		"the import, the paid line, the review's line": {
			[]row{
				payable(nil), with(paid(40, "1"), func(r *result) { r.OrderBillID = ptr(int64(30)) }),
				orderLine{ID: 30, PaymentOrderID: 3, SharingCardBank: ptr("Paid-Bank")},
				record{ID: 1, PaymentResultID: ptr(int64(40)), PayeeAccountName: ptr("Import")},
			}, "Import Paid-Bank Card-No",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w.clear(t)
			w.reviewed(t)
			w.insert(t, difference{ID: 1, PartnerBillID: ptr(int64(900))}, snapshot{ID: 1, PayeeAccountName: ptr("Old"), PayeeOpenBank: ptr("Old-Bank")})
			w.insert(t, c.facts...)
			w.created(t)
			w.expect(t, 1, "payee_account_name payee_open_bank payee_account_no", c.want)
		})
	}
}

func TestWhichLinesAReviewHas(t *testing.T) {
	w := setup(t, Options{})
	for name, c := range map[string]struct {
		change  func(*orderLine)
		created int64
	}{
		"the first":        {nil, 1},
		"the last":         {func(l *orderLine) { l.ID = 200 }, 1},
		"any status":       {func(l *orderLine) { l.LineStatus = 90 }, 1},
		"before the first": {func(l *orderLine) { l.ID = 99 }, 0},
		"after the last":   {func(l *orderLine) { l.ID = 201 }, 0},
		"deleted":          {func(l *orderLine) { l.Deleted = true }, 0},
		"not payable":      {func(l *orderLine) { l.LineType = 20 }, 0},
		"another version":  {func(l *orderLine) { l.DataVersion = 3 }, 0},
		"another round":    {func(l *orderLine) { l.SubmitRound = 4 }, 0},
		"another order":    {func(l *orderLine) { l.PaymentOrderID = 4 }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w.clear(t)
			w.reviewed(t)
			w.insert(t, difference{ID: 1, PartnerBillID: ptr(int64(900))}, payable(c.change))
			if scopes := w.resolve(t, reviewText); int64(len(scopes)) != c.created {
				t.Errorf("scopes %v", scopes)
			}
			expectCounts(t, w.created(t), refresh.Counts{Differences: c.created, Created: c.created, Warnings: 1 - c.created})
		})
	}
}

func TestHowALineFindsItsDifference(t *testing.T) {
	w := setup(t, Options{})
	bill, small := ptr(int64(900)), ptr("S-9")
	byID := func(*orderLine) {}
	byBill := func(l *orderLine) { l.DiffID = nil }
	bySmall := func(l *orderLine) { l.DiffID, l.PartnerBillID = nil, nil }
	for name, c := range map[string]struct {
		line   func(*orderLine)
		others []row
		reason fault.Reason
		diff   int64
	}{
		"by id":                         {byID, []row{difference{ID: 1, PartnerBillID: bill}}, "", 1},
		"by id, gone":                   {byID, []row{difference{ID: 2, PartnerBillID: bill}}, fault.LocatorMissing, 0},
		"by id, another partner":        {byID, []row{difference{ID: 1, PartnerBillID: bill, PartnerOrgID: 6}}, fault.LocatorMissing, 0},
		"by id, another month":          {byID, []row{difference{ID: 1, PartnerBillID: bill, BillMonth: 202607}}, fault.LocatorMissing, 0},
		"by id, another station":        {byID, []row{difference{ID: 1, PartnerBillID: bill, StationID: 18}}, fault.LocatorMissing, 0},
		"by id, another bill":           {byID, []row{difference{ID: 1, PartnerBillID: ptr(int64(901))}}, fault.LocatorMissing, 0},
		"by id, difference has no bill": {byID, []row{difference{ID: 1}}, fault.LocatorMissing, 0},
		"by id, line has no bill":       {func(l *orderLine) { l.PartnerBillID = nil }, []row{difference{ID: 1, PartnerBillID: bill}}, "", 1},
		"by bill":                       {byBill, []row{difference{ID: 2, PartnerBillID: bill}}, "", 2},
		"by bill, none":                 {byBill, []row{difference{ID: 2, SmallStationNo: small}}, fault.LocatorMissing, 0},
		"by bill, another partner":      {byBill, []row{difference{ID: 2, PartnerBillID: bill, PartnerOrgID: 6}}, fault.LocatorMissing, 0},
		"by bill, two":                  {byBill, []row{difference{ID: 2, PartnerBillID: bill}, difference{ID: 3, PartnerBillID: bill}}, fault.LocatorAmbiguous, 0},
		"by small number":               {bySmall, []row{difference{ID: 2, SmallStationNo: small}}, "", 2},
		"by small number, it has a bill": {
			bySmall, []row{difference{ID: 2, SmallStationNo: small, PartnerBillID: bill}}, fault.LocatorMissing, 0,
		},
		"by small number, one of two has a bill": {
			bySmall, []row{difference{ID: 2, SmallStationNo: small, PartnerBillID: bill}, difference{ID: 3, SmallStationNo: small}}, "", 3,
		},
		"by small number, two": {bySmall, []row{difference{ID: 2, SmallStationNo: small}, difference{ID: 3, SmallStationNo: small}}, fault.LocatorAmbiguous, 0},
		"by nothing":           {func(l *orderLine) { l.DiffID, l.PartnerBillID, l.SmallStationNo = nil, nil, nil }, []row{difference{ID: 2}}, fault.LocatorMissing, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w.clear(t)
			w.reviewed(t)
			// Line 101 finds its difference; it is not written where line 100 finds none.
			w.insert(t, payable(c.line), payable(func(l *orderLine) { l.ID, l.DiffID, l.PartnerBillID = 101, ptr(int64(77)), nil }), difference{ID: 77})
			w.insert(t, c.others...)
			counts, err := w.create(t)
			if c.reason != "" {
				expectReason(t, err, c.reason)
				if rows := w.everything(t, "bill_snapshot"); rows != "" {
					t.Errorf("there is a snapshot: %s", rows)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			expectCounts(t, counts, refresh.Counts{Differences: 2, Created: 2})
			w.expect(t, c.diff, "latest_order_bill_id", "100")
		})
	}
}

// Line numbers run against ids, over several pages: no line is lost.
func TestNoLineIsLostWhereLineNumbersRunAgainstIDs(t *testing.T) {
	w := setup(t, Options{})
	w.page = 7
	w.reviewed(t)
	w.exec(t, `INSERT INTO bills.income_difference (station_id, id, bill_month, partner_org_id) SELECT 17, n, 202608, 5 FROM generate_series(100, 200) n`)
	w.exec(t, `INSERT INTO bills.payment_order_bill (station_id, id, bill_month, payment_order_id, data_version, submit_round, line_no, line_type, line_status, diff_id, partner_org_id, current_payment_amount)
		SELECT 17, n, 202608, 3, 4, 5, 300 - n, 10, 20, n, 5, n FROM generate_series(100, 200) n`)
	expectCounts(t, w.created(t), refresh.Counts{Differences: 101, Created: 101})
}

// A page is judged whole before it is written, and a scope fails whole.
func TestALineThatCantBeLocatedFailsTheScope(t *testing.T) {
	w := setup(t, Options{})
	w.page = 10
	w.reviewed(t)
	w.exec(t, `INSERT INTO bills.income_difference (station_id, id, bill_month, partner_org_id) SELECT 17, n, 202608, 5 FROM generate_series(100, 150) n WHERE n <> 145`)
	w.exec(t, `INSERT INTO bills.payment_order_bill (station_id, id, bill_month, payment_order_id, data_version, submit_round, line_type, line_status, diff_id, partner_org_id, current_payment_amount)
		SELECT 17, n, 202608, 3, 4, 5, 10, 20, n, 5, n FROM generate_series(100, 150) n`)
	_, err := w.create(t)
	expectReason(t, err, fault.LocatorMissing)
	if !strings.Contains(err.Error(), "145") {
		t.Errorf("%v does not name line 145", err)
	}
	if rows := w.everything(t, "bill_snapshot"); rows != "" {
		t.Errorf("there are snapshots: %s", rows)
	}
}

// Two lines of one difference: the later one stays, over pages and within one.
func TestTwoLinesOfOneDifference(t *testing.T) {
	for _, page := range []int{1, 500} {
		t.Run(fmt.Sprintf("pages of %d", page), func(t *testing.T) {
			w := setup(t, Options{})
			w.page = page
			w.reviewed(t)
			w.insert(t, difference{ID: 1, PartnerBillID: ptr(int64(900))}, payable(nil), payable(func(l *orderLine) { l.ID, l.CurrentPaymentAmount = 101, "70" }))
			if counts := w.created(t); counts.Created != 1 || counts.LateSkipped != 0 {
				t.Errorf("counts %+v", counts)
			}
			w.expect(t, 1, "latest_order_bill_id planned_amount", "101 70.00")
			// The first one again is late now; the second finds itself.
			if counts := w.created(t); counts.LateSkipped != 1 || counts.Unchanged != 1 {
				t.Errorf("counts %+v", counts)
			}
			w.expect(t, 1, "latest_order_bill_id planned_amount refresh_version", "101 70.00 "+map[int]string{1: "2", 500: "1"}[page])
		})
	}
}

// What a snapshot stands for is found through its newest order line.
func TestALateReviewWritesNothing(t *testing.T) {
	w := setup(t, Options{})
	later, earlier := at("05 00:00"), at("01 00:00")
	other := progress{ID: 9, PaymentOrderID: 8, DataVersion: 2, SubmitRound: 1, ApprovalAttempt: 1, ReviewPlanID: 7, ReviewPassed: true, FinalizeTime: &later}
	for name, c := range map[string]struct {
		progress []row
		late     bool
	}{
		"finalized later":   {[]row{other}, true},
		"finalized earlier": {[]row{with(other, func(p *progress) { p.FinalizeTime = &earlier })}, false},
		"did not pass":      {[]row{with(other, func(p *progress) { p.ReviewPassed = false })}, false},
		"another version":   {[]row{with(other, func(p *progress) { p.DataVersion = 3 })}, false},
		"another order":     {[]row{with(other, func(p *progress) { p.PaymentOrderID = 9 })}, false},
		"no time":           {[]row{with(other, func(p *progress) { p.FinalizeTime = nil })}, false},
		// The newest passed one counts, by round, attempt, id; the others don't.
		"a later round was earlier":    {[]row{other, with(other, func(p *progress) { p.ID, p.SubmitRound, p.FinalizeTime = 8, 2, &earlier })}, false},
		"a later attempt was earlier":  {[]row{other, with(other, func(p *progress) { p.ID, p.ApprovalAttempt, p.FinalizeTime = 8, 2, &earlier })}, false},
		"a later id was earlier":       {[]row{other, with(other, func(p *progress) { p.ID, p.FinalizeTime = 10, &earlier })}, false},
		"an earlier round was earlier": {[]row{with(other, func(p *progress) { p.SubmitRound = 2 }), with(other, func(p *progress) { p.ID, p.FinalizeTime = 10, &earlier })}, true},
		"a later round has no time":    {[]row{other, with(other, func(p *progress) { p.ID, p.SubmitRound, p.FinalizeTime = 8, 2, nil })}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w.clear(t)
			w.reviewed(t)
			w.insert(t, difference{ID: 1, PartnerBillID: ptr(int64(900))}, payable(nil), paid(40, "60"), difference{ID: 2},
				payable(func(l *orderLine) { l.ID, l.DiffID, l.PartnerBillID = 101, ptr(int64(2)), nil }),
				orderLine{ID: 30, PaymentOrderID: 8, DataVersion: 2}, snapshot{ID: 1, LatestOrderBillID: ptr(int64(30)), PlannedAmount: "1"})
			w.insert(t, c.progress...)
			counts := w.created(t)
			if c.late {
				expectCounts(t, counts, refresh.Counts{Differences: 2, Created: 1, LateSkipped: 1})
				w.expect(t, 1, "planned_amount actual_paid_amount refresh_version latest_order_bill_id", "1.00 0.00 1 30")
				return
			}
			expectCounts(t, counts, refresh.Counts{Differences: 2, Created: 1, Updated: 1})
			w.expect(t, 1, "planned_amount actual_paid_amount refresh_version latest_order_bill_id", "100.00 60.00 2 100")
		})
	}
}
