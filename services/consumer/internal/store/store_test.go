package store_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/claim/claimtest"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
)

type world struct {
	t     *testing.T
	dsn   string
	pool  *pgxpool.Pool
	store *store.Store
}

var settings = store.Settings{Lease: time.Minute, MaxRetries: 6, BackoffBase: time.Minute, BackoffCap: 30 * time.Minute}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dsn: pgtest.Consumer(t)}
	pool, err := pgxpool.New(t.Context(), w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w.pool, w.store = pool, store.New(pool, pool, settings)
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func instruction() *protocol.Instruction {
	return &protocol.Instruction{
		At: protocol.Coordinates{
			Source: "center", Consumer: "hall", TaskID: protocol.FormatID(uuid.New()), TenantID: 7, CollectionID: "form-1",
			GrantEpoch: 3, CenterEpoch: 1,
		},
		Attempt: 1, Scope: protocol.Collection, Mode: protocol.Repair, WindowStart: time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC),
		ManifestID: protocol.FormatID(uuid.New()), ManifestRoot: evidence.Node{1}, RowCount: 10,
	}
}

func (w *world) accept(in *protocol.Instruction) store.Accepted {
	w.t.Helper()
	a, err := w.store.Accept(w.t.Context(), in, []byte("envelope"))
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func (w *world) row(in *protocol.Instruction) *store.Work {
	w.t.Helper()
	id, err := protocol.ParseID(in.At.TaskID)
	if err != nil {
		w.t.Fatal(err)
	}
	row, err := w.store.Work(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

func (w *world) claim() (claim.Claim, *store.Work) {
	w.t.Helper()
	c, row, err := w.store.Claim(w.t.Context(), "w", false)
	if err != nil || row == nil {
		w.t.Fatalf("claim: %v, %v", row, err)
	}
	return c, row
}

func entry(n byte, outcome protocol.Outcome) store.Entry {
	return store.Entry{Key: string([]byte{15: n}), Class: protocol.Missing, Outcome: outcome}
}

func TestFenceWork(t *testing.T) {
	w := setup(t)
	freeze := func(ctx context.Context, c claim.Claim) error {
		_, err := w.store.Freeze(ctx, c, store.Progress{}, 10, func(*store.Work, []protocol.ClassCount, []store.Entry) (store.Final, error) {
			return store.Final{State: protocol.Completed, Envelope: []byte("report")}, nil
		})
		return err
	}
	step := func(e work.Event) func(context.Context, claim.Claim) error {
		return func(ctx context.Context, c claim.Claim) error {
			_, err := w.store.Step(ctx, c, e, store.Progress{NextPage: 5}, "CODE")
			return err
		}
	}
	claimtest.Run(t, claimtest.Site{
		Site: store.Site, Pool: w.pool,
		NewRow: func(context.Context) (uuid.UUID, error) {
			in := instruction()
			w.accept(in)
			return protocol.ParseID(in.At.TaskID)
		},
		Take: func(ctx context.Context, worker string) (claim.Claim, bool, error) {
			c, row, err := w.store.Claim(ctx, worker, false)
			return c, row != nil, err
		},
		Sweep: func(ctx context.Context) error { _, err := w.store.Sweep(ctx); return err },
		Ready: "due_at = now()",
		Stale: map[string]func(context.Context, claim.Claim) error{
			"conclusion": step(work.EndCompleted), "failure": step(work.RoundFailed), "give-back": step(work.GivenBack),
			"checkpoint": step(work.RoundDone), "parking": step(work.Unknown), "adoption": step(work.Stale), "freeze": freeze,
			"renewal": w.store.Renew,
			"effect": func(ctx context.Context, c claim.Claim) error {
				row, err := w.store.Work(ctx, c.ID)
				if err != nil {
					return err
				}
				return w.store.InEffect(ctx, c, row, store.RepairPoints, func(e *store.Effect) error {
					return e.Note([]store.Entry{entry(1, protocol.Repaired)})
				})
			},
		},
		Effects: func(ctx context.Context, id uuid.UUID) (n int, err error) {
			err = w.pool.QueryRow(ctx, `SELECT count(*) FROM lockstep.outcome WHERE task_id = $1`, id).Scan(&n)
			return n, err
		},
		Conclude: step(work.EndCompleted),
	})
}

func TestAccept(t *testing.T) {
	t.Run("a known task must be told the same story", func(t *testing.T) {
		w := setup(t)
		in := instruction()
		if a := w.accept(in); !a.New || a.Wanted != 1 {
			t.Errorf("%+v", a)
		}
		for want, change := range map[fault.Reason][]func(*protocol.Instruction){
			fault.AudienceMismatch:   {func(in *protocol.Instruction) { in.At.Source = "x" }},
			fault.TenantMismatch:     {func(in *protocol.Instruction) { in.At.TenantID++ }},
			fault.CollectionMismatch: {func(in *protocol.Instruction) { in.At.CollectionID = "x" }},
			fault.GrantEpochMismatch: {
				func(in *protocol.Instruction) { in.At.GrantEpoch++ }, func(in *protocol.Instruction) { in.At.CenterEpoch++ },
			},
			fault.TaskMismatch: {
				func(in *protocol.Instruction) { in.Scope = protocol.Record }, func(in *protocol.Instruction) { in.Mode = protocol.DryRun },
				func(in *protocol.Instruction) { in.WindowStart = in.WindowStart.Add(time.Microsecond) },
			},
			fault.KeyMismatch: {func(in *protocol.Instruction) { in.Key = "x" }},
			fault.ManifestMismatch: {
				func(in *protocol.Instruction) { in.ManifestRoot[0]++ }, func(in *protocol.Instruction) { in.RowCount++ },
				func(in *protocol.Instruction) { in.ManifestID = protocol.FormatID(uuid.New()) },
				func(in *protocol.Instruction) { in.BreakerOverride = true },
			},
		} {
			for i, f := range change {
				other := *in
				other.Attempt = 2
				f(&other)
				if _, err := w.store.Accept(t.Context(), &other, []byte("envelope")); fault.ReasonOf(err) != want {
					t.Errorf("%s %d: %v", want, i, err)
				}
			}
		}
		if row := w.row(in); row.WantedAttempt != 1 {
			t.Errorf("a refused instruction left attempt %d", row.WantedAttempt)
		}
	})
	t.Run("the same or an older attempt changes nothing at all", func(t *testing.T) {
		w := setup(t)
		in := instruction()
		in.Attempt = 3
		w.accept(in)
		before := *w.row(in)
		for _, attempt := range []int{3, 2, 1} {
			in.Attempt = attempt
			if a := w.accept(in); a.New || a.Event != work.AcceptedSame || a.Wanted != 3 {
				t.Errorf("%+v", a)
			}
		}
		if after := *w.row(in); !after.UpdatedAt.Equal(before.UpdatedAt) {
			t.Error("the row was written")
		}
	})
	t.Run("a held run keeps its claim, and its worker adopts the attempt", func(t *testing.T) {
		w := setup(t)
		in := instruction()
		w.accept(in)
		c, _ := w.claim()
		in.Attempt = 2
		if a := w.accept(in); a.Event != work.AcceptedHeld {
			t.Errorf("%+v", a)
		}
		if row := w.row(in); row.State != work.Running || row.Attempt != 1 || row.WantedAttempt != 2 {
			t.Errorf("%s, attempt %d of %d", row.State, row.Attempt, row.WantedAttempt)
		}
		after, err := w.store.Step(t.Context(), c, work.RoundDone, store.Progress{NextPage: 1}, "")
		if err != nil || after.Attempt != 2 {
			t.Errorf("%+v, %v", after, err)
		}
	})
	t.Run("a run whose lease is over is due at once, and its old worker is fenced", func(t *testing.T) {
		w := setup(t)
		in := instruction()
		w.accept(in)
		c, _ := w.claim()
		w.exec(`UPDATE lockstep.work SET lease_until = now() - interval '1 s'`)
		in.Attempt = 2
		if a := w.accept(in); a.Event != work.AcceptedNewer {
			t.Errorf("%+v", a)
		}
		if _, err := w.store.Step(t.Context(), c, work.RoundDone, store.Progress{}, ""); !errors.Is(err, claim.ErrFenced) {
			t.Errorf("the old worker: %v", err)
		}
		if _, row := w.claim(); row.Attempt != 2 {
			t.Errorf("attempt %d", row.Attempt)
		}
	})
	t.Run("an ended row whose ledger was purged starts over", func(t *testing.T) {
		w := setup(t)
		in := instruction()
		w.accept(in)
		c, row := w.claim()
		if err := w.store.InEffect(t.Context(), c, row, store.RepairPoints, func(e *store.Effect) error {
			return e.Note([]store.Entry{entry(1, protocol.Reported), entry(2, protocol.Repaired), entry(3, protocol.Repaired)})
		}); err != nil {
			t.Fatal(err)
		}
		p := store.Progress{NextPage: 4, CursorKey: []byte("k"), CenterScanned: 9, LocalScanned: 8, CenterComplete: true, LocalComplete: true}
		if _, err := w.store.Step(t.Context(), c, work.EndPartial, p, ""); err != nil {
			t.Fatal(err)
		}
		purge := func(want bool) {
			t.Helper()
			if more, err := w.store.Purge(t.Context(), time.Hour, 2); err != nil || more != want {
				t.Fatalf("purge: %v, %v", more, err)
			}
		}
		purge(false) // too young
		w.exec(`UPDATE lockstep.work SET ended_at = now() - interval '2 hours'`)
		purge(true) // two of three
		if row := w.row(in); row.PurgedAt == nil {
			t.Error("not marked by the first batch")
		}
		purge(true)
		purge(false)
		var left int
		if err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM lockstep.outcome`).Scan(&left); err != nil || left != 0 {
			t.Errorf("%d outcomes are left, %v", left, err)
		}
		in.Attempt = 2
		w.accept(in)
		if row := w.row(in); row.State != work.Queued || row.NextPage != 0 || row.LocalComplete || row.LocalScanned != 0 || row.PurgedAt != nil {
			t.Errorf("%+v", row)
		}
	})
}

// Of a ledger whose purge was half done when a newer attempt came, nothing is counted again.
func TestANewerAttemptInAHalfDonePurge(t *testing.T) {
	w := setup(t)
	in := instruction()
	w.accept(in)
	c, row := w.claim()
	if err := w.store.InEffect(t.Context(), c, row, store.RepairPoints, func(e *store.Effect) error {
		return e.Note([]store.Entry{entry(1, protocol.Reported), entry(2, protocol.Repaired), entry(3, protocol.Repaired)})
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Step(t.Context(), c, work.EndPartial, store.Progress{NextPage: 4, CenterComplete: true, LocalComplete: true}, ""); err != nil {
		t.Fatal(err)
	}
	w.exec(`UPDATE lockstep.work SET ended_at = now() - interval '2 hours'`)
	if _, err := w.store.Purge(t.Context(), time.Hour, 2); err != nil {
		t.Fatal(err)
	}
	in.Attempt = 2
	w.accept(in)
	counts, err := w.store.Counts(t.Context(), w.row(in))
	if err != nil || len(counts) != 0 {
		t.Errorf("the ledger still counts %+v, %v", counts, err)
	}
	if row := w.row(in); row.State != work.Queued || row.NextPage != 0 || row.PurgedAt != nil {
		t.Errorf("%+v", row)
	}
}

func TestListWork(t *testing.T) {
	w := setup(t)
	var ids []string
	for n := range 5 {
		in := instruction()
		in.At.TenantID = int64(n % 2)
		w.accept(in)
		ids = append(ids, in.At.TaskID)
	}
	list := func(q store.WorkQuery) (out []string) {
		t.Helper()
		rows, err := w.store.ListWork(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			out = append(out, row.ID())
		}
		return out
	}
	want := slices.Clone(ids)
	slices.Reverse(want)
	if got := list(store.WorkQuery{Limit: 10}); !slices.Equal(got, want) {
		t.Errorf("%v, want newest first", got)
	}
	if got := list(store.WorkQuery{Limit: 10, Tenants: []int64{1}}); len(got) != 2 {
		t.Errorf("%d of tenant 1", len(got))
	}
	if got := list(store.WorkQuery{Limit: 10, States: []string{"RUNNING"}}); len(got) != 0 {
		t.Errorf("%d are running", len(got))
	}
}
