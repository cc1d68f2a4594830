package bills

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep.dev/services/consumer/internal/refresh"
)

// facts are a small world, held in memory too, for the dumb recomputation.
type facts struct {
	differences []difference
	orders      []order
	lines       []orderLine
	results     []result
	records     []record
	pushes      []push
	snapshots   []snapshot
}

func (f *facts) rows() []row {
	var all []row
	for _, r := range f.differences {
		all = append(all, r)
	}
	for _, r := range f.orders {
		all = append(all, r)
	}
	for _, r := range f.lines {
		all = append(all, r)
	}
	for _, r := range f.results {
		all = append(all, r)
	}
	for _, r := range f.records {
		all = append(all, r)
	}
	for _, r := range f.pushes {
		all = append(all, r)
	}
	for _, r := range f.snapshots {
		all = append(all, r)
	}
	return all
}

const (
	randomStations = 2
	randomDiffs    = 12
)

// random draws few values for everything, so that rows meet and nearly meet.
func random(r *rand.Rand) *facts {
	pick := func(values ...int64) int64 { return values[r.IntN(len(values))] }
	maybe := func(values ...int64) *int64 {
		if r.IntN(3) == 0 {
			return nil
		}
		return ptr(pick(values...))
	}
	word := func(values ...string) *string {
		if r.IntN(4) == 0 {
			return nil
		}
		return ptr(values[r.IntN(len(values))])
	}
	month := func() int32 { return int32(pick(august, august, august, 202607)) }
	var f facts
	for id := range int64(randomDiffs) {
		d := difference{
			ID: id + 1, StationID: pick(station, station, station, station+1), BillMonth: month(), PartnerOrgID: pick(5, 5, 6),
			PartnerBillID: maybe(1, 2, 3, 4), SmallStationNo: word("a", "b"),
		}
		f.differences = append(f.differences, d)
		if r.IntN(5) > 0 {
			f.snapshots = append(f.snapshots, snapshot{
				ID: d.ID, StationID: d.StationID, BillMonth: d.BillMonth, PlannedAmount: fmt.Sprint(pick(0, 5, 10, 20)),
				PayeeAccountName: word("old", ""), PayeeOpenBank: word("old"), PayeeAccountNo: word("old"),
			})
		}
	}
	for id := range int64(5) {
		f.orders = append(f.orders, order{ID: id + 1, Status: int16(pick(40, 50, 40, 30)), PaymentType: int16(pick(10, 10, 20)), Deleted: r.IntN(6) == 0})
	}
	for id := range int64(20) {
		f.lines = append(f.lines, orderLine{
			ID: id + 1, StationID: pick(station, station, station, station+1), BillMonth: ptr(month()), PaymentOrderID: pick(1, 2, 3, 4, 5, 6), LineType: int16(pick(10, 10, 10, 20)),
			LineStatus: int16(pick(20, 30, 40, 10, 50)), DiffID: maybe(1, 2, 3, 4, 5, 6, 7, 8), PartnerOrgID: pick(5, 5, 6), PartnerBillID: maybe(1, 2, 3, 4),
			SharingCardName: word("card", " "), SharingCardBank: word("card", ""), SharingCardNo: word("card"), Deleted: r.IntN(6) == 0,
		})
	}
	for id := range int64(40) {
		v := result{
			ID: id + 1, StationID: pick(station, station, station, station+1), BillMonth: month(), PartnerOrgID: pick(5, 5, 6), PartnerBillID: maybe(1, 2, 3, 4),
			SmallStationNo: word("a", "b"), OrderBillID: maybe(1, 2, 3, 4, 5, 6, 7, 8, 9), ResultStatus: int16(pick(10, 20, 30, 30, 30, 40, 40, 60)),
			ResultType: int16(pick(10, 10, 10, 20)), ResultSource: int16(pick(10, 10, 20, 30)), PaidAmount: []string{"0", "5", "10", "0.10", "0.20", "3.33"}[r.IntN(6)],
			FailReason: word("no card", " ", "closed"), UpdatedAt: at("01 00:00").Add(time.Duration(r.IntN(20)) * time.Hour),
		}
		if r.IntN(3) > 0 {
			v.PaidTime = ptr(at("02 00:00").Add(time.Duration(r.IntN(5)) * time.Hour))
		}
		f.results = append(f.results, v)
	}
	for id := range int64(20) {
		f.records = append(f.records, record{
			ID: id + 1, StationID: pick(station, station, station+1), RecordStatus: int16(pick(20, 20, 10)), PaymentResultID: ptr(1 + r.Int64N(40)),
			PayeeAccountName: word("import", ""), PayeeOpenBank: word("import", "\t"), PayeeAccountNo: word("import"),
		})
		f.pushes = append(f.pushes, push{ID: id + 1, StationID: pick(station, station, station, station+1), SourceOrderBillID: 1 + r.Int64N(20), Status: int16(pick(10, 20, 30, 40, 30, 40)), Deleted: r.IntN(5) == 0})
	}
	return &f
}

func amount(text string) *big.Rat {
	value, ok := new(big.Rat).SetString(text)
	if !ok {
		panic(text)
	}
	return value
}

func same(a, b *int64) bool { return a != nil && b != nil && *a == *b }

// line finds the newest order line of a difference, one row after another.
func (f *facts) line(d difference) (line *orderLine, offline bool) {
	var own []orderLine
	usable := func(l orderLine) bool {
		return !l.Deleted && l.StationID == d.StationID && *l.BillMonth == d.BillMonth && l.PartnerOrgID == d.PartnerOrgID && l.LineType == 10 &&
			slices.Contains([]int16{20, 30, 40}, l.LineStatus)
	}
	for _, l := range f.lines {
		if usable(l) && same(l.DiffID, &d.ID) {
			own = append(own, l)
		}
	}
	if len(own) == 0 {
		for _, l := range f.lines {
			if usable(l) && same(l.PartnerBillID, d.PartnerBillID) {
				own = append(own, l)
			}
		}
	}
	for _, l := range own {
		for _, o := range f.orders {
			if o.ID == l.PaymentOrderID && !o.Deleted && (o.Status == 40 || o.Status == 50) && (line == nil || l.ID > line.ID) {
				line, offline = ptr(l), o.PaymentType == 20
			}
		}
	}
	return line, offline
}

// final says what a failure means outside.
func (f *facts) final(d difference) bool {
	line, offline := f.line(d)
	if line == nil || offline {
		return line != nil
	}
	pushes := 0
	for _, p := range f.pushes {
		if p.StationID == d.StationID && p.SourceOrderBillID == line.ID && !p.Deleted {
			if pushes++; p.Status != 30 && p.Status != 40 {
				return false
			}
		}
	}
	return pushes > 0
}

func (f *facts) resultsOf(d difference) []result {
	var found []result
	for _, r := range f.results {
		if r.StationID != d.StationID || r.BillMonth != d.BillMonth || r.PartnerOrgID != d.PartnerOrgID || r.ResultStatus == 60 {
			continue
		}
		if d.PartnerBillID != nil && same(r.PartnerBillID, d.PartnerBillID) ||
			d.PartnerBillID == nil && r.PartnerBillID == nil && d.SmallStationNo != nil && r.SmallStationNo != nil && *d.SmallStationNo == *r.SmallStationNo {
			found = append(found, r)
		}
	}
	return found
}

func firstFilled(texts ...*string) string {
	for _, text := range texts {
		if text != nil && strings.TrimSpace(*text) != "" {
			return *text
		}
	}
	return "-"
}

// kept is the old value where nothing new is known; NULL is -.
func kept(text string, old *string) string {
	if text == "-" && old != nil {
		return *old
	}
	return text
}

// payee of the newest counted success, field by field.
func (f *facts) payee(d difference, last *result, s snapshot) string {
	var rec *record
	var line *orderLine
	for i, r := range f.records {
		if last != nil && r.StationID == d.StationID && same(r.PaymentResultID, &last.ID) && r.RecordStatus == 20 {
			rec = &f.records[i]
		}
	}
	for i, l := range f.lines {
		if last != nil && l.StationID == d.StationID && same(last.OrderBillID, &l.ID) {
			line = &f.lines[i]
		}
	}
	if rec == nil {
		rec = &record{}
	}
	if line == nil {
		line = &orderLine{}
	}
	return fmt.Sprintf("%s|%s|%s", kept(firstFilled(rec.PayeeAccountName, line.SharingCardName), s.PayeeAccountName),
		kept(firstFilled(rec.PayeeOpenBank, line.SharingCardBank), s.PayeeOpenBank), kept(firstFilled(rec.PayeeAccountNo, line.SharingCardNo), s.PayeeAccountNo))
}

// newest keeps the later of two times.
func newest(times *time.Time, candidate time.Time) {
	if candidate.After(*times) {
		*times = candidate
	}
}

// naive computes one difference's row the dumb way, and writes it as one text.
func (f *facts) naive(d difference, s snapshot, partial bool) string {
	actual, treasury, planned := new(big.Rat), new(big.Rat), amount(s.PlannedAmount)
	var reasons, sources []string
	var last *result
	var payments, failures, open int
	var paymentTime, updateTime, paidAt, failedAt, changedAt time.Time
	for _, r := range f.resultsOf(d) {
		when := r.UpdatedAt
		if r.PaidTime != nil {
			when = *r.PaidTime
		}
		newest(&updateTime, r.UpdatedAt)
		newest(&changedAt, when)
		if source := fmt.Sprint(r.ResultSource); !slices.Contains(sources, source) {
			sources = append(sources, source)
		}
		switch {
		case r.ResultStatus == 30 && r.ResultType == 10 && (r.ResultSource == 10 || r.ResultSource == 20):
			payments++
			actual.Add(actual, amount(r.PaidAmount))
			newest(&paidAt, when)
			if r.PaidTime != nil {
				newest(&paymentTime, *r.PaidTime)
			}
			if last == nil || r.PaidTime != nil && (last.PaidTime == nil || !r.PaidTime.Before(*last.PaidTime)) || r.PaidTime == nil && last.PaidTime == nil {
				last = ptr(r)
			}
		case r.ResultStatus == 40:
			failures++
			newest(&failedAt, when)
			if r.ResultSource == 10 {
				treasury.Add(treasury, amount(r.PaidAmount))
				if reason := firstFilled(r.FailReason); reason != "-" {
					reasons = append(reasons, reason)
				}
			}
		case r.ResultStatus == 10 || r.ResultStatus == 20:
			open++
		}
	}
	status, external, rank, statusTime := 0, 2, 1, changedAt
	switch {
	case payments > 0 && partial && (open > 0 || failures > 0 || actual.Cmp(planned) < 0):
		status, external = 60, 4
	case payments > 0:
		status, external, rank, statusTime = 30, 5, 3, paidAt
	case failures > 0:
		status, external, rank, statusTime = 40, 3, 2, failedAt
		if f.final(d) {
			external = 6
		}
	}
	anomaly := 10
	if actual.Sign() != 0 && actual.Cmp(planned) != 0 {
		anomaly = 20
	}
	slices.Sort(sources)
	return fmt.Sprintf("%s|%s|%d|%s|%s|%d|%d|%s|%s|%d|%d|{%s}|%s|%d|%s", actual.FloatString(2), new(big.Rat).Sub(actual, planned).FloatString(2), anomaly,
		treasury.FloatString(2), strings.Join(reasons, "; "), payments, failures, clock(paymentTime), clock(updateTime), status, external,
		strings.Join(sources, ","), clock(statusTime), rank, f.payee(d, last, s))
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05+00")
}

const naiveColumns = `SELECT concat_ws('|', actual_paid_amount, difference_amount, anomaly_flag, treasury_fail_amount, fail_reason, payment_count, fail_count,
	coalesce(latest_payment_time::text, '-'), coalesce(latest_update_time::text, '-'), bill_dimension_payment_status, external_payment_status, data_source_list,
	coalesce(latest_status_time::text, '-'), latest_status_rank, coalesce(payee_account_name, '-'), coalesce(payee_open_bank, '-'), coalesce(payee_account_no, '-'))
	FROM bills.bill_snapshot WHERE diff_id = $1`

// Two ways that share nothing but the rows come to the same rows.
func TestSetBasedAndRowByRowAgreeOnRandomWorlds(t *testing.T) {
	rounds := uint64(150)
	if testing.Short() {
		rounds = 20
	}
	for _, partial := range []bool{false, true} {
		w := setup(t, Options{PartialPayment: partial})
		w.batch = 5
		seen := map[string]bool{}
		for seed := range rounds {
			f := random(rand.New(rand.NewPCG(seed, 7)))
			w.clear(t)
			w.insert(t, f.rows()...)
			for _, s := range []int64{station, station + 1} {
				if _, err := w.try(t, w.request(t, thisScope), refresh.Scope{ID: s, Month: august}); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			for _, d := range f.differences {
				at := slices.IndexFunc(f.snapshots, func(s snapshot) bool { return s.ID == d.ID })
				if at < 0 || d.BillMonth != august {
					continue
				}
				var got string
				if err := w.pool.QueryRow(t.Context(), naiveColumns, d.ID).Scan(&got); err != nil {
					t.Fatal(err)
				}
				if want := f.naive(d, f.snapshots[at], partial); got != want {
					t.Fatalf("seed %d, difference %d\nset   %s\nnaive %s", seed, d.ID, got, want)
				}
				parts := strings.Split(got, "|")
				seen[parts[9]+"/"+parts[10]] = true
			}
		}
		want := []string{"0/2", "30/5", "40/3", "40/6"}
		if partial {
			want = append(want, "60/4")
		}
		for _, status := range want {
			if !seen[status] {
				t.Errorf("partial %v: no random bill had status %s", partial, status)
			}
		}
	}
}
