package bills

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/services/consumer/internal/refresh"
)

// The scope of most tests.
const (
	station = 17
	august  = 202608
	partner = 5
)

var here = refresh.Scope{ID: station, Month: august}

func at(clock string) time.Time {
	t, err := time.Parse("2006-01-02 15:04", "2026-09-"+clock)
	if err != nil {
		panic(err)
	}
	return t
}

func ptr[T any](v T) *T { return &v }

// Rows as the tests write them down. A zero station, month or partner is that
// of the scope above; see row.
type (
	difference struct {
		StationID, ID    int64
		BillMonth        int32
		PartnerOrgID     int64
		PartnerBillID    *int64
		SmallStationNo   *string
		ProjectCompanyID *int64
	}
	order struct {
		ID                    int64
		PaymentOrderNo        string
		Status, PaymentType   int16
		SettlementMonth       *int32
		CurrentPublishVersion int64
		SubmitRound           int32
		ReviewPlanID          *int64
		Deleted               bool
	}
	orderLine struct {
		StationID, ID        int64
		BillMonth            *int32
		PaymentOrderID       int64
		DataVersion          int64
		SubmitRound          int32
		LineNo               int32
		LineType, LineStatus int16
		DiffID               *int64
		PartnerOrgID         int64
		PartnerBillID        *int64
		SmallStationNo       *string
		ProjectCompanyID     *int64
		CurrentPaymentAmount string
		SharingCardName      *string
		SharingCardBank      *string
		SharingCardNo        *string
		Deleted              bool
	}
	result struct {
		StationID, ID                          int64
		BillMonth                              int32
		PartnerOrgID                           int64
		PartnerBillID                          *int64
		SmallStationNo                         *string
		OrderBillID                            *int64
		ResultStatus, ResultType, ResultSource int16
		PaidAmount                             string
		PaidTime                               *time.Time
		FailReason                             *string
		UpdatedAt                              time.Time
	}
	record struct {
		StationID, ID    int64
		BillMonth        *int32
		ImportBatchNo    string
		RecordStatus     int16
		PaymentResultID  *int64
		PayeeAccountName *string
		PayeeOpenBank    *string
		PayeeAccountNo   *string
	}
	push struct {
		StationID, ID     int64
		SourceOrderBillID int64
		Status            int16
		Deleted           bool
	}
	progress struct {
		ID, PaymentOrderID, DataVersion int64
		SubmitRound, ApprovalAttempt    int32
		ReviewPlanID                    int64
		ReviewPassed                    bool
		MainTaskStatus                  string
		PayableCount                    int32
		TargetOrderStatus               int16
		FinalizeTime                    *time.Time
	}
	// snapshot is what a test needs of a stored row before a refresh.
	snapshot struct {
		StationID, ID, DiffID int64
		BillMonth             int32
		PartnerOrgID          int64
		PlannedAmount         string
		DifferenceAmount      string
		LatestOrderBillID     *int64
		PayeeAccountName      *string
		PayeeOpenBank         *string
		PayeeAccountNo        *string
	}
)

func (d difference) row() any {
	fill(&d.StationID, station)
	fill(&d.BillMonth, august)
	fill(&d.PartnerOrgID, partner)
	return d
}

func (o order) row() any {
	fill(&o.PaymentOrderNo, fmt.Sprintf("PO-%d", o.ID))
	fill(&o.Status, 40)
	fill(&o.PaymentType, 10)
	fill(&o.CurrentPublishVersion, 1)
	fill(&o.SubmitRound, 1)
	return o
}

func (l orderLine) row() any {
	fill(&l.StationID, station)
	if l.BillMonth == nil {
		l.BillMonth = ptr(int32(august))
	}
	fill(&l.DataVersion, 1)
	fill(&l.SubmitRound, 1)
	fill(&l.LineType, 10)
	fill(&l.LineStatus, 20)
	fill(&l.PartnerOrgID, partner)
	fill(&l.CurrentPaymentAmount, "100")
	return l
}

func (r result) row() any {
	fill(&r.StationID, station)
	fill(&r.BillMonth, august)
	fill(&r.PartnerOrgID, partner)
	fill(&r.ResultType, 10)
	fill(&r.ResultSource, 10)
	fill(&r.PaidAmount, "0")
	if r.UpdatedAt.IsZero() {
		r.UpdatedAt = at("01 00:00")
	}
	return r
}

func (r record) row() any {
	fill(&r.StationID, station)
	fill(&r.RecordStatus, 20)
	fill(&r.ImportBatchNo, "B-1")
	return r
}

func (p push) row() any {
	fill(&p.StationID, station)
	return p
}

func (p progress) row() any { return p }

func (s snapshot) row() any {
	fill(&s.StationID, station)
	fill(&s.BillMonth, august)
	fill(&s.PartnerOrgID, partner)
	fill(&s.PlannedAmount, "0")
	s.DiffID, s.DifferenceAmount = s.ID, "-"+s.PlannedAmount
	if strings.HasPrefix(s.PlannedAmount, "-") {
		s.DifferenceAmount = s.PlannedAmount[1:]
	}
	return s
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

var tables = map[reflect.Type]string{
	reflect.TypeFor[difference](): "income_difference", reflect.TypeFor[order](): "payment_order",
	reflect.TypeFor[orderLine](): "payment_order_bill", reflect.TypeFor[result](): "payment_result",
	reflect.TypeFor[record](): "import_record", reflect.TypeFor[push](): "push_batch_detail",
	reflect.TypeFor[progress](): "review_progress", reflect.TypeFor[snapshot](): "bill_snapshot",
}

var allTables = []string{
	"income_difference", "payment_order", "payment_order_bill", "payment_result", "import_record", "push_batch_detail",
	"review_progress", "order_approval", "status_shard", "bill_snapshot",
}

// row is a row of one of the tables above.
type row interface{ row() any }

// snake writes a field's name as its column's: PaymentOrderID is payment_order_id.
func snake(name string) string {
	var out strings.Builder
	for i, r := range name {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 && (name[i-1] < 'A' || name[i-1] > 'Z') {
			out.WriteByte('_')
		}
		out.WriteString(strings.ToLower(string(r)))
	}
	return out.String()
}

// world is a database of its own with a counter of its statements.
type world struct {
	*Projection

	pool       *pgxpool.Pool
	statements atomic.Int64
}

// TraceQueryStart counts.
func (w *world) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	w.statements.Add(1)
	return ctx
}

// TraceQueryEnd has nothing to do.
func (w *world) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func setup(t testing.TB, options Options) *world {
	t.Helper()
	w := &world{Projection: New(options)}
	config, err := pgxpool.ParseConfig(pgtest.Consumer(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
	config.ConnConfig.Tracer = w
	config.ConnConfig.RuntimeParams["timezone"] = "UTC"
	if w.pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	return w
}

func (w *world) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := w.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// clear takes all rows away; a few deletes are quicker than a new database.
func (w *world) clear(t testing.TB) {
	t.Helper()
	for _, table := range allTables {
		w.exec(t, `DELETE FROM bills.`+table)
	}
}

// insert writes rows, one statement each.
func (w *world) insert(t testing.TB, rows ...row) {
	t.Helper()
	batch := &pgx.Batch{}
	for _, each := range rows {
		v := reflect.ValueOf(each.row())
		var columns, marks []string
		var args []any
		for i := range v.NumField() {
			columns = append(columns, snake(v.Type().Field(i).Name))
			marks = append(marks, fmt.Sprintf("$%d", i+1))
			args = append(args, v.Field(i).Interface())
		}
		batch.Queue("INSERT INTO bills."+tables[v.Type()]+" ("+strings.Join(columns, ", ")+") VALUES ("+strings.Join(marks, ", ")+")", args...)
	}
	if err := w.pool.SendBatch(t.Context(), batch).Close(); err != nil {
		t.Fatalf("insert: %v", err)
	}
}

// request makes a frozen payload.
func (w *world) request(t testing.TB, text string) []byte {
	t.Helper()
	parsed, err := w.Parse([]byte(text), "")
	if err != nil {
		t.Fatalf("parse %s: %v", text, err)
	}
	return parsed.Payload
}

const thisScope = `{"scopes":[{"station_id":17,"bill_month":"202608"}],"trigger":"test"}`

func (w *world) try(t testing.TB, payload []byte, s refresh.Scope) (counts refresh.Counts, err error) {
	t.Helper()
	err = pg.InTx(t.Context(), w.pool, func(tx pgx.Tx) error {
		counts, err = w.Refresh(t.Context(), tx, payload, s)
		return err
	})
	return counts, err
}

// refresh runs EXISTING_ONLY on the scope above.
func (w *world) refresh(t testing.TB) refresh.Counts {
	t.Helper()
	counts, err := w.try(t, w.request(t, thisScope), here)
	if err != nil {
		t.Fatalf("refresh: %v", err)
	}
	return counts
}

// stored gives columns of a snapshot as text, joined by blanks; NULL is -.
func (w *world) stored(t testing.TB, id int64, columns string) string {
	t.Helper()
	parts := strings.Split(columns, " ")
	for i, column := range parts {
		parts[i] = "coalesce(" + column + "::text, '-')"
	}
	var text string
	err := w.pool.QueryRow(t.Context(), "SELECT concat_ws(' ', "+strings.Join(parts, ", ")+") FROM bills.bill_snapshot WHERE diff_id = $1", id).Scan(&text)
	if err != nil {
		t.Fatalf("read snapshot %d: %v", id, err)
	}
	return text
}

func (w *world) expect(t testing.TB, id int64, columns, want string) {
	t.Helper()
	if got := w.stored(t, id, columns); got != want {
		t.Errorf("snapshot %d: %s\ngot  %s\nwant %s", id, columns, got, want)
	}
}

func expectCounts(t testing.TB, got, want refresh.Counts) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("counts\ngot  %+v\nwant %+v", got, want)
	}
}

func expectReason(t testing.TB, err error, want fault.Reason) {
	t.Helper()
	if got := fault.ReasonOf(err); got != want {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
}

// everything is the content of a table, one line a row.
func (w *world) everything(t testing.TB, table string) string {
	t.Helper()
	var text string
	if err := w.pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(to_jsonb(t)::text, E'\n' ORDER BY to_jsonb(t)::text), '') FROM bills.`+table+` t`).Scan(&text); err != nil {
		t.Fatalf("read %s: %v", table, err)
	}
	return text
}

func toJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
