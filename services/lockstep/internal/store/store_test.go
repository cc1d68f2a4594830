package store

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/services/lockstep/internal/world"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

type sides struct {
	center, consumer Pool
	world            *world.World
}

// setup fills both sides with equal rows.
func setup(t *testing.T) (context.Context, sides) {
	t.Helper()
	ctx := t.Context()
	s := sides{center: open(t, pgtest.Center(t)), consumer: open(t, pgtest.Consumer(t))}
	w, err := world.New(world.MinRows, 7)
	if err != nil {
		t.Fatal(err)
	}
	s.world = w
	if err := s.center.FillCenter(ctx, world.Forms(), w.Answers()); err != nil {
		t.Fatal(err)
	}
	if err := s.consumer.FillProjection(ctx, w.Projection(), noon); err != nil {
		t.Fatal(err)
	}
	return ctx, s
}

func open(t *testing.T, dsn string) Pool {
	t.Helper()
	pool, err := Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestFilledSidesAreEqual(t *testing.T) {
	ctx, s := setup(t)
	different, err := Differences(ctx, s.center, s.consumer)
	if err != nil {
		t.Fatal(err)
	}
	if len(different) != 0 {
		t.Errorf("%d rows differ, the first is %s", len(different), different[0])
	}
}

func TestDamageIsSeen(t *testing.T) {
	ctx, s := setup(t)
	changes, err := s.world.Damage()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.center.ChangeCenter(ctx, changes.Center); err != nil {
		t.Fatal(err)
	}
	if err := s.consumer.DamageProjection(ctx, changes, noon); err != nil {
		t.Fatal(err)
	}
	different, err := Differences(ctx, s.center, s.consumer)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, form := range world.Forms() {
		for _, n := range form.Damage.Expect(1).Found {
			found += n
		}
	}
	if len(different) != found {
		t.Errorf("%d rows differ, want %d", len(different), found)
	}
	for _, ref := range slices.Concat(changes.Open, changes.Retired, changes.Deleted) {
		if !slices.Contains(different, ref) {
			t.Errorf("%s is not seen", ref)
		}
	}
}

func TestDifferencesSeeEveryColumn(t *testing.T) {
	ctx, s := setup(t)
	for name, change := range map[string]string{
		"content without its hash": `UPDATE hall.answer_projection SET "values" = '{"a": 1}' WHERE answer_id = $1`,
		"hash":                     `UPDATE hall.answer_projection SET content_hash = sha256('') WHERE answer_id = $1`,
		"revision":                 `UPDATE hall.answer_projection SET revision = revision + 1 WHERE answer_id = $1`,
		"deleted":                  `UPDATE hall.answer_projection SET deleted = NOT deleted WHERE answer_id = $1`,
		"sequence":                 `UPDATE hall.answer_projection SET seq_no = -1 WHERE answer_id = $1`,
		"schema version":           `UPDATE hall.answer_projection SET form_version = 99 WHERE answer_id = $1`,
		"collection":               `UPDATE hall.answer_projection SET form_id = 'other' WHERE answer_id = $1`,
		"retired":                  `UPDATE hall.answer_projection SET retired_at = now() WHERE answer_id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			var row world.Answer
			for a := range s.world.Answers() {
				row = a
				break
			}
			tx, err := s.consumer.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(ctx) //nolint:errcheck // the test's own world
			if _, err := tx.Exec(ctx, change, [16]byte(row.Key)); err != nil {
				t.Fatal(err)
			}
			different, err := differences(ctx, s.center, tx)
			if err != nil {
				t.Fatal(err)
			}
			if want := []world.Ref{row.Ref()}; !reflect.DeepEqual(different, want) {
				t.Errorf("got %v, want %v", different, want)
			}
		})
	}
}

func TestExtensionsAreDigested(t *testing.T) {
	ctx, s := setup(t)
	before, rows, err := s.consumer.Extensions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if rows != world.MinRows {
		t.Errorf("%d rows have extensions, want %d", rows, world.MinRows)
	}
	if _, err := s.consumer.Exec(ctx, `UPDATE hall.answer_projection SET revision = revision + 1`); err != nil {
		t.Fatal(err)
	}
	if same, _, err := s.consumer.Extensions(ctx); err != nil || same != before {
		t.Errorf("a snapshot column counts: %v", err)
	}
	if _, err := s.consumer.Exec(ctx, `UPDATE hall.answer_projection SET flow_id = NULL WHERE seq_no = 3 AND form_id = 'enrolment'`); err != nil {
		t.Fatal(err)
	}
	if after, _, err := s.consumer.Extensions(ctx); err != nil || after == before {
		t.Errorf("a lost extension is not seen: %v", err)
	}
}

func TestRetired(t *testing.T) {
	ctx, s := setup(t)
	if _, err := s.consumer.Exec(ctx, `UPDATE hall.answer_projection SET retired_at = now(), proof_id = CASE seq_no WHEN 3 THEN 'p' END
		WHERE form_id = 'enrolment' AND seq_no IN (3, 4)`); err != nil {
		t.Fatal(err)
	}
	retired, unproven, err := s.consumer.Retired(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(retired) != 2 || len(unproven) != 1 {
		t.Errorf("%d retired, %d of them unproven; want 2 and 1", len(retired), len(unproven))
	}
}

func TestMigrateUsedDrop(t *testing.T) {
	ctx := t.Context()
	for name, migrate := range map[string]func(context.Context, string) error{"center": MigrateCenter, "consumer": MigrateConsumer} {
		t.Run(name, func(t *testing.T) {
			dsn := pgtest.Empty(t)
			pool := open(t, dsn)
			for range 2 {
				if used, err := pool.Used(ctx); err != nil || used != "" {
					t.Fatalf("an empty database is used by %q, %v", used, err)
				}
				if err := migrate(ctx, dsn); err != nil {
					t.Fatal(err)
				}
				if used, err := pool.Used(ctx); err != nil || !strings.Contains(used, "lockstep") {
					t.Fatalf("a migrated database is used by %q, %v", used, err)
				}
				if err := pool.Drop(ctx); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
