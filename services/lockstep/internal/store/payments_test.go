package store

import (
	"testing"

	"lockstep.dev/pkg/pgtest"
)

func TestPayments(t *testing.T) {
	ctx, dsn := t.Context(), pgtest.Empty(t)
	if err := MigrateConsumer(ctx, dsn); err != nil {
		t.Fatal(err)
	}
	p := open(t, dsn)
	if err := p.FillPayments(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.FillScores(ctx); err != nil {
		t.Fatal(err)
	}
	count := func(sql string, want int) {
		t.Helper()
		var got int
		if err := p.QueryRow(ctx, sql).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
	count(`SELECT count(*) FROM bills.income_difference`, 73)
	count(`SELECT count(*) FROM bills.payment_order_bill`, 72)
	count(`SELECT count(*) FROM bills.bill_snapshot`, 48)
	count(`SELECT count(*) FROM bills.payment_result`, 0)
	count(`SELECT count(*) FROM scores.candidate_fact`, 24)
	if err := p.Pay(ctx); err != nil {
		t.Fatal(err)
	}
	count(`SELECT count(*) FROM bills.payment_result`, 72)
	count(`SELECT count(*) FROM bills.import_record`, 12)
	count(`SELECT count(*) FROM bills.push_batch_detail`, 60)

	if used, err := p.Used(ctx); err != nil || used != "bills, hall, lockstep, scores" {
		t.Errorf("used: %q, %v", used, err)
	}
	if err := p.Drop(ctx); err != nil {
		t.Fatal(err)
	}
	if used, err := p.Used(ctx); err != nil || used != "" {
		t.Errorf("left behind: %q, %v", used, err)
	}
	count(`SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`, 0)
}
