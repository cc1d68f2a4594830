package store_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/claim/claimtest"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
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

func TestNoteKeepsTheFirstClass(t *testing.T) {
	w := setup(t)
	in := instruction()
	w.accept(in)
	c, row := w.claim()
	note := func(e store.Entry) {
		t.Helper()
		if err := w.store.InEffect(t.Context(), c, row, store.RepairPoints, func(f *store.Effect) error {
			return f.Note([]store.Entry{e})
		}); err != nil {
			t.Fatal(err)
		}
	}
	first := entry(1, protocol.Exhausted)
	note(first)
	second := first
	second.Class, second.Outcome = protocol.Stale, protocol.Repaired
	second.Wrote = &evidence.Row{Revision: 4}
	note(second)
	known, err := w.store.Known(t.Context(), row, []string{first.Key})
	if err != nil {
		t.Fatal(err)
	}
	if k := known[first.Key]; k.Class != protocol.Missing || k.Outcome != protocol.Repaired || k.Wrote == nil || k.Wrote.Revision != 4 {
		t.Errorf("%+v", k)
	}
}

func TestHighWater(t *testing.T) {
	w := setup(t)
	w.accept(instruction())
	c, row := w.claim()
	const key = "0123456789abcdef"
	for i, step := range []struct{ raise, want store.Mark }{
		{store.Mark{CenterEpoch: 1, Revision: 5}, store.Mark{CenterEpoch: 1, Revision: 5}},
		{store.Mark{CenterEpoch: 1, Revision: 4}, store.Mark{CenterEpoch: 1, Revision: 5}},
		{store.Mark{CenterEpoch: 2, Revision: 1}, store.Mark{CenterEpoch: 2, Revision: 1}},
		{store.Mark{CenterEpoch: 1, Revision: 9}, store.Mark{CenterEpoch: 2, Revision: 1}},
		{store.Mark{CenterEpoch: 2, Revision: 7}, store.Mark{CenterEpoch: 2, Revision: 7}},
		{store.Mark{CenterEpoch: 2, Revision: 3, Retired: true}, store.Mark{CenterEpoch: 2, Revision: 7, Retired: true}},
		{store.Mark{CenterEpoch: 1, Revision: 9}, store.Mark{CenterEpoch: 2, Revision: 7, Retired: true}}, // not one of an older epoch
		{store.Mark{CenterEpoch: 2, Revision: 1}, store.Mark{CenterEpoch: 2, Revision: 1}},                // a fresh word revives at any revision
		{store.Mark{CenterEpoch: 1, Revision: 1, Retired: true}, store.Mark{CenterEpoch: 2, Revision: 1}},
	} {
		step.raise.Key, step.want.Key = key, key
		if err := w.store.InEffect(t.Context(), c, row, store.RepairPoints, func(e *store.Effect) error {
			e.RaiseHighWater([]store.Mark{step.raise}, false)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		marks, err := w.store.HighWater(t.Context(), row, []string{key})
		if err != nil || marks[key] != step.want {
			t.Errorf("step %d: %+v, %v; want %+v", i, marks[key], err, step.want)
		}
		known, err := w.store.Known(t.Context(), row, []string{"another key 0000", key})
		if k := known[key]; err != nil || len(known) != 1 || k.Mark == nil || *k.Mark != step.want || k.Wrote != nil || k.Outcome != "" {
			t.Errorf("step %d: known is %+v, %v; want the mark %+v", i, known, err, step.want)
		}
	}
}

func TestWhatIsQueuedIsWrittenWholeOrNotAtAll(t *testing.T) {
	w := setup(t)
	w.accept(instruction())
	c, row := w.claim()
	key := entry(1, protocol.Repaired).Key
	write := func(c claim.Claim, revision int64, flush bool) error {
		return w.store.InEffect(t.Context(), c, row, store.RepairPoints, func(e *store.Effect) error {
			if err := e.Note([]store.Entry{entry(1, protocol.Repaired)}); err != nil {
				return err
			}
			e.RaiseHighWater([]store.Mark{{Key: key, CenterEpoch: 1, Revision: revision}}, true)
			if flush {
				return e.Flush(t.Context())
			}
			return nil
		})
	}
	want := func(outcome protocol.Outcome, revision int64) {
		t.Helper()
		known, err := w.store.Known(t.Context(), row, []string{key})
		k := known[key]
		if err != nil || k.Outcome != outcome || k.Mark == nil || k.Mark.Revision != revision {
			t.Errorf("known is %+v, %v; want %s at revision %d", k, err, outcome, revision)
		}
	}
	w.exec(`INSERT INTO lockstep.high_water (tenant_id, collection_id, record_key, center_epoch, revision) VALUES ($1, $2, $3, 1, 5)`,
		row.TenantID, row.CollectionID, []byte(key))
	for _, flush := range []bool{false, true} {
		if err := write(c, 4, flush); !errors.Is(err, store.ErrOvertaken) {
			t.Errorf("below the mark: %v", err)
		}
		want("", 5)
		if err := write(claim.Claim{ID: c.ID}, 6, flush); !errors.Is(err, claim.ErrFenced) {
			t.Errorf("with another token: %v", err)
		}
		want("", 5)
	}
	if err := write(c, 6, true); err != nil {
		t.Fatal(err)
	}
	want(protocol.Repaired, 6)
	t.Run("a trial finds out, and writes nothing", func(t *testing.T) {
		for revision, overtaken := range map[int64]bool{5: true, 7: false} {
			err := w.store.InTrial(t.Context(), row, func(e *store.Effect) error {
				e.RaiseHighWater([]store.Mark{{Key: key, CenterEpoch: 1, Revision: revision}}, true)
				return nil
			})
			if errors.Is(err, store.ErrOvertaken) != overtaken || !overtaken && err != nil {
				t.Errorf("revision %d: %v", revision, err)
			}
		}
		want(protocol.Repaired, 6)
	})
}

// lossy is a connection that loses the answer to the next COMMIT once armed.
type lossy struct {
	net.Conn
	armed *atomic.Bool
	lost  bool
}

func (l *lossy) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("Q\x00\x00\x00\x0bcommit\x00")) && l.armed.CompareAndSwap(true, false) {
		l.lost = true
	}
	return l.Conn.Write(b)
}

func (l *lossy) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b) // the server has answered, so it has committed
	if l.lost && err == nil {
		return 0, errors.Join(io.ErrUnexpectedEOF, l.Close())
	}
	return n, err
}

func TestALostAnswerToCommitIsReadBack(t *testing.T) {
	w := setup(t)
	config, err := pgxpool.ParseConfig(w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	var armed atomic.Bool
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &lossy{Conn: conn, armed: &armed}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	st := store.New(pool, pool, settings)
	in := instruction()
	w.accept(in)
	c, row := w.claim()
	runs := 0
	armed.Store(true)
	err = st.InEffect(t.Context(), c, row, store.RepairPoints, func(e *store.Effect) error {
		runs++
		return e.Note([]store.Entry{entry(1, protocol.Repaired)})
	})
	if err != nil || runs != 1 || armed.Load() {
		t.Errorf("the effect ran %d times, armed %v: %v", runs, armed.Load(), err)
	}
	t.Run("an effect that left nothing to read back stays unknown", func(t *testing.T) {
		armed.Store(true)
		err := st.InEffect(t.Context(), c, row, store.RepairPoints, func(*store.Effect) error { return nil })
		if !errors.Is(err, pg.ErrUnknownCommit) {
			t.Error(err)
		}
	})
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

// TestLookingAtKeysReadsOnlyThem: statements that were planned for empty tables
// are not held on to when the ledger has grown.
func TestLookingAtKeysReadsOnlyThem(t *testing.T) {
	w := setup(t)
	config := w.pool.Config().Copy()
	config.MaxConns = 1 // one session plans, and its counts are flushed by hand
	one, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(one.Close)
	s := store.New(one, w.pool, settings)
	in := instruction()
	w.accept(in)
	row := w.row(in)
	keys := []string{string([]byte{15: 1}), string([]byte{15: 2})}
	look := func() {
		t.Helper()
		if _, err := s.Known(t.Context(), row, keys); err != nil {
			t.Fatal(err)
		}
		if _, err := s.HighWater(t.Context(), row, keys); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (tuples int64) {
		t.Helper()
		if _, err := one.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
			t.Fatal(err)
		}
		if err := one.QueryRow(t.Context(), `SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables
			WHERE schemaname = 'lockstep' AND relname IN ('outcome', 'high_water')`).Scan(&tuples); err != nil {
			t.Fatal(err)
		}
		return tuples
	}
	for range 10 {
		look()
	}
	w.exec(`INSERT INTO lockstep.outcome (tenant_id, task_id, record_key, class, outcome, op_id)
		SELECT 7, $1, decode(lpad(to_hex(i), 32, '0'), 'hex'), 'MISSING', 'REPORTED', $1 FROM generate_series(1, 5000) AS i`, row.TaskID)
	w.exec(`INSERT INTO lockstep.high_water (tenant_id, collection_id, record_key, center_epoch, revision)
		SELECT 7, 'form-1', decode(lpad(to_hex(i), 32, '0'), 'hex'), 1, 1 FROM generate_series(1, 5000) AS i`)
	before := read()
	look()
	if n := read() - before; n != 6 {
		t.Errorf("%d rows were read for two keys in two tables, one of them twice", n)
	}
}
