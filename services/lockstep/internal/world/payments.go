package world

import (
	"fmt"
	"time"
)

// The example's second half: bills of four stations over three months, what is
// paid on them, and what the pages must say before and after. The bills of the
// first two months were let into the pages by reviews of long ago; those of the
// last month wait for theirs.
const (
	FirstMonth = 202606
	LastMonth  = 202608

	firstStation = 11
	stationCount = 4
	billsAScope  = 6
)

// Partner is owed every bill of the example.
const Partner = 501

// Bill is a difference, its order line and, where it was reviewed, its snapshot.
// All of them have its id.
type Bill struct {
	Station        int64
	ID             int64
	Month          int32
	PartnerBillID  int64  // 0: it is found by the small station's number
	SmallStationNo string // "" where the partner has an id for it
	Company        int64
	Order          int64  // 0: no order was made for it
	Planned        string // a decimal
	Card           Card
	// Stored bills are on the pages already.
	Stored bool
}

// Card is who is to be paid.
type Card struct{ Name, Bank, No string }

// Order is what bills are paid by: one a month.
type Order struct {
	ID    int64
	No    string
	Month int32
}

// Review is the identity under which the last month's bills come into the pages.
type Review struct {
	Progress, Approval, Shard, Order, Plan int64
	Finalized                              time.Time
	First, Last                            int64 // order lines
	Lines                                  int
}

// Payment is one result, with what was pushed or imported for it.
type Payment struct {
	Bill   Bill
	ID     int64
	Failed bool
	// Offline payments come by import, the others through the treasury.
	Offline bool
	Amount  string
	At      time.Time
	Reason  string
	// Payee is the imported record's.
	Payee Card
}

// Push is a payment order line on its way through the treasury.
type Push struct {
	Bill Bill
	ID   int64
	Open bool
}

// The kinds of bills; each scope has one of each.
const (
	paidInFull = 1 + iota
	paidInPart
	failedForGood
	failedAndPushedAgain
	paidTwice
	notPaid
	neverReviewed // one, at the last station
)

func months() []int32 { return []int32{FirstMonth, FirstMonth + 1, LastMonth} }

// Orders are the example's payment orders.
func Orders() []Order {
	var orders []Order
	for i, month := range months() {
		orders = append(orders, Order{ID: 9001 + int64(i), No: fmt.Sprintf("PO-%d", month), Month: month})
	}
	return orders
}

// Bills are all bills, in the order of their ids within a station.
func Bills() []Bill {
	var bills []Bill
	for station := int64(firstStation); station < firstStation+stationCount; station++ {
		for i, month := range months() {
			for kind := 1; kind <= billsAScope; kind++ {
				bills = append(bills, bill(station, month, kind, 9001+int64(i)))
			}
		}
	}
	last := bill(firstStation+stationCount-1, FirstMonth, neverReviewed, 0)
	last.Stored = false
	return append(bills, last)
}

func bill(station int64, month int32, kind int, order int64) Bill {
	id := billID(station, month, kind)
	b := Bill{
		Station: station, ID: id, Month: month, PartnerBillID: 5_000_000 + id, Company: 70 + station%2, Order: order,
		// The further the station, the more it owes.
		Planned: fmt.Sprintf("%d00.00", station-firstStation+1),
		Card:    Card{fmt.Sprintf("Partner of %d", station), "First Bank", fmt.Sprintf("6222 %d", id)},
		Stored:  month < LastMonth,
	}
	if kind == paidTwice || kind == notPaid {
		b.PartnerBillID, b.SmallStationNo = 0, fmt.Sprintf("S-%d-%d", station, kind)
	}
	return b
}

func billID(station int64, month int32, kind int) int64 {
	return station*10_000 + int64(month%100)*100 + int64(kind)
}

func (b Bill) kind() int { return int(b.ID % 100) }

// TheReview is the review of the last month's bills.
func TheReview() Review {
	return Review{
		Progress: 7001, Approval: 7002, Shard: 7003, Order: 9003, Plan: 7004,
		Finalized: time.Date(2026, 9, 1, 8, 0, 0, 0, time.UTC),
		First:     billID(firstStation, LastMonth, 1), Last: billID(firstStation+stationCount-1, LastMonth, billsAScope),
		Lines: stationCount * billsAScope,
	}
}

// Payments is what is paid after the pages were last computed, and the pushes it went by.
func Payments() (payments []Payment, pushes []Push) {
	for _, b := range Bills() {
		at := time.Date(2026, 9, 2, 9, 0, 0, 0, time.UTC).AddDate(0, int(b.Month)-LastMonth, int(b.Station-firstStation)).Add(time.Duration(b.kind()) * time.Minute)
		add := func(p Payment) {
			p.Bill, p.ID, p.At = b, b.ID*10+int64(len(payments)%10), at
			at = at.Add(time.Hour)
			payments = append(payments, p)
		}
		push := func(open bool) {
			pushes = append(pushes, Push{Bill: b, ID: b.ID*10 + int64(len(pushes)%10), Open: open})
		}
		switch b.kind() {
		case paidInFull:
			add(Payment{Amount: b.Planned})
			push(false)
		case paidInPart:
			add(Payment{Amount: "60.00"})
			push(false)
		case failedForGood:
			add(Payment{Amount: b.Planned, Failed: true, Reason: "account closed"})
			push(false)
		case failedAndPushedAgain:
			add(Payment{Amount: b.Planned, Failed: true, Reason: "name does not match"})
			push(false)
			push(true)
		case paidTwice:
			add(Payment{Amount: "30.00"})
			add(Payment{Amount: "20.50", Offline: true, Payee: Card{"Partner, by hand", "Second Bank", "6333 1"}})
		}
	}
	return payments, pushes
}

// Refreshed is what one request must amount to.
type Refreshed struct{ Scopes, Differences, Created, Updated, Unchanged, Missed int64 }

// ExpectReview is what the review's request amounts to: every one of its lines
// becomes a row.
func ExpectReview() Refreshed { return Refreshed{Scopes: 4, Differences: 24, Created: 24} }

// ExpectPayments is what the request after the payments amounts to: five of six
// bills of a scope have news, and one bill was never let into the pages.
func ExpectPayments() Refreshed {
	return Refreshed{Scopes: 12, Differences: 73, Updated: 60, Unchanged: 12, Missed: 1}
}

// Station is a line of the stations' page. Amounts are decimals.
type Station struct {
	ID, Bills                     int64
	Planned, Paid, Difference     string
	Payments, Failures, Anomalous int64
	LatestBill                    int64
	LatestPayment, LatestExternal int32
}

// StationsBefore is the page before anything is asked for: two months, nothing paid.
func StationsBefore() []Station {
	return []Station{
		{11, 12, "1200.00", "0.00", "-1200.00", 0, 0, 0, 110706, 0, 2},
		{12, 12, "2400.00", "0.00", "-2400.00", 0, 0, 0, 120706, 0, 2},
		{13, 12, "3600.00", "0.00", "-3600.00", 0, 0, 0, 130706, 0, 2},
		{14, 12, "4800.00", "0.00", "-4800.00", 0, 0, 0, 140706, 0, 2},
	}
}

// StationsAfter is the page at the end. A month of a station that owes 100.00 a
// bill is paid 100.00 + 60.00 + 30.00 + 20.50; the two bills paid otherwise than
// planned are anomalous, and two of six fail.
func StationsAfter() []Station {
	return []Station{
		{11, 18, "1800.00", "631.50", "-1168.50", 12, 6, 6, 110805, 30, 5},
		{12, 18, "3600.00", "931.50", "-2668.50", 12, 6, 6, 120805, 30, 5},
		{13, 18, "5400.00", "1231.50", "-4168.50", 12, 6, 6, 130805, 30, 5},
		{14, 18, "7200.00", "1531.50", "-5668.50", 12, 6, 6, 140805, 30, 5},
	}
}

// BillLine is a line of the bills' page.
type BillLine struct {
	ID                int64
	Paid, Difference  string
	Payment, External int32
	Anomalous         bool
	Payee             string
}

// BillsAfter is the bills' page of the first station's last month at the end.
func BillsAfter() (station int64, month int32, lines []BillLine) {
	return firstStation, LastMonth, []BillLine{
		{110806, "0.00", "-100.00", 0, 2, false, "Partner of 11"},
		{110805, "50.50", "-49.50", 30, 5, true, "Partner, by hand"},
		{110804, "0.00", "-100.00", 40, 3, false, "Partner of 11"},
		{110803, "0.00", "-100.00", 40, 6, false, "Partner of 11"},
		{110802, "60.00", "-40.00", 30, 5, true, "Partner of 11"},
		{110801, "100.00", "0.00", 30, 5, false, "Partner of 11"},
	}
}
