package bills

import (
	"context"
	"fmt"

	"lockstep.dev/services/consumer/internal/refresh"
)

// existing refreshes all differences of the scope whose snapshots are there, a
// batch of ids a statement.
func (r *scopeRun) existing(ctx context.Context, batch int) error {
	var after int64
	for {
		var read, updated, unchanged int64
		var missed []int64
		err := r.tx.QueryRow(ctx, updateExisting, r.scope.ID, r.scope.Month, r.partial, after, batch, r.source, refresh.MaxMissedIDs-len(r.counts.MissedIDs)).
			Scan(&read, &after, &updated, &unchanged, &missed)
		if err != nil {
			return fmt.Errorf("refresh the differences above %d: %w", after, err)
		}
		r.counts.Add(refresh.Counts{
			Differences: read, Updated: updated, Unchanged: unchanged, Missed: read - updated - unchanged, MissedIDs: missed,
		})
		if read < int64(batch) {
			break
		}
	}
	if r.counts.Differences == 0 {
		r.counts.Warnings++ // its snapshots, if there are any, stay as they are
	}
	return nil
}

// updateExisting reads the facts of one batch, computes its rows, writes those
// that are otherwise now, and counts.
//
// It never names the planned amount, the order and line a row was traced to, the
// locators, or the sharing card as something to set.
const updateExisting = `WITH
d AS MATERIALIZED (
	SELECT id, partner_org_id, partner_bill_id, small_station_no FROM bills.income_difference
	WHERE station_id = $1 AND bill_month = $2 AND id > $4::bigint ORDER BY id LIMIT $5::bigint),` + factsSQL + `,
stored AS MATERIALIZED (
	SELECT * FROM bills.bill_snapshot WHERE station_id = $1 AND id = ANY (ARRAY(SELECT id FROM d))),
judged AS (
	SELECT f.*, ` + statusSQL + `
	FROM facts f JOIN (SELECT id, planned_amount AS planned FROM stored) s USING (id)),
target AS (
	SELECT j.*, ` + outcomeSQL + ` FROM judged j),
changed AS MATERIALIZED (
	SELECT t.* FROM target t JOIN stored s USING (id)
	WHERE (t.actual, t.treasury_fail_amount, t.fail_reason, t.difference_amount, t.anomaly_flag, t.payment_count, t.fail_count,
			t.latest_payment_time, t.latest_update_time, t.status, t.external, t.sources, t.status_time, t.status_rank,
			coalesce(t.payee_account_name, s.payee_account_name), coalesce(t.payee_open_bank, s.payee_open_bank),
			coalesce(t.payee_account_no, s.payee_account_no), 20)
		IS DISTINCT FROM (s.actual_paid_amount, s.treasury_fail_amount, s.fail_reason, s.difference_amount, s.anomaly_flag, s.payment_count, s.fail_count,
			s.latest_payment_time, s.latest_update_time, s.bill_dimension_payment_status, s.external_payment_status, s.data_source_list,
			s.latest_status_time, s.latest_status_rank, s.payee_account_name, s.payee_open_bank, s.payee_account_no, s.snapshot_status)),
-- Rows are locked in one order by everybody.
locked AS MATERIALIZED (
	SELECT id FROM bills.bill_snapshot WHERE station_id = $1 AND id = ANY (ARRAY(SELECT id FROM changed)) ORDER BY id FOR UPDATE),
written AS (
	UPDATE bills.bill_snapshot s SET
		actual_paid_amount = c.actual, difference_amount = c.difference_amount, anomaly_flag = c.anomaly_flag,
		treasury_fail_amount = c.treasury_fail_amount, fail_reason = c.fail_reason, payment_count = c.payment_count, fail_count = c.fail_count,
		latest_payment_time = c.latest_payment_time, latest_update_time = c.latest_update_time,
		bill_dimension_payment_status = c.status, external_payment_status = c.external, data_source_list = c.sources,
		latest_status_time = c.status_time, latest_status_rank = c.status_rank,
		payee_account_name = coalesce(c.payee_account_name, s.payee_account_name),
		payee_open_bank = coalesce(c.payee_open_bank, s.payee_open_bank),
		payee_account_no = coalesce(c.payee_account_no, s.payee_account_no),
		snapshot_status = 20, refresh_version = s.refresh_version + 1, last_refresh_time = now(), refresh_source = $6, updated_at = now()
	FROM changed c JOIN locked USING (id)
	WHERE s.station_id = $1 AND s.id = c.id AND s.id = ANY (ARRAY(SELECT id FROM locked))
	RETURNING s.id)
SELECT (SELECT count(*) FROM d), coalesce((SELECT max(id) FROM d), 0), (SELECT count(*) FROM written),
	(SELECT count(*) FROM stored) - (SELECT count(*) FROM changed),
	ARRAY(SELECT id FROM d WHERE NOT EXISTS (SELECT FROM stored s WHERE s.id = d.id) ORDER BY id LIMIT $7::int)`
