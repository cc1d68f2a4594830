package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// FillBills loads stations from first on with as many differences each in one
// month: with lines, results, imports, pushes and snapshots. Two thirds of the
// bills are paid, some in two parts; the others failed.
func (p Pool) FillBills(ctx context.Context, month int32, first, stations, each int) error {
	values := strings.NewReplacer("{month}", strconv.Itoa(int(month)), "{station}", strconv.Itoa(first)+" + n / "+strconv.Itoa(each),
		"{n}", fmt.Sprintf("generate_series(0, %d) n", stations*each-1), "{id}", fmt.Sprintf("(%d + n)", first*each+1))
	for _, sql := range []string{
		`INSERT INTO bills.income_difference (station_id, id, bill_month, partner_org_id, partner_bill_id, small_station_no)
			SELECT {station}, {id}, {month}, 5, CASE WHEN n % 10 > 0 THEN n END, 'S-' || n FROM {n}`,
		`INSERT INTO bills.payment_order (id, payment_order_no, status, payment_type)
			SELECT {month} * 1000 + n, 'PO-{month}-' || n, 40, 10 FROM generate_series(0, 999) n`,
		`INSERT INTO bills.payment_order_bill (station_id, id, bill_month, payment_order_id, line_type, line_status, diff_id, partner_org_id,
				partner_bill_id, current_payment_amount, sharing_card_name, sharing_card_bank, sharing_card_no)
			SELECT {station}, {id}, {month}, {month} * 1000 + n % 1000, 10, 20, {id}, 5, CASE WHEN n % 10 > 0 THEN n END, 100, 'name ' || n, 'bank', '6222 ' || n FROM {n}`,
		`INSERT INTO bills.payment_result (station_id, id, bill_month, partner_org_id, partner_bill_id, small_station_no, order_bill_id,
				result_status, result_type, result_source, paid_amount, paid_time, fail_reason)
			SELECT {station}, 2 * {id} + k, {month}, 5, CASE WHEN n % 10 > 0 THEN n END, 'S-' || n, {id}, CASE WHEN n % 3 = 0 THEN 40 ELSE 30 END, 10, 10,
				40 + n % 20, CASE WHEN n % 3 > 0 THEN timestamptz '2026-09-01Z' + n * interval '1 second' END, CASE WHEN n % 3 = 0 THEN 'account closed' END
			FROM {n}, generate_series(1, 2) k WHERE k = 1 OR n % 2 = 0`,
		`INSERT INTO bills.import_record (station_id, id, bill_month, import_batch_no, record_status, payment_result_id, payee_account_name, payee_open_bank, payee_account_no)
			SELECT {station}, {id}, {month}, 'B', 20, 2 * {id} + 1, 'payee ' || n, 'bank', '6222 ' || n FROM {n} WHERE n % 4 = 0`,
		`INSERT INTO bills.push_batch_detail (station_id, id, source_order_bill_id, status) SELECT {station}, {id}, {id}, 10 * (1 + n % 4) FROM {n}`,
		`INSERT INTO bills.bill_snapshot (station_id, id, diff_id, bill_month, partner_org_id, planned_amount, difference_amount)
			SELECT {station}, {id}, {id}, {month}, 5, 100, -100 FROM {n}`,
	} {
		if _, err := p.Exec(ctx, values.Replace(sql)); err != nil {
			return fmt.Errorf("load bills of %d: %w", month, err)
		}
	}
	return p.analyzeBills(ctx)
}

func (p Pool) analyzeBills(ctx context.Context) error {
	for _, table := range []string{
		"income_difference", "payment_order", "payment_order_bill", "payment_result", "import_record", "push_batch_detail", "bill_snapshot",
	} {
		if err := p.Analyze(ctx, pgx.Identifier{"bills", table}); err != nil {
			return err
		}
	}
	return nil
}

// ChangePayments gives every bill of a month news.
func (p Pool) ChangePayments(ctx context.Context, month int32) error {
	_, err := p.Exec(ctx, `UPDATE bills.payment_result SET paid_amount = paid_amount + 1, updated_at = clock_timestamp() WHERE bill_month = $1`, month)
	if err != nil {
		return fmt.Errorf("change payments: %w", err)
	}
	return p.analyzeBills(ctx)
}

// RefreshLease is how a refresh task is held right now.
type RefreshLease struct {
	Held    bool
	Left    time.Duration // of the lease
	Attempt int64
	Ended   bool
}

// RefreshLease looks at it, by the clock of the database.
func (p Pool) RefreshLease(ctx context.Context, id string) (l RefreshLease, err error) {
	err = p.QueryRow(ctx, `SELECT p.claim_token IS NOT NULL, coalesce(p.lease_until - clock_timestamp(), '0'), coalesce(p.attempt, 0),
			t.state NOT IN ('PENDING', 'RUNNING')
		FROM lockstep.refresh_task t LEFT JOIN lockstep.refresh_progress p USING (task_id) WHERE t.task_id = $1::uuid`, id).
		Scan(&l.Held, &l.Left, &l.Attempt, &l.Ended)
	if err != nil {
		return RefreshLease{}, fmt.Errorf("look at the lease of %s: %w", id, err)
	}
	return l, nil
}

// CountStatements makes the server count, or no longer count, the statements of
// every database. false: it can't, pg_stat_statements is not loaded.
func (p Pool) CountStatements(ctx context.Context, on bool) (bool, error) {
	var loaded bool
	if err := p.QueryRow(ctx, `SELECT current_setting('shared_preload_libraries') ~ 'pg_stat_statements'`).Scan(&loaded); err != nil || !loaded {
		return false, err
	}
	track := "none"
	if on {
		track = "top"
	}
	for _, sql := range []string{
		`CREATE EXTENSION IF NOT EXISTS pg_stat_statements`,
		`ALTER SYSTEM SET pg_stat_statements.track = ` + track,
		`SELECT pg_reload_conf()`,
	} {
		if _, err := p.Exec(ctx, sql); err != nil {
			return false, fmt.Errorf("count statements: %w", err)
		}
	}
	return true, nil
}

// Statements is how many statements this database has been counted to run,
// transactions' begins and ends included.
func (p Pool) Statements(ctx context.Context) (n int64, err error) {
	err = p.QueryRow(ctx, `SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
		WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count statements: %w", err)
	}
	return n, nil
}
