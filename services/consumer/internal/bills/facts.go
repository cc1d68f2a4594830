package bills

// The computation of a set of differences, shared by both modes. A statement
// begins with a CTE
//
//	d (id, partner_org_id, partner_bill_id, small_station_no)
//
// of differences of station $1 and month $2, continues with factsSQL, and gets
//
//	facts: one row a difference.
//
// It is one statement for thousands of differences; inside it every difference
// looks its rows up by an index, with its whole key. That is linear whatever the
// planner believes of a month its statistics have not seen, keeps nothing in
// memory, and costs the same in a small scope and in a page of a large one.
//
// Words: a result is counted when it is a success (30), normal (10), and paid
// by the treasury (10) or offline (20). It has failed at 40, is open at 10 and
// 20. Its time is when it was paid or, where it was not, when it last changed.
const factsSQL = `
facts AS (
	SELECT d.id, s.actual, s.treasury_fail_amount, s.fail_reason, s.payment_count, s.fail_count, s.open_count,
		s.latest_payment_time, s.latest_update_time, s.sources, s.paid_at, s.failed_at, s.changed_at,
		y.payee_account_name, y.payee_open_bank, y.payee_account_no,
		-- What a failure means outside is asked only where it is one.
		s.payment_count = 0 AND s.fail_count > 0 AND coalesce(` + failureIsFinal + `, false) AS failure_is_final
	FROM d
	CROSS JOIN LATERAL (` + sums + `) s
	LEFT JOIN LATERAL (` + payee + `) y ON s.payment_count > 0)`

// located are a difference's results. One locator for status and amounts: the
// partner's bill or, where a difference has none, the small station's number
// among results without one.
const locatedResults = `
	SELECT id, order_bill_id, result_source, paid_amount, paid_time, fail_reason, updated_at, coalesce(paid_time, updated_at) AS status_time,
		result_status = 40 AS failed, result_status IN (10, 20) AS open,
		result_status = 30 AND result_type = 10 AND result_source IN (10, 20) AS counted
	FROM (
		SELECT * FROM bills.payment_result r
		WHERE r.station_id = $1 AND r.bill_month = $2 AND r.partner_bill_id = d.partner_bill_id AND r.partner_org_id = d.partner_org_id
		UNION ALL
		SELECT * FROM bills.payment_result r
		WHERE d.partner_bill_id IS NULL AND r.station_id = $1 AND r.bill_month = $2 AND r.partner_bill_id IS NULL
			AND r.small_station_no = d.small_station_no AND r.partner_org_id = d.partner_org_id
	) r WHERE result_status IN (10, 20, 30, 40)`

const sums = `
	SELECT coalesce(sum(paid_amount) FILTER (WHERE counted), 0) AS actual,
		coalesce(sum(paid_amount) FILTER (WHERE failed AND result_source = 10), 0) AS treasury_fail_amount,
		coalesce(string_agg(bills.filled(fail_reason), '; ' ORDER BY id) FILTER (WHERE failed AND result_source = 10), '') AS fail_reason,
		(count(*) FILTER (WHERE counted))::int AS payment_count,
		(count(*) FILTER (WHERE failed))::int AS fail_count,
		(count(*) FILTER (WHERE open))::int AS open_count,
		max(paid_time) FILTER (WHERE counted) AS latest_payment_time,
		max(updated_at) AS latest_update_time,
		coalesce(array_agg(DISTINCT result_source ORDER BY result_source), '{}') AS sources,
		max(status_time) FILTER (WHERE counted) AS paid_at,
		max(status_time) FILTER (WHERE failed) AS failed_at,
		max(status_time) AS changed_at
	FROM (` + locatedResults + `) r`

// payee is who was paid last: the imported record's word, else, field by field,
// the card of the order line the payment belongs to.
const payee = `
	SELECT coalesce(bills.filled(i.payee_account_name), bills.filled(c.sharing_card_name)) AS payee_account_name,
		coalesce(bills.filled(i.payee_open_bank), bills.filled(c.sharing_card_bank)) AS payee_open_bank,
		coalesce(bills.filled(i.payee_account_no), bills.filled(c.sharing_card_no)) AS payee_account_no
	FROM (SELECT id, order_bill_id FROM (` + locatedResults + `) r WHERE counted ORDER BY paid_time DESC NULLS LAST, id DESC LIMIT 1) p
	LEFT JOIN LATERAL (SELECT * FROM bills.import_record i
		WHERE i.station_id = $1 AND i.payment_result_id = p.id AND i.record_status = 20 ORDER BY i.id DESC LIMIT 1) i ON true
	LEFT JOIN LATERAL (SELECT * FROM bills.payment_order_bill c WHERE c.station_id = $1 AND c.id = p.order_bill_id OFFSET 0) c ON true`

// failureIsFinal: the newest order line was to be paid offline, or was pushed to
// the treasury and each push, looked at by itself, has ended.
//
// The newest line is the one with the largest id whose order is alive, among a
// difference's own lines or, where it has none of these at all, those of its
// partner's bill.
const failureIsFinal = `(
	SELECT payment_type = 20 OR (
		SELECT bool_and(p.status IN (30, 40)) FROM bills.push_batch_detail p
		WHERE p.station_id = $1 AND p.source_order_bill_id = n.id AND NOT p.deleted)
	FROM (
		SELECT l.id, (SELECT o.payment_type FROM bills.payment_order o WHERE o.id = l.payment_order_id AND NOT o.deleted AND o.status IN (40, 50)) AS payment_type
		FROM (
			SELECT b.id, b.payment_order_id FROM bills.payment_order_bill b WHERE b.diff_id = d.id AND ` + usableLine + `
			UNION ALL
			SELECT b.id, b.payment_order_id FROM bills.payment_order_bill b WHERE b.partner_bill_id = d.partner_bill_id AND ` + usableLine + `
				AND NOT EXISTS (SELECT FROM bills.payment_order_bill b WHERE b.diff_id = d.id AND ` + usableLine + `)
		) l ORDER BY l.id DESC OFFSET 0
	) n WHERE payment_type IS NOT NULL LIMIT 1)`

const usableLine = `b.station_id = $1 AND b.bill_month = $2 AND b.partner_org_id = d.partner_org_id
	AND NOT b.deleted AND b.line_type = 10 AND b.line_status IN (20, 30, 40)`

// statusSQL are the columns that follow from facts f and a planned amount:
// status decides rank, time and what is shown outside. $3 is the policy for
// partial payment. A success beats any failure.
const statusSQL = `
	f.actual - planned AS difference_amount,
	CASE WHEN f.actual <> 0 AND f.actual <> planned THEN 20 ELSE 10 END::smallint AS anomaly_flag,
	CASE
		WHEN f.payment_count > 0 AND $3::bool AND (f.open_count > 0 OR f.fail_count > 0 OR f.actual < planned) THEN 60
		WHEN f.payment_count > 0 THEN 30
		WHEN f.fail_count > 0 THEN 40
		ELSE 0 END::smallint AS status`

// outcomeSQL are the columns that follow from the status.
const outcomeSQL = `
	CASE status WHEN 30 THEN 5 WHEN 60 THEN 4 WHEN 40 THEN CASE WHEN failure_is_final THEN 6 ELSE 3 END ELSE 2 END::smallint AS external,
	CASE status WHEN 30 THEN 3 WHEN 40 THEN 2 ELSE 1 END::smallint AS status_rank,
	CASE status WHEN 30 THEN paid_at WHEN 40 THEN failed_at ELSE changed_at END AS status_time`
