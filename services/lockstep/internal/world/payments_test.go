package world

import "testing"

// The written figures and the example's rows are two statements of the same thing.
func TestTheExamplesPaymentsFitTheWrittenFigures(t *testing.T) {
	bills := Bills()
	if want := ExpectPayments(); int64(len(bills)) != want.Differences {
		t.Errorf("%d bills, the request must find %d", len(bills), want.Differences)
	}
	ids, stored, reviewed := map[int64]bool{}, 0, 0
	review := TheReview()
	for _, b := range bills {
		if ids[b.ID] {
			t.Errorf("bill %d is there twice", b.ID)
		}
		ids[b.ID] = true
		if b.Stored {
			stored++
		}
		if b.Order == review.Order {
			reviewed++
			if b.ID < review.First || b.ID > review.Last {
				t.Errorf("bill %d is outside of its review", b.ID)
			}
		}
	}
	if stored != 48 || reviewed != 24 || reviewed != review.Lines {
		t.Errorf("%d bills stored, %d under review", stored, reviewed)
	}

	payments, pushes := Payments()
	paid := map[int64]bool{}
	results := map[int64]bool{}
	for _, p := range payments {
		paid[p.Bill.ID] = true
		if results[p.ID] {
			t.Errorf("result %d is there twice", p.ID)
		}
		results[p.ID] = true
		if p.Failed == (p.Reason == "") {
			t.Errorf("result %d: failed %t, for %q", p.ID, p.Failed, p.Reason)
		}
	}
	details := map[int64]bool{}
	for _, p := range pushes {
		if details[p.ID] {
			t.Errorf("push %d is there twice", p.ID)
		}
		details[p.ID] = true
	}
	if want := ExpectPayments(); int64(len(paid)) != want.Updated {
		t.Errorf("%d bills are paid, the request must update %d", len(paid), want.Updated)
	}
}
