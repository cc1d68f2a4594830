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
// Each table is read by an index for the scope and a list of keys, never a
// difference at a time.
//
// Words: a result is counted when it is a success (30), normal (10), and paid
// by the treasury (10) or offline (20). It has failed at 40, is open at 10 and
// 20. Its time is when it was paid or, where it was not, when it last changed.
const factsSQL = `
-- The newest order line of a difference: its own lines, or, where it has none of
-- these at all, those of its partner's bill; then only lines of orders alive.
own_line AS MATERIALIZED (
	SELECT d.id, b.id AS line_id, b.payment_order_id
	FROM bills.payment_order_bill b JOIN d ON d.id = b.diff_id AND d.partner_org_id = b.partner_org_id
	WHERE b.station_id = $1 AND b.bill_month = $2 AND b.diff_id = ANY (ARRAY(SELECT id FROM d))
		AND NOT b.deleted AND b.line_type = 10 AND b.line_status IN (20, 30, 40)),
lineless AS MATERIALIZED (
	SELECT d.* FROM d WHERE partner_bill_id IS NOT NULL AND NOT EXISTS (SELECT FROM own_line o WHERE o.id = d.id)),
line AS MATERIALIZED (
	SELECT id, line_id, payment_order_id FROM own_line
	UNION ALL
	SELECT l.id, b.id, b.payment_order_id
	FROM bills.payment_order_bill b JOIN lineless l ON l.partner_bill_id = b.partner_bill_id AND l.partner_org_id = b.partner_org_id
	WHERE b.station_id = $1 AND b.bill_month = $2 AND b.partner_bill_id = ANY (ARRAY(SELECT partner_bill_id FROM lineless))
		AND NOT b.deleted AND b.line_type = 10 AND b.line_status IN (20, 30, 40)),
newest AS MATERIALIZED (
	SELECT DISTINCT ON (l.id) l.id, l.line_id, o.payment_type
	FROM line l JOIN bills.payment_order o ON o.id = l.payment_order_id
	WHERE o.id = ANY (ARRAY(SELECT DISTINCT payment_order_id FROM line)) AND NOT o.deleted AND o.status IN (40, 50)
	ORDER BY l.id, l.line_id DESC),
-- Each push of the newest line is looked at by itself.
push AS (
	SELECT source_order_bill_id AS line_id, bool_and(status IN (30, 40)) AS ended
	FROM bills.push_batch_detail
	WHERE station_id = $1 AND source_order_bill_id = ANY (ARRAY(SELECT line_id FROM newest)) AND NOT deleted
	GROUP BY source_order_bill_id),
-- One locator for status and amounts: the partner's bill or, where a difference
-- has none, the small station's number among results without one.
result AS MATERIALIZED (
	SELECT d.id, r.id AS result_id, r.order_bill_id, r.result_source, r.paid_amount, r.paid_time, r.fail_reason, r.updated_at,
		coalesce(r.paid_time, r.updated_at) AS status_time, r.result_status = 40 AS failed, r.result_status IN (10, 20) AS open,
		r.result_status = 30 AND r.result_type = 10 AND r.result_source IN (10, 20) AS counted
	FROM (
		SELECT *, partner_bill_id AS bill, NULL::text AS small FROM bills.payment_result
		WHERE station_id = $1 AND bill_month = $2 AND partner_bill_id = ANY (ARRAY(SELECT partner_bill_id FROM d WHERE partner_bill_id IS NOT NULL))
			AND result_status IN (10, 20, 30, 40)
	) r JOIN d ON d.partner_bill_id = r.bill AND d.partner_org_id = r.partner_org_id
	UNION ALL
	SELECT d.id, r.id, r.order_bill_id, r.result_source, r.paid_amount, r.paid_time, r.fail_reason, r.updated_at,
		coalesce(r.paid_time, r.updated_at), r.result_status = 40, r.result_status IN (10, 20),
		r.result_status = 30 AND r.result_type = 10 AND r.result_source IN (10, 20)
	FROM bills.payment_result r JOIN d ON d.small_station_no = r.small_station_no AND d.partner_org_id = r.partner_org_id
	WHERE d.partner_bill_id IS NULL AND r.station_id = $1 AND r.bill_month = $2 AND r.partner_bill_id IS NULL
		AND r.small_station_no = ANY (ARRAY(SELECT small_station_no FROM d WHERE partner_bill_id IS NULL AND small_station_no IS NOT NULL))
		AND r.result_status IN (10, 20, 30, 40)),
sums AS (
	SELECT id,
		coalesce(sum(paid_amount) FILTER (WHERE counted), 0) AS actual,
		coalesce(sum(paid_amount) FILTER (WHERE failed AND result_source = 10), 0) AS treasury_fail_amount,
		coalesce(string_agg(fail_reason, '; ' ORDER BY result_id) FILTER (WHERE failed AND result_source = 10 AND bills.filled(fail_reason) IS NOT NULL), '') AS fail_reason,
		(count(*) FILTER (WHERE counted))::int AS payment_count,
		(count(*) FILTER (WHERE failed))::int AS fail_count,
		(count(*) FILTER (WHERE open))::int AS open_count,
		max(paid_time) FILTER (WHERE counted) AS latest_payment_time,
		max(updated_at) AS latest_update_time,
		array_agg(DISTINCT result_source ORDER BY result_source) AS sources,
		max(status_time) FILTER (WHERE counted) AS paid_at,
		max(status_time) FILTER (WHERE failed) AS failed_at,
		max(status_time) AS changed_at
	FROM result GROUP BY id),
-- Who was paid last: the imported record's word, else the order line's card.
last_paid AS MATERIALIZED (
	SELECT DISTINCT ON (id) id, result_id, order_bill_id FROM result WHERE counted
	ORDER BY id, paid_time DESC NULLS LAST, result_id DESC),
record AS (
	SELECT DISTINCT ON (payment_result_id) payment_result_id, payee_account_name, payee_open_bank, payee_account_no
	FROM bills.import_record
	WHERE station_id = $1 AND payment_result_id = ANY (ARRAY(SELECT result_id FROM last_paid)) AND record_status = 20
	ORDER BY payment_result_id, id DESC),
card AS (
	SELECT id, sharing_card_name, sharing_card_bank, sharing_card_no FROM bills.payment_order_bill
	WHERE station_id = $1 AND id = ANY (ARRAY(SELECT order_bill_id FROM last_paid WHERE order_bill_id IS NOT NULL))),
payee AS (
	SELECT l.id,
		coalesce(bills.filled(r.payee_account_name), bills.filled(c.sharing_card_name)) AS payee_account_name,
		coalesce(bills.filled(r.payee_open_bank), bills.filled(c.sharing_card_bank)) AS payee_open_bank,
		coalesce(bills.filled(r.payee_account_no), bills.filled(c.sharing_card_no)) AS payee_account_no
	FROM last_paid l LEFT JOIN record r ON r.payment_result_id = l.result_id LEFT JOIN card c ON c.id = l.order_bill_id),
facts AS (
	SELECT d.id, coalesce(s.actual, 0) AS actual, coalesce(s.treasury_fail_amount, 0) AS treasury_fail_amount,
		coalesce(s.fail_reason, '') AS fail_reason, coalesce(s.payment_count, 0) AS payment_count, coalesce(s.fail_count, 0) AS fail_count,
		coalesce(s.open_count, 0) AS open_count, s.latest_payment_time, s.latest_update_time,
		coalesce(s.sources, '{}') AS sources, s.paid_at, s.failed_at, s.changed_at,
		-- What a failure means outside: final, unless a push of the treasury's may still end otherwise.
		coalesce(n.payment_type = 20, false) OR coalesce(p.ended, false) AS failure_is_final,
		y.payee_account_name, y.payee_open_bank, y.payee_account_no
	FROM d LEFT JOIN sums s USING (id) LEFT JOIN newest n USING (id) LEFT JOIN push p ON p.line_id = n.line_id LEFT JOIN payee y USING (id))`

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
