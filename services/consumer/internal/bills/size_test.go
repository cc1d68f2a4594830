package bills

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
	"lockstep.dev/services/consumer/internal/refresh"
)

// load fills stations 1 to n with as many differences each, with lines, results,
// imports, pushes and snapshots: two thirds of the bills are paid, some in two
// parts, some failed.
func (w *world) load(t testing.TB, stations, each int) {
	t.Helper()
	for _, sql := range []string{
		`INSERT INTO bills.income_difference (station_id, id, bill_month, partner_org_id, partner_bill_id, small_station_no)
			SELECT 1 + n / $2, n + 1, 202608, 5, CASE WHEN n % 10 > 0 THEN n END, 'S-' || n FROM generate_series(0, $1 * $2 - 1) n`,
		`INSERT INTO bills.payment_order (id, payment_order_no, status, payment_type) SELECT n, 'PO-' || n, 40, 10 FROM generate_series(1, 1 + $1 * $2 / 1000) n`,
		`INSERT INTO bills.payment_order_bill (station_id, id, bill_month, payment_order_id, line_type, line_status, diff_id, partner_org_id, partner_bill_id, current_payment_amount, sharing_card_name, sharing_card_bank, sharing_card_no)
			SELECT 1 + n / $2, n + 1, 202608, 1 + n / 1000, 10, 20, n + 1, 5, CASE WHEN n % 10 > 0 THEN n END, 100, 'name ' || n, 'bank', '6222 ' || n FROM generate_series(0, $1 * $2 - 1) n`,
		`INSERT INTO bills.payment_result (station_id, id, bill_month, partner_org_id, partner_bill_id, small_station_no, order_bill_id, result_status, result_type, result_source, paid_amount, paid_time, fail_reason)
			SELECT 1 + n / $2, 2 * n + k, 202608, 5, CASE WHEN n % 10 > 0 THEN n END, 'S-' || n, n + 1, CASE WHEN n % 3 = 0 THEN 40 ELSE 30 END, 10, 10, 40 + n % 20,
				CASE WHEN n % 3 > 0 THEN timestamptz '2026-09-01Z' + n * interval '1 second' END, CASE WHEN n % 3 = 0 THEN 'account closed' END
			FROM generate_series(0, $1 * $2 - 1) n, generate_series(1, 2) k WHERE k = 1 OR n % 2 = 0`,
		`INSERT INTO bills.import_record (station_id, id, bill_month, import_batch_no, record_status, payment_result_id, payee_account_name, payee_open_bank, payee_account_no)
			SELECT 1 + n / $2, n + 1, 202608, 'B', 20, 2 * n + 1, 'payee ' || n, 'bank', '6222 ' || n FROM generate_series(0, $1 * $2 - 1, 4) n`,
		`INSERT INTO bills.push_batch_detail (station_id, id, source_order_bill_id, status) SELECT 1 + n / $2, n + 1, n + 1, 10 * (1 + n % 4) FROM generate_series(0, $1 * $2 - 1) n`,
		`INSERT INTO bills.bill_snapshot (station_id, id, diff_id, bill_month, partner_org_id, planned_amount, difference_amount)
			SELECT 1 + n / $2, n + 1, n + 1, 202608, 5, 100, -100 FROM generate_series(0, $1 * $2 - 1) n`,
	} {
		w.exec(t, strings.NewReplacer("$1", strconv.Itoa(stations), "$2", strconv.Itoa(each)).Replace(sql))
	}
}

// The number of statements does not grow with the number of differences.
func TestStatementsOfAScopeAreConstant(t *testing.T) {
	w := setup(t, Options{})
	w.load(t, 1, 10)
	count := func(what string, differences int64) int64 {
		t.Helper()
		payload := w.request(t, `{"scopes":[{"station_id":1,"bill_month":"202608"}]}`)
		before := w.statements.Load()
		counts, err := w.try(t, payload, refresh.Scope{ID: 1, Month: august})
		if err != nil {
			t.Fatal(err)
		}
		if counts.Differences != differences {
			t.Fatalf("%s: %+v", what, counts)
		}
		return w.statements.Load() - before
	}
	first := count("ten", 10)
	w.clear(t)
	w.load(t, 1, 1000)
	second := count("a thousand", 1000)
	if first != second {
		t.Errorf("%d statements for 10 differences, %d for 1000", first, second)
	}
	if first > 4 { // begin, the planner's settings, the refresh, commit
		t.Errorf("%d statements", first)
	}
}

// A page of a review costs the same, whatever number of lines it has.
func TestStatementsOfAReviewsPageAreConstant(t *testing.T) {
	counts := map[int]int64{}
	for _, lines := range []int{10, 100} {
		w := setup(t, Options{})
		w.reviewed(t)
		w.exec(t, `INSERT INTO bills.income_difference (station_id, id, bill_month, partner_org_id) SELECT 17, n, 202608, 5 FROM generate_series(100, 200) n`)
		w.exec(t, fmt.Sprintf(`INSERT INTO bills.payment_order_bill (station_id, id, bill_month, payment_order_id, data_version, submit_round, line_type, line_status, diff_id, partner_org_id, current_payment_amount)
			SELECT 17, n, 202608, 3, 4, 5, 10, 20, n, 5, n FROM generate_series(100, %d) n`, 99+lines))
		before := w.statements.Load()
		expectCounts(t, w.created(t), refresh.Counts{Differences: int64(lines), Created: int64(lines)})
		counts[lines] = w.statements.Load() - before
	}
	if counts[10] != counts[100] || counts[10] > 6 {
		t.Errorf("statements by lines: %v", counts)
	}
}

// A scope of 50 000 differences: its rows stay in the database, whatever its size.
func TestALargeScopeStaysInBoundedMemory(t *testing.T) {
	const size = 50_000
	w := setup(t, Options{})
	w.load(t, 1, size)
	w.exec(t, `DELETE FROM bills.bill_snapshot WHERE id % 5 = 0`)
	payload := w.request(t, thisScope)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	statements := w.statements.Load()
	counts, err := w.try(t, payload, refresh.Scope{ID: 1, Month: august})
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if counts.Differences != size || counts.Updated != size*4/5 || counts.Missed != size/5 || len(counts.MissedIDs) != refresh.MaxMissedIDs {
		t.Errorf("counts %+v", counts)
	}
	// Everything it ever allocated, not only what was alive at once.
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 2<<20 {
		t.Errorf("%d KiB allocated for %d differences", allocated>>10, size)
	}
	if n := w.statements.Load() - statements; n > 3+size/existingBatch+1 {
		t.Errorf("%d statements", n)
	}
}

// BenchmarkRefresh refreshes scopes of 100 differences whose facts changed, one
// after another on one connection, and as many whose facts did not.
func BenchmarkRefresh(b *testing.B) {
	const stations, each = 500, 100
	w := setup(b, Options{})
	w.load(b, stations, each)
	w.exec(b, `VACUUM ANALYZE`)
	payload := w.request(b, thisScope)
	for _, change := range []bool{true, false} {
		b.Run(fmt.Sprintf("changed=%v", change), func(b *testing.B) {
			n := 0
			for b.Loop() {
				s := refresh.Scope{ID: int64(1 + n%stations), Month: august}
				if n++; change {
					b.StopTimer()
					w.exec(b, `UPDATE bills.payment_result SET paid_amount = paid_amount + 1, updated_at = now() WHERE station_id = $1`, s.ID)
					b.StartTimer()
				}
				err := pg.InTx(b.Context(), w.pool, func(tx pgx.Tx) error {
					counts, err := w.Refresh(b.Context(), tx, payload, s)
					if err == nil && counts.Differences != each {
						return fmt.Errorf("counts %+v", counts)
					}
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(each*b.N)/b.Elapsed().Seconds(), "differences/s")
		})
	}
}
