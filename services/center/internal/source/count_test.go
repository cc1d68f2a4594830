package source_test

import (
	"context"
	"errors"
	"testing"

	"lockstep.dev/services/center/internal/source"
)

func TestCountStopsAtItsLimit(t *testing.T) {
	w := setup(t)
	w.exec(`INSERT INTO item SELECT md5(n::text), 7, $1::text::uuid FROM generate_series(1, 30) AS n`, shelf)
	for limit, want := range map[int64]int64{29: 29, 30: 30, 31: 30} {
		if n, err := w.src.Count(t.Context(), w.rng, limit); n != want || err != nil {
			t.Errorf("limit %d: %d, %v", limit, n, err)
		}
	}
}

func TestCountTakesNoLongerThanACallerWaits(t *testing.T) {
	w := setup(t)
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE item`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.src.Count(t.Context(), w.rng, 10); !errors.Is(err, source.ErrNotCounted) {
		t.Error(err)
	}
}
