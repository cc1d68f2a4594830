package store

import (
	"context"
	"testing"
	"time"

	"lockstep.dev/pkg/pgtest"
)

func TestDamageIsSplitEvenly(t *testing.T) {
	for differences, want := range map[int]Classes{
		0: {}, 3: {1, 1, 1, 0, 0}, 10: {2, 2, 2, 2, 2}, 101: {21, 20, 20, 20, 20}, 10_004: {2001, 2001, 2001, 2001, 2000},
	} {
		if got := SplitDamage(differences); got != want {
			t.Errorf("%d: got %+v, want %+v", differences, got, want)
		}
	}
}

// uniform is both sides filled with the rows that are measured.
func uniform(t *testing.T, rows int) (context.Context, sides) {
	t.Helper()
	ctx := t.Context()
	s := sides{center: open(t, pgtest.Center(t)), consumer: open(t, pgtest.Consumer(t))}
	if err := FillUniform(ctx, s.center, s.consumer, rows, 7, noon); err != nil {
		t.Fatal(err)
	}
	return ctx, s
}

func TestEvenDamage(t *testing.T) {
	const rows, differences = 1003, 104
	ctx, s := uniform(t, rows)
	count := func(p Pool, sql string, want int) {
		t.Helper()
		var got int
		if err := p.QueryRow(ctx, sql).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
	count(s.center, `SELECT count(*) FROM answers.answer`, rows)
	for range 2 {
		if err := s.center.Warm(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if different, err := Differences(ctx, s.center, s.consumer); err != nil || len(different) != 0 {
		t.Fatalf("%d rows differ before the damage, %v", len(different), err)
	}
	if err := s.consumer.DamageEvenly(ctx, rows, SplitDamage(differences), noon); err != nil {
		t.Fatal(err)
	}
	if different, err := Differences(ctx, s.center, s.consumer); err != nil || len(different) != differences {
		t.Errorf("%d rows differ, want %d, %v", len(different), differences, err)
	}
	count(s.consumer, `SELECT count(*) FROM hall.answer_projection`, rows-21+20)
	count(s.consumer, `SELECT count(*) FROM hall.answer_projection WHERE created_at < '2026-10-31' AND apply_id IS NULL`, 20)
	count(s.consumer, `SELECT count(*) FROM hall.answer_projection WHERE deleted`, 21)
	count(s.consumer, `SELECT count(*) FROM hall.answer_projection WHERE "values"->>'form' = 'older'`, 21)
	count(s.consumer, `SELECT count(*) FROM hall.answer_projection WHERE "values"->>'form' = 'other'`, 21)
}

func TestPeerByJoins(t *testing.T) {
	const rows, differences = 1000, 100
	ctx, s := uniform(t, rows)
	if err := FillPeers(ctx, s.center, s.consumer); err != nil {
		t.Fatal(err)
	}
	found := func(want int) {
		t.Helper()
		got, took, err := s.consumer.JoinDifferences(ctx, false, time.Now)
		if err != nil || got != want || took <= 0 {
			t.Errorf("found %d in %s, want %d, %v", got, took, want, err)
		}
	}
	found(0)
	// What differs in nothing but its content is found by those who look at it.
	if _, err := s.consumer.Exec(ctx, `UPDATE peer.record SET content = '{"rotten": true}' WHERE key = (SELECT min(key::text)::uuid FROM peer.record)`); err != nil {
		t.Fatal(err)
	}
	found(0)
	if got, _, err := s.consumer.JoinDifferences(ctx, true, time.Now); err != nil || got != 1 {
		t.Errorf("%d contents differ, want 1, %v", got, err)
	}
	if err := s.consumer.DamageEvenly(ctx, rows, SplitDamage(differences), noon); err != nil {
		t.Fatal(err)
	}
	if err := s.consumer.RefillPeer(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.consumer.KeepPeer(ctx); err != nil {
		t.Fatal(err)
	}
	found(differences)
	for range 2 {
		changed, _, err := s.consumer.JoinRepair(ctx, time.Now)
		if err != nil || changed != differences {
			t.Fatalf("%d repaired, want %d, %v", changed, differences, err)
		}
		found(0)
		if err := s.consumer.RestorePeer(ctx); err != nil {
			t.Fatal(err)
		}
		found(differences)
	}
}

func TestManyBills(t *testing.T) {
	ctx, dsn := t.Context(), pgtest.Empty(t)
	if err := MigrateConsumer(ctx, dsn); err != nil {
		t.Fatal(err)
	}
	p := open(t, dsn)
	for month, first := range map[int32]int{202608: 1, 202609: 20_000_000} {
		if err := p.FillBills(ctx, month, first, 3, 40); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.ChangePayments(ctx, 202608); err != nil {
		t.Fatal(err)
	}
	var scopes, bills, snapshots, changed int
	err := p.QueryRow(ctx, `SELECT count(DISTINCT (station_id, bill_month)), count(*), (SELECT count(*) FROM bills.bill_snapshot),
		(SELECT count(*) FROM bills.payment_result WHERE updated_at > created_at) FROM bills.income_difference`).Scan(&scopes, &bills, &snapshots, &changed)
	if err != nil || scopes != 6 || bills != 240 || snapshots != 240 || changed != 180 {
		t.Errorf("%d scopes, %d bills, %d snapshots, %d payments changed, %v", scopes, bills, snapshots, changed, err)
	}
}
