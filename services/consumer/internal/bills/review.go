package bills

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/consumer/internal/refresh"
)

// review works the review's lines of the scope off, ordered by id, the cursor's
// own column. A page is located and judged whole before any of it is written.
func (r *scopeRun) review(ctx context.Context, review *review, page int) error {
	var after int64
	for first := true; ; first = false {
		lines, err := r.locate(ctx, review, after, page)
		if err != nil {
			return err
		}
		if len(lines) == 0 {
			if first {
				r.counts.Warnings++
			}
			return nil
		}
		if err := review.check(ctx, r.tx); err != nil {
			return err
		}
		allowed, err := r.judge(review, lines)
		if err != nil {
			return err
		}
		if err := r.write(ctx, review, allowed); err != nil {
			return err
		}
		if len(lines) < page {
			return nil
		}
		after = lines[len(lines)-1].LineID
	}
}

// located is a review's line, the differences that fit it, and what the
// snapshot of the difference stands for now.
type located struct {
	LineID     int64
	Matches    int64
	DiffID     *int64
	LatestLine *int64
	ProgressID *int64
	OrderID    *int64
	Version    *int64
	Round      *int64
	Attempt    *int64
	PlanID     *int64
	Finalized  *time.Time
}

// standing gives what the snapshot was last written for, invalid where there is
// no snapshot or where its review can't be found.
func (l *located) standing() standing {
	s := standing{
		Line: value(l.LatestLine), Progress: value(l.ProgressID), Order: value(l.OrderID), Version: value(l.Version),
		Round: value(l.Round), Attempt: value(l.Attempt), Plan: value(l.PlanID),
	}
	if l.Finalized != nil {
		s.Finalized = l.Finalized.UnixMicro()
	}
	return s
}

func value(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

func (r *scopeRun) locate(ctx context.Context, review *review, after int64, page int) ([]located, error) {
	rows, err := r.tx.Query(ctx, locateLines, r.scope.ID, r.scope.Month, review.PaymentOrderID, review.DataVersion, review.SubmitRound,
		max(after+1, int64(review.FirstOrderBillID)), review.LastOrderBillID, page)
	if err != nil {
		return nil, fmt.Errorf("locate lines above %d: %w", after, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[located])
	if err != nil {
		return nil, fmt.Errorf("locate lines above %d: %w", after, err)
	}
	return lines, nil
}

// judge decides for each line of a page, in order, whether it may be written. The
// last line allowed for a difference is the one that stays.
func (r *scopeRun) judge(review *review, lines []located) (map[int64]int64, error) {
	allowed := map[int64]int64{} // difference to line
	current := map[int64]standing{}
	for i := range lines {
		line := &lines[i]
		switch {
		case line.Matches == 0:
			return nil, fault.New(fault.LocatorMissing, "order line id %d fits no difference", line.LineID)
		case line.Matches > 1:
			return nil, fault.New(fault.LocatorAmbiguous, "order line id %d fits %d differences", line.LineID, line.Matches)
		}
		diff := value(line.DiffID)
		before, known := current[diff]
		if !known {
			before = line.standing()
		}
		candidate := review.standing(line.LineID)
		verdict, err := decide(candidate, before)
		if err != nil {
			return nil, err
		}
		if verdict == skip {
			r.counts.LateSkipped++
			current[diff] = before
			continue
		}
		allowed[diff], current[diff] = line.LineID, candidate
	}
	r.counts.Differences += int64(len(current))
	return allowed, nil
}

func (r *scopeRun) write(ctx context.Context, review *review, allowed map[int64]int64) error {
	if len(allowed) == 0 {
		return nil
	}
	diffs, lines := make([]int64, 0, len(allowed)), make([]int64, 0, len(allowed))
	for diff, line := range allowed {
		diffs, lines = append(diffs, diff), append(lines, line)
	}
	var created, updated int64
	err := r.tx.QueryRow(ctx, writeReviewed, r.scope.ID, r.scope.Month, r.partial, review.PaymentOrderID, diffs, lines, r.source).Scan(&created, &updated)
	if err != nil {
		return fmt.Errorf("write reviewed bills: %w", err)
	}
	r.counts.Add(refresh.Counts{Created: created, Updated: updated, Unchanged: int64(len(allowed)) - created - updated})
	return nil
}

// locateLines reads a page of lines, finds their differences, and the review that
// each snapshot was last written for: that of its newest order line.
//
// A line that names its difference fits that one alone, if station, partner,
// month and, where the line has one, the partner's bill agree. A line that does
// not fits by the partner's bill; one without that by the small station's
// number, among differences without a partner's bill.
const locateLines = `WITH
line AS MATERIALIZED (
	SELECT id, diff_id, partner_org_id, partner_bill_id, small_station_no FROM bills.payment_order_bill
	WHERE station_id = $1 AND bill_month = $2 AND payment_order_id = $3 AND data_version = $4 AND submit_round = $5
		AND NOT deleted AND line_type = 10 AND id BETWEEN $6 AND $7
	ORDER BY id LIMIT $8::int)
SELECT l.id, f.matches, f.diff_id, s.latest_order_bill_id,
	p.id, p.payment_order_id, p.data_version, p.submit_round::bigint, p.approval_attempt::bigint, p.review_plan_id, p.finalize_time
FROM line l
CROSS JOIN LATERAL (SELECT count(*) AS matches, min(id) AS diff_id FROM (
	SELECT id FROM bills.income_difference d WHERE d.station_id = $1 AND d.id = l.diff_id AND d.bill_month = $2
		AND d.partner_org_id = l.partner_org_id AND (l.partner_bill_id IS NULL OR l.partner_bill_id = d.partner_bill_id)
	UNION ALL
	SELECT id FROM bills.income_difference d WHERE l.diff_id IS NULL
		AND d.station_id = $1 AND d.bill_month = $2 AND d.partner_bill_id = l.partner_bill_id AND d.partner_org_id = l.partner_org_id
	UNION ALL
	SELECT id FROM bills.income_difference d WHERE l.diff_id IS NULL AND l.partner_bill_id IS NULL
		AND d.station_id = $1 AND d.bill_month = $2 AND d.partner_bill_id IS NULL
		AND d.small_station_no = l.small_station_no AND d.partner_org_id = l.partner_org_id
	) fit) f
LEFT JOIN LATERAL (SELECT latest_order_bill_id FROM bills.bill_snapshot k WHERE k.station_id = $1 AND k.id = f.diff_id OFFSET 0) s ON true
LEFT JOIN LATERAL (SELECT payment_order_id, data_version FROM bills.payment_order_bill b WHERE b.station_id = $1 AND b.id = s.latest_order_bill_id OFFSET 0) n ON true
LEFT JOIN LATERAL (SELECT * FROM bills.review_progress p
	WHERE p.review_passed AND p.payment_order_id = n.payment_order_id AND p.data_version = n.data_version
	ORDER BY p.submit_round DESC, p.approval_attempt DESC, p.id DESC LIMIT 1) p ON true
ORDER BY l.id`

// frozen are the columns a review gives; computed those that follow from the
// payment facts. Station and month of a row are never changed.
const (
	frozen = `partner_org_id, partner_bill_id, small_bill_id, small_station_no, project_company_id,
	sharing_card_name, sharing_card_bank, sharing_card_no, latest_payment_order_id, latest_order_bill_id,
	payment_order_no, settlement_month, planned_amount`
	computed = `actual_paid_amount, difference_amount, anomaly_flag, treasury_fail_amount, fail_reason, payment_count, fail_count,
	latest_payment_time, latest_update_time, bill_dimension_payment_status, external_payment_status, data_source_list,
	latest_status_time, latest_status_rank, payee_account_name, payee_open_bank, payee_account_no, snapshot_status`
)

// writeReviewed inserts and updates the rows of a page's allowed lines ($6),
// each beside its difference ($5).
var writeReviewed = `WITH
d AS MATERIALIZED (
	SELECT d.* FROM unnest($5::bigint[]) a (diff_id) CROSS JOIN LATERAL (
		SELECT id, partner_org_id, partner_bill_id, small_station_no FROM bills.income_difference d
		WHERE d.station_id = $1 AND d.id = a.diff_id AND d.bill_month = $2 OFFSET 0) d),` + factsSQL + `,
reviewed AS MATERIALIZED (
	SELECT a.diff_id AS id, b.partner_org_id, b.partner_bill_id, b.small_bill_id, b.small_station_no, b.project_company_id,
		b.sharing_card_name, b.sharing_card_bank, b.sharing_card_no, b.payment_order_id, b.id AS line_id,
		o.payment_order_no, o.settlement_month, b.current_payment_amount AS planned
	FROM unnest($5::bigint[], $6::bigint[]) a (diff_id, line_id)
	CROSS JOIN LATERAL (SELECT * FROM bills.payment_order_bill b WHERE b.station_id = $1 AND b.id = a.line_id OFFSET 0) b
	CROSS JOIN LATERAL (SELECT payment_order_no, settlement_month FROM bills.payment_order o WHERE o.id = $4 OFFSET 0) o),
stored AS MATERIALIZED (
	SELECT k.* FROM unnest($5::bigint[]) a (diff_id) CROSS JOIN LATERAL (
		SELECT id, payee_account_name, payee_open_bank, payee_account_no FROM bills.bill_snapshot k WHERE k.station_id = $1 AND k.id = a.diff_id OFFSET 0) k),
judged AS (SELECT f.*, ` + statusSQL + ` FROM facts f JOIN reviewed v USING (id)),
target AS (SELECT j.*, ` + outcomeSQL + ` FROM judged j),
written AS (
	INSERT INTO bills.bill_snapshot AS s (station_id, id, diff_id, bill_month, ` + frozen + `, ` + computed + `, refresh_source)
	SELECT $1, v.id, v.id, $2, v.partner_org_id, v.partner_bill_id, v.small_bill_id, v.small_station_no, v.project_company_id,
		v.sharing_card_name, v.sharing_card_bank, v.sharing_card_no, v.payment_order_id, v.line_id, v.payment_order_no, v.settlement_month, v.planned,
		t.actual, t.difference_amount, t.anomaly_flag, t.treasury_fail_amount, t.fail_reason, t.payment_count, t.fail_count,
		t.latest_payment_time, t.latest_update_time, t.status, t.external, t.sources, t.status_time, t.status_rank,
		coalesce(t.payee_account_name, bills.filled(v.sharing_card_name), k.payee_account_name),
		coalesce(t.payee_open_bank, bills.filled(v.sharing_card_bank), k.payee_open_bank),
		coalesce(t.payee_account_no, bills.filled(v.sharing_card_no), k.payee_account_no), 20, $7
	FROM target t JOIN reviewed v USING (id) LEFT JOIN stored k USING (id)
	ORDER BY v.id -- rows are locked in one order by everybody
	ON CONFLICT (station_id, id) DO UPDATE SET
		(` + frozen + `, ` + computed + `) = (` + prefixed("excluded.", frozen, computed) + `),
		refresh_version = s.refresh_version + 1, refresh_source = excluded.refresh_source, last_refresh_time = now(), updated_at = now()
	WHERE (` + prefixed("s.", frozen, computed) + `) IS DISTINCT FROM (` + prefixed("excluded.", frozen, computed) + `)
	RETURNING s.id)
SELECT count(*) FILTER (WHERE k.id IS NULL), count(*) FILTER (WHERE k.id IS NOT NULL) FROM written w LEFT JOIN stored k USING (id)`
