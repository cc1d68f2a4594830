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
		var last, read, changed, updated, unchanged int64
		var missed []int64
		err := r.tx.QueryRow(ctx, updateExisting, r.scope.ID, r.scope.Month, r.partial, after, batch, r.source, refresh.MaxMissedIDs-len(r.counts.MissedIDs)).
			Scan(&last, &read, &changed, &updated, &unchanged, &missed)
		if err != nil {
			return fmt.Errorf("refresh the differences above %d: %w", after, err)
		}
		if updated != changed {
			return fmt.Errorf("%d rows changed and %d were written: somebody writes past the guard", changed, updated)
		}
		r.counts.Add(refresh.Counts{
			Differences: read, Updated: updated, Unchanged: unchanged, Missed: read - updated - unchanged, MissedIDs: missed,
		})
		if read < int64(batch) {
			break
		}
		after = last
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
// locators, or the sharing card as something to set. Rows are locked in one
// order by everybody, by id, before they are written.
const updateExisting = `WITH
d AS MATERIALIZED (
	SELECT id, partner_org_id, partner_bill_id, small_station_no FROM bills.income_difference
	WHERE station_id = $1 AND bill_month = $2 AND id > $4::bigint ORDER BY id LIMIT $5::bigint),` + factsSQL + `,
target AS MATERIALIZED (
	SELECT j.*, ` + outcomeSQL + `
	FROM (SELECT f.*, s.*, ` + statusSQL + `
		FROM facts f CROSS JOIN LATERAL (SELECT ` + storedColumns + ` FROM bills.bill_snapshot k WHERE k.station_id = $1 AND k.id = f.id OFFSET 0) s) j),
changed AS MATERIALIZED (
	SELECT * FROM target t WHERE
		(t.actual, t.treasury_fail_amount, t.fail_reason, t.difference_amount, t.anomaly_flag, t.payment_count, t.fail_count,
			t.latest_payment_time, t.latest_update_time, t.status, t.external, t.sources, t.status_time, t.status_rank, 20,
			coalesce(t.payee_account_name, t.was_account_name), coalesce(t.payee_open_bank, t.was_open_bank), coalesce(t.payee_account_no, t.was_account_no))
		IS DISTINCT FROM (t.was_actual, t.was_fail_amount, t.was_reason, t.was_difference, t.was_anomaly, t.was_payments, t.was_fails,
			t.was_payment_time, t.was_update_time, t.was_status, t.was_external, t.was_sources, t.was_status_time, t.was_rank, t.was_snapshot_status,
			t.was_account_name, t.was_open_bank, t.was_account_no)
	),
locked AS MATERIALIZED (
	SELECT c.id FROM (SELECT id FROM changed ORDER BY id) c CROSS JOIN LATERAL (SELECT FROM bills.bill_snapshot k WHERE k.station_id = $1 AND k.id = c.id FOR UPDATE) k),
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
	FROM changed c
	WHERE s.station_id = $1 AND s.id = c.id AND s.id BETWEEN (SELECT min(id) FROM locked) AND (SELECT max(id) FROM locked)
	RETURNING s.id)
SELECT coalesce((SELECT max(id) FROM d), 0), (SELECT count(*) FROM d), (SELECT count(*) FROM changed), (SELECT count(*) FROM written),
	(SELECT count(*) FROM target) - (SELECT count(*) FROM changed),
	ARRAY(SELECT id FROM d WHERE NOT EXISTS (SELECT FROM target t WHERE t.id = d.id) ORDER BY id LIMIT $7::int)`

// storedColumns is what a row says now, to be compared.
const storedColumns = `k.planned_amount AS planned, k.actual_paid_amount AS was_actual, k.treasury_fail_amount AS was_fail_amount, k.fail_reason AS was_reason,
	k.difference_amount AS was_difference, k.anomaly_flag AS was_anomaly, k.payment_count AS was_payments, k.fail_count AS was_fails,
	k.latest_payment_time AS was_payment_time, k.latest_update_time AS was_update_time, k.bill_dimension_payment_status AS was_status,
	k.external_payment_status AS was_external, k.data_source_list AS was_sources, k.latest_status_time AS was_status_time, k.latest_status_rank AS was_rank,
	k.snapshot_status AS was_snapshot_status, k.payee_account_name AS was_account_name, k.payee_open_bank AS was_open_bank, k.payee_account_no AS was_account_no`
