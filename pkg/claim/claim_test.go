package claim_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/claim/claimtest"
	"lockstep.dev/pkg/pgtest"
)

// jobs is a site of the smallest possible kind.
var jobs = claim.Site{Name: "jobs", Table: "job", ID: "id", Held: "state = 'RUNNING'"}

func setup(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), pgtest.Empty(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `CREATE TABLE job (id uuid PRIMARY KEY, state text NOT NULL DEFAULT 'READY', tries int NOT NULL DEFAULT 0,
		claim_token uuid, claimed_by text, claimed_at timestamptz, lease_until timestamptz);
		CREATE TABLE effect (job uuid NOT NULL)`)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func newJob(ctx context.Context, pool *pgxpool.Pool) (uuid.UUID, error) {
	id := uuid.New()
	_, err := pool.Exec(ctx, "INSERT INTO job (id) VALUES ($1)", id)
	return id, err
}

func take(ctx context.Context, pool *pgxpool.Pool, worker string) (claim.Claim, bool, error) {
	return jobs.Take(ctx, pool, claim.Taking{
		Worker: worker, Lease: time.Minute, Where: "state = 'READY' AND tries < $4", Order: "id",
		Set: "state = 'RUNNING'", Args: []any{5},
	})
}

func TestClaimsOfOneInstant(t *testing.T) {
	pool := setup(t)
	claimtest.Run(t, claimtest.Site{
		Site: jobs, Pool: pool,
		NewRow: func(ctx context.Context) (uuid.UUID, error) { return newJob(ctx, pool) },
		Take:   func(ctx context.Context, w string) (claim.Claim, bool, error) { return take(ctx, pool, w) },
		Sweep: func(ctx context.Context) error {
			_, err := jobs.Sweep(ctx, pool, "state = 'READY', tries = tries + 1", 10)
			return err
		},
		Stale: map[string]func(context.Context, claim.Claim) error{
			"conclusion": func(ctx context.Context, c claim.Claim) error { return jobs.Leave(ctx, pool, c, "state = 'DONE'") },
			"give-back":  func(ctx context.Context, c claim.Claim) error { return jobs.Leave(ctx, pool, c, "state = 'READY'") },
			"renewal":    func(ctx context.Context, c claim.Claim) error { return jobs.Renew(ctx, pool, c, time.Hour) },
			"effect": func(ctx context.Context, c claim.Claim) error {
				tx, err := pool.Begin(ctx)
				if err != nil {
					return err
				}
				defer tx.Rollback(ctx) //nolint:errcheck // after a commit it has nothing to do
				if _, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", c.ID); err != nil {
					return err
				}
				if err := jobs.Check(ctx, tx, c); err != nil {
					return err
				}
				return tx.Commit(ctx)
			},
		},
		Effects: func(ctx context.Context, id uuid.UUID) (n int, err error) {
			err = pool.QueryRow(ctx, "SELECT count(*) FROM effect WHERE job = $1", id).Scan(&n)
			return n, err
		},
		Conclude: func(ctx context.Context, c claim.Claim) error { return jobs.Leave(ctx, pool, c, "state = 'DONE'") },
	})
}

func TestTake(t *testing.T) {
	t.Run("skips a row that somebody has locked", func(t *testing.T) {
		pool, ctx := setup(t), t.Context()
		id, err := newJob(ctx, pool)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(ctx) //nolint:errcheck // the test is over
		if _, err := tx.Exec(ctx, "SELECT 1 FROM job WHERE id = $1 FOR UPDATE", id); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := take(ctx, pool, "w"); ok || err != nil {
			t.Fatalf("took a locked row: %t, %v", ok, err)
		}
	})

	t.Run("two workers never take the same row", func(t *testing.T) {
		pool, ctx := setup(t), t.Context()
		const rows, workers = 40, 4
		for range rows {
			if _, err := newJob(ctx, pool); err != nil {
				t.Fatal(err)
			}
		}
		taken := make(chan uuid.UUID, rows+workers)
		done := make(chan error, workers)
		for range workers {
			go func() {
				for {
					c, ok, err := take(ctx, pool, "w")
					if err != nil || !ok {
						done <- err
						return
					}
					taken <- c.ID
				}
			}()
		}
		for range workers {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		close(taken)
		seen := map[uuid.UUID]bool{}
		for id := range taken {
			if seen[id] {
				t.Fatalf("row %s was taken twice", id)
			}
			seen[id] = true
		}
		if len(seen) != rows {
			t.Fatalf("%d rows taken, want %d", len(seen), rows)
		}
	})
}

func TestCheck(t *testing.T) {
	t.Run("a take-over waits for the commit of an effect that was checked", func(t *testing.T) {
		pool, ctx := setup(t), t.Context()
		if _, err := newJob(ctx, pool); err != nil {
			t.Fatal(err)
		}
		c, _, err := take(ctx, pool, "w")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(ctx, "UPDATE job SET lease_until = now() - interval '1 minute'"); err != nil {
			t.Fatal(err)
		}
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := jobs.Check(ctx, tx, c); err != nil {
			t.Fatal(err)
		}
		if ids, err := jobs.Sweep(ctx, pool, "state = 'READY'", 10); err != nil || len(ids) != 0 {
			t.Fatalf("the sweep took %v from under a checked effect (%v)", ids, err)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if ids, err := jobs.Sweep(ctx, pool, "state = 'READY'", 10); err != nil || len(ids) != 1 {
			t.Fatalf("after the commit the sweep took %v (%v), want the one row", ids, err)
		}
	})

	t.Run("a long effect does not block the renewal", func(t *testing.T) {
		pool, ctx := setup(t), t.Context()
		if _, err := newJob(ctx, pool); err != nil {
			t.Fatal(err)
		}
		c, _, err := take(ctx, pool, "w")
		if err != nil {
			t.Fatal(err)
		}
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", c.ID); err != nil { // work in progress, not yet checked
			t.Fatal(err)
		}
		if err := jobs.Renew(ctx, pool, c, time.Hour); err != nil {
			t.Fatalf("the renewal failed beside an open effect: %v", err)
		}
		if err := jobs.Check(ctx, tx, c); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

func TestLeaveIf(t *testing.T) {
	pool, ctx := setup(t), t.Context()
	if _, err := newJob(ctx, pool); err != nil {
		t.Fatal(err)
	}
	c, _, err := take(ctx, pool, "w")
	if err != nil {
		t.Fatal(err)
	}
	if err := jobs.LeaveIf(ctx, pool, c, "state = 'DONE'", "tries = $3", 7); !errors.Is(err, claim.ErrFenced) {
		t.Fatalf("a conclusion whose condition does not hold gave %v, want ErrFenced", err)
	}
	if err := jobs.Leave(ctx, pool, c, "state = 'READY'"); err != nil {
		t.Fatalf("the give-back that follows failed: %v", err)
	}
}
