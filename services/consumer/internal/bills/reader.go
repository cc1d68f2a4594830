package bills

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/internal/cursor"
)

const (
	defaultPage = 50
	maxPage     = 500
	maxChoices  = 1000 // of one list of a filter
)

// Reader reads bill snapshots. It writes nothing, and computes nothing anew.
type Reader struct{ pool *pgxpool.Pool }

// NewReader makes a reader.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool: pool} }

// Filter says which bills; empty fields select all.
type Filter struct {
	StationIDs            []int64
	FirstMonth, LastMonth int32 // yyyyMM, both included
	PartnerOrgID          int64
	ProjectCompanyIDs     []int64
	PaymentOrderNo        string
	PaymentStatuses       []int32
	ExternalStatuses      []int32
	Anomalous             bool // only those
}

// Bill is a snapshot. Amounts are decimals, written out; absent is nil.
type Bill struct {
	DiffID               int64
	StationID            int64
	BillMonth            int32
	PartnerOrgID         int64
	PartnerBillID        *int64
	SmallBillID          *int64
	SmallStationNo       string
	ProjectCompanyID     *int64
	LatestPaymentOrderID *int64
	LatestOrderBillID    *int64
	PaymentOrderNo       string
	SettlementMonth      int32 // 0 is none
	PlannedAmount        string
	ActualPaidAmount     string
	DifferenceAmount     string
	AnomalyFlag          int32
	TreasuryFailAmount   string
	FailReason           string
	PaymentCount         int32
	FailCount            int32
	LatestPaymentTime    *time.Time
	LatestUpdateTime     *time.Time
	PaymentStatus        int32
	ExternalStatus       int32
	DataSources          []int32
	LatestStatusTime     *time.Time
	LatestStatusRank     int32
	PayeeAccountName     string
	PayeeOpenBank        string
	PayeeAccountNo       string
	SharingCardName      string
	SharingCardBank      string
	SharingCardNo        string
	RefreshVersion       int64
	LastRefreshTime      time.Time
	RefreshSource        string
}

const billColumns = `diff_id, station_id, bill_month, partner_org_id, partner_bill_id, small_bill_id, coalesce(small_station_no, ''), project_company_id,
	latest_payment_order_id, latest_order_bill_id, coalesce(payment_order_no, ''), coalesce(settlement_month, 0),
	planned_amount::text, actual_paid_amount::text, difference_amount::text, anomaly_flag::int, treasury_fail_amount::text, fail_reason,
	payment_count, fail_count, latest_payment_time, latest_update_time, bill_dimension_payment_status::int, external_payment_status::int,
	data_source_list::int[], latest_status_time, latest_status_rank::int,
	coalesce(payee_account_name, ''), coalesce(payee_open_bank, ''), coalesce(payee_account_no, ''),
	coalesce(sharing_card_name, ''), coalesce(sharing_card_bank, ''), coalesce(sharing_card_no, ''),
	refresh_version, last_refresh_time, refresh_source`

// Anomalous: something was paid, and it is not what was planned.
func (b *Bill) Anomalous() bool { return b.AnomalyFlag == 20 }

// StationBills sums up a station's bills.
type StationBills struct {
	StationID                                         int64
	Bills                                             int64
	PlannedAmount, ActualPaidAmount, DifferenceAmount string
	PaymentCount, FailCount, Anomalous                int64
	// Of the bill that is first by status time, rank and id, all descending.
	LatestDiffID         int64
	LatestPaymentStatus  int32
	LatestExternalStatus int32
	LatestStatusTime     *time.Time
}

// List reads a page of bills, by month, station and id, all descending. The
// token of the next page is empty at the end. size 0 is 50; the most is 500.
func (r *Reader) List(ctx context.Context, f Filter, size int, token string) ([]Bill, string, error) {
	list := cursor.Of("bills", f)
	after, err := cursor.Resume[[3]int64](list, token)
	if err != nil {
		return nil, "", err
	}
	size = pageSize(size)
	bills, err := r.page(ctx, f, size, after)
	if err != nil || len(bills) < size {
		return bills, "", err
	}
	return bills, cursor.After(list, bills[len(bills)-1].place()), nil
}

// place is a bill's in the list's order.
func (b *Bill) place() [3]int64 { return [3]int64{int64(b.BillMonth), b.StationID, b.DiffID} }

func (r *Reader) page(ctx context.Context, f Filter, size int, after *[3]int64) ([]Bill, error) {
	where, err := f.where()
	if err != nil {
		return nil, err
	}
	if after != nil {
		where.add("(bill_month, station_id, id) < (%s, %s, %s)", after[0], after[1], after[2])
	}
	rows, err := r.pool.Query(ctx, `SELECT `+billColumns+` FROM bills.bill_snapshot`+where.String()+
		` ORDER BY bill_month DESC, station_id DESC, id DESC LIMIT `+where.arg(size), where.args...)
	if err != nil {
		return nil, fmt.Errorf("list bills: %w", err)
	}
	bills, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Bill])
	if err != nil {
		return nil, fmt.Errorf("list bills: %w", err)
	}
	return bills, nil
}

// Stations reads a page of summaries, one a station, by station id.
func (r *Reader) Stations(ctx context.Context, f Filter, size int, token string) ([]StationBills, string, error) {
	where, err := f.where()
	if err != nil {
		return nil, "", err
	}
	list := cursor.Of("stations", f)
	after, err := cursor.Resume[int64](list, token)
	if err != nil {
		return nil, "", err
	}
	if after != nil {
		where.add("station_id > %s", *after)
	}
	size = pageSize(size)
	rows, err := r.pool.Query(ctx, `WITH placed AS (
			SELECT *, row_number() OVER (PARTITION BY station_id ORDER BY latest_status_time DESC NULLS LAST, latest_status_rank DESC, id DESC) AS place
			FROM bills.bill_snapshot`+where.String()+`)
		SELECT station_id, count(*), sum(planned_amount)::text, sum(actual_paid_amount)::text, sum(difference_amount)::text,
			sum(payment_count)::bigint, sum(fail_count)::bigint, count(*) FILTER (WHERE anomaly_flag = 20),
			max(id) FILTER (WHERE place = 1), max(bill_dimension_payment_status) FILTER (WHERE place = 1)::int,
			max(external_payment_status) FILTER (WHERE place = 1)::int, max(latest_status_time) FILTER (WHERE place = 1)
		FROM placed GROUP BY station_id ORDER BY station_id LIMIT `+where.arg(size), where.args...)
	if err != nil {
		return nil, "", fmt.Errorf("sum up stations: %w", err)
	}
	stations, err := pgx.CollectRows(rows, pgx.RowToStructByPos[StationBills])
	if err != nil {
		return nil, "", fmt.Errorf("sum up stations: %w", err)
	}
	if len(stations) < size {
		return stations, "", nil
	}
	return stations, cursor.After(list, stations[len(stations)-1].StationID), nil
}

// conditions are SQL with numbered arguments.
type conditions struct {
	parts []string
	args  []any
}

func (c *conditions) arg(value any) string {
	c.args = append(c.args, value)
	return fmt.Sprintf("$%d", len(c.args))
}

func (c *conditions) add(format string, values ...any) {
	marks := make([]any, len(values))
	for i, value := range values {
		marks[i] = c.arg(value)
	}
	c.parts = append(c.parts, fmt.Sprintf(format, marks...))
}

func (c *conditions) String() string {
	if len(c.parts) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(c.parts, " AND ")
}

func (f *Filter) where() (*conditions, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	c := &conditions{}
	if len(f.StationIDs) == 1 {
		c.add("station_id = %s", f.StationIDs[0])
	} else if len(f.StationIDs) > 1 {
		c.add("station_id = ANY (%s::bigint[])", f.StationIDs)
	}
	if f.FirstMonth != 0 {
		c.add("bill_month >= %s", f.FirstMonth)
	}
	if f.LastMonth != 0 {
		c.add("bill_month <= %s", f.LastMonth)
	}
	if f.PartnerOrgID != 0 {
		c.add("partner_org_id = %s", f.PartnerOrgID)
	}
	if len(f.ProjectCompanyIDs) > 0 {
		c.add("project_company_id = ANY (%s::bigint[])", f.ProjectCompanyIDs)
	}
	if f.PaymentOrderNo != "" {
		c.add("payment_order_no = %s", f.PaymentOrderNo)
	}
	if len(f.PaymentStatuses) > 0 {
		c.add("bill_dimension_payment_status = ANY (%s::int[])", f.PaymentStatuses)
	}
	if len(f.ExternalStatuses) > 0 {
		c.add("external_payment_status = ANY (%s::int[])", f.ExternalStatuses)
	}
	if f.Anomalous {
		c.add("anomaly_flag = 20")
	}
	return c, nil
}

func (f *Filter) check() error {
	wrong := fault.New(fault.InvalidArgument, "no filter of bills")
	for name, count := range map[string]int{
		"station_ids": len(f.StationIDs), "project_company_ids": len(f.ProjectCompanyIDs),
		"payment_statuses": len(f.PaymentStatuses), "external_statuses": len(f.ExternalStatuses),
	} {
		if count > maxChoices {
			wrong.WithField(name, "has more than %d items", maxChoices)
		}
	}
	for name, value := range map[string]int32{"first_month": f.FirstMonth, "last_month": f.LastMonth} {
		if value != 0 && (value < 100001 || value > 999912 || value%100 < 1 || value%100 > 12) {
			wrong.WithField(name, "is not yyyyMM")
		}
	}
	if f.FirstMonth != 0 && f.LastMonth != 0 && f.LastMonth < f.FirstMonth {
		wrong.WithField("last_month", "is before first_month")
	}
	if strings.ContainsRune(f.PaymentOrderNo, 0) {
		wrong.WithField("payment_order_no", "is no text")
	}
	if len(wrong.Fields) > 0 {
		return wrong
	}
	return nil
}

func pageSize(size int) int {
	if size <= 0 {
		return defaultPage
	}
	return min(size, maxPage)
}
