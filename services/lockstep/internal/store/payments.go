package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
	"lockstep.dev/services/lockstep/internal/world"
)

// The codes of the payment tables that the example uses.
const (
	payable      = 10 // line_type
	inPayment    = 20 // line_status
	awaitsPay    = 40 // an order's status
	byTreasury   = 10 // payment_type, result_source
	offline      = 20 // result_source
	normal       = 10 // result_type
	succeeded    = 30 // result_status; a push's end, too
	failed       = 40 // result_status
	pushUnderWay = 20
	imported     = 20 // record_status: it became a result
)

// sheet is rows for one table of schema bills.
type sheet struct {
	table   string
	columns []string
	rows    [][]any
}

func (s *sheet) add(values ...any) { s.rows = append(s.rows, values) }

func (p Pool) copySheets(ctx context.Context, schema string, sheets ...*sheet) error {
	return pg.InTx(ctx, p.Pool, func(tx pgx.Tx) error {
		for _, s := range sheets {
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{schema, s.table}, s.columns, pgx.CopyFromRows(s.rows)); err != nil {
				return fmt.Errorf("load %s.%s: %w", schema, s.table, err)
			}
		}
		return nil
	})
}

// FillPayments loads the bills, the orders they are paid by, the snapshots of
// those that were reviewed, and the review that the others wait for. Nothing is
// paid yet.
func (p Pool) FillPayments(ctx context.Context) error {
	bills := world.Bills()
	return p.copySheets(ctx, "bills", append(reviewSheets(), orders(), billDifferences(bills), lines(bills), snapshots(bills))...)
}

// Pay writes the payments that the stored snapshots do not show yet.
func (p Pool) Pay(ctx context.Context) error {
	payments, pushes := world.Payments()
	results := &sheet{table: "payment_result", columns: []string{
		"station_id", "id", "bill_month", "partner_org_id", "partner_bill_id", "small_station_no", "order_bill_id",
		"result_status", "result_type", "result_source", "paid_amount", "paid_time", "fail_reason", "updated_at",
	}}
	records := &sheet{table: "import_record", columns: []string{
		"station_id", "id", "bill_month", "import_batch_no", "record_status", "payment_result_id", "payee_account_name", "payee_open_bank", "payee_account_no",
	}}
	for _, m := range payments {
		status, source, paid := succeeded, byTreasury, &m.At
		if m.Failed {
			status, paid = failed, nil
		}
		if m.Offline {
			source = offline
			records.add(m.Bill.Station, m.ID, m.Bill.Month, fmt.Sprintf("import-%d", m.Bill.Month), imported, m.ID, m.Payee.Name, m.Payee.Bank, m.Payee.No)
		}
		results.add(m.Bill.Station, m.ID, m.Bill.Month, world.Partner, null(m.Bill.PartnerBillID), null(m.Bill.SmallStationNo), m.Bill.ID,
			status, normal, source, m.Amount, paid, null(m.Reason), m.At)
	}
	details := &sheet{table: "push_batch_detail", columns: []string{"station_id", "id", "source_order_bill_id", "status"}}
	for _, push := range pushes {
		status := succeeded
		if push.Open {
			status = pushUnderWay
		}
		details.add(push.Bill.Station, push.ID, push.Bill.ID, status)
	}
	return p.copySheets(ctx, "bills", results, records, details)
}

// null makes a zero value SQL NULL.
func null[T comparable](value T) any {
	var zero T
	if value == zero {
		return nil
	}
	return value
}

func orders() *sheet {
	s := &sheet{table: "payment_order", columns: []string{"id", "payment_order_no", "status", "payment_type", "settlement_month", "review_plan_id"}}
	for _, o := range world.Orders() {
		s.add(o.ID, o.No, awaitsPay, byTreasury, o.Month, world.TheReview().Plan)
	}
	return s
}

func billDifferences(bills []world.Bill) *sheet {
	s := &sheet{table: "income_difference", columns: []string{
		"station_id", "id", "bill_month", "partner_org_id", "partner_bill_id", "small_station_no", "project_company_id",
	}}
	for _, b := range bills {
		s.add(b.Station, b.ID, b.Month, world.Partner, null(b.PartnerBillID), null(b.SmallStationNo), b.Company)
	}
	return s
}

func lines(bills []world.Bill) *sheet {
	s := &sheet{table: "payment_order_bill", columns: []string{
		"station_id", "id", "bill_month", "payment_order_id", "line_type", "line_status", "diff_id", "partner_org_id", "partner_bill_id",
		"small_station_no", "project_company_id", "current_payment_amount", "sharing_card_name", "sharing_card_bank", "sharing_card_no",
	}}
	for _, b := range bills {
		if b.Order != 0 {
			s.add(b.Station, b.ID, b.Month, b.Order, payable, inPayment, b.ID, world.Partner, null(b.PartnerBillID),
				null(b.SmallStationNo), b.Company, b.Planned, b.Card.Name, b.Card.Bank, b.Card.No)
		}
	}
	return s
}

// snapshots are rows as reviews of long ago left them: nothing was paid.
func snapshots(bills []world.Bill) *sheet {
	s := &sheet{table: "bill_snapshot", columns: []string{
		"station_id", "id", "diff_id", "bill_month", "partner_org_id", "partner_bill_id", "small_station_no", "project_company_id",
		"latest_payment_order_id", "latest_order_bill_id", "payment_order_no", "settlement_month", "planned_amount", "difference_amount",
		"sharing_card_name", "sharing_card_bank", "sharing_card_no", "payee_account_name", "payee_open_bank", "payee_account_no", "refresh_source",
	}}
	for _, b := range bills {
		if b.Stored {
			s.add(b.Station, b.ID, b.ID, b.Month, world.Partner, null(b.PartnerBillID), null(b.SmallStationNo), b.Company,
				b.Order, b.ID, fmt.Sprintf("PO-%d", b.Month), b.Month, b.Planned, "-"+b.Planned,
				b.Card.Name, b.Card.Bank, b.Card.No, b.Card.Name, b.Card.Bank, b.Card.No, "review")
		}
	}
	return s
}

// reviewSheets are the facts that a review's request is held to.
func reviewSheets() []*sheet {
	const version, round, attempt = 1, 1, 1
	r := world.TheReview()
	identity := []any{r.Order, version, round, attempt, r.Plan}
	columns := []string{"payment_order_id", "data_version", "submit_round", "approval_attempt", "review_plan_id"}
	sheetOf := func(table string, more []string, values ...any) *sheet {
		return &sheet{table: table, columns: append(more, columns...), rows: [][]any{append(values, identity...)}}
	}
	return []*sheet{
		sheetOf("review_progress", []string{"id", "review_passed", "main_task_status", "payable_count", "target_order_status", "finalize_time"},
			r.Progress, true, "SUCCESS", r.Lines, awaitsPay, r.Finalized),
		sheetOf("order_approval", []string{"id", "approval_status"}, r.Approval, "APPROVED"),
		sheetOf("status_shard", []string{"id", "source_type", "source_id", "first_order_bill_id", "last_order_bill_id"},
			r.Shard, "REVIEW_APPROVED", r.Progress, r.First, r.Last),
	}
}

// FillScores loads observations of a few candidates, and no score.
func (p Pool) FillScores(ctx context.Context) error {
	facts := &sheet{table: "candidate_fact", columns: []string{"candidate_id", "id", "period", "dimension", "value"}}
	for candidate := 1; candidate <= 3; candidate++ {
		for dimension := 1; dimension <= 8; dimension++ {
			facts.add(candidate, dimension, world.LastMonth, dimension, fmt.Sprintf("%d.50", 50+5*candidate+dimension))
		}
	}
	return p.copySheets(ctx, "scores", facts)
}
