package store_test

import (
	"context"
	"errors"
	"flag"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/store"
	"lockstep.dev/services/consumer/internal/work"
)

// machine runs the store's operations on a real database and the same on the
// twin.
type machine struct {
	*world
	twin   twin
	claims []held // every one ever made, the superseded ones too
	met    map[string]int
}

type held struct {
	claim.Claim
	token int // its number in the twin
	row   *twinRow
}

// TestMachine does random things in random order, and after each wants the
// database to be what the twin is.
func TestMachine(t *testing.T) {
	modest(t)
	m := &machine{world: setup(t), met: map[string]int{}}
	m.store = store.New(m.pool, m.pool, store.Settings{Lease: time.Minute, MaxRetries: twinRetries, BackoffBase: time.Minute, BackoffCap: time.Hour})
	rapid.Check(t, func(t *rapid.T) {
		m.exec(`DELETE FROM lockstep.outcome`)
		m.exec(`DELETE FROM lockstep.work`)
		m.twin, m.claims = twin{}, nil
		t.Repeat(map[string]func(*rapid.T){
			// Rapid prefers what comes first in the order of names.
			"1 claim": m.take, "2 write": m.write, "3 instruction": m.instruction, "4 time passes": m.timePasses, "5 sweep": m.sweep,
			"6 a waiting row is answered": m.waits, "": m.compare,
		})
	})
	t.Logf("met %v", m.met)
	for _, what := range []string{"QUEUED", "RUNNING", "REPORTING", "PARKED", "COMPLETED", "CANCELLED", "fenced", "newer", "swept", "waited"} {
		if m.met[what] == 0 {
			t.Errorf("%s was never met", what)
		}
	}
}

// modest lowers the number of runs unless one was asked for: they are against a
// real database.
func modest(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{"rapid.checks": "60", "rapid.steps": "60"} {
		f := flag.Lookup(name)
		if f.Value.String() != f.DefValue {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
	}
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// compare is done after every step.
func (m *machine) compare(t *rapid.T) {
	rows, err := m.pool.Query(m.t.Context(), `SELECT task_id, format('%s attempt %s of %s retries %s tries %s claimed %s over %s page %s report %s ended %s ledger %s',
			state, attempt, wanted_attempt, retry_count, tries, (claim_token IS NOT NULL)::text, coalesce(lease_until < now(), false)::text, next_page,
			coalesce(report_attempt, 0), (ended_at IS NOT NULL)::text, (SELECT count(*) FROM lockstep.outcome o WHERE o.task_id = work.task_id))
		FROM lockstep.work`)
	m.must(err)
	got := map[uuid.UUID]string{}
	var id uuid.UUID
	var row string
	_, err = pgx.ForEachRow(rows, []any{&id, &row}, func() error { got[id] = row; return nil })
	m.must(err)
	if len(got) != len(m.twin.rows) {
		t.Fatalf("%d rows, want %d", len(got), len(m.twin.rows))
	}
	for _, r := range m.twin.rows {
		m.met[r.state]++
		if got[r.id] != r.String() {
			t.Fatalf("work %s\nis   %s\nwant %s", r.id, got[r.id], r)
		}
	}
}

func (m *machine) pick(t *rapid.T) *twinRow {
	if len(m.twin.rows) == 0 {
		t.Skip("no row")
	}
	return m.twin.rows[rapid.IntRange(0, len(m.twin.rows)-1).Draw(t, "row")]
}

func (m *machine) instruction(t *rapid.T) {
	if len(m.twin.rows) < 2 {
		in := instruction()
		in.Attempt = rapid.IntRange(1, 2).Draw(t, "first attempt")
		id, err := protocol.ParseID(in.At.TaskID)
		m.must(err)
		if a := m.accept(in); !a.New {
			t.Fatalf("a new task was accepted as %+v", a)
		}
		m.twin.rows = append(m.twin.rows, &twinRow{id: id, in: in, state: "QUEUED", attempt: in.Attempt, wanted: in.Attempt})
		return
	}
	r := m.pick(t)
	again := *r.in
	again.Attempt = max(1, r.wanted+rapid.SampledFrom([]int{1, 0, -1}).Draw(t, "attempt"))
	a := m.accept(&again)
	if again.Attempt > r.wanted {
		m.met["newer"]++
	}
	if r.accept(again.Attempt); a.New || a.Wanted != r.wanted {
		t.Fatalf("accepted as %+v, want attempt %d", a, r.wanted)
	}
}

func (m *machine) take(t *rapid.T) {
	m.exec(`UPDATE lockstep.work SET due_at = now()`)
	reportsOnly := rapid.IntRange(0, 4).Draw(t, "reports only") == 4
	c, row, err := m.store.Claim(m.t.Context(), "w", reportsOnly)
	m.must(err)
	switch want := m.twin.claim(len(m.claims)+1, reportsOnly); {
	case (row != nil) != (want != nil), row != nil && row.TaskID != want.id:
		t.Fatalf("claimed %+v, want %v", row, want)
	case row != nil:
		m.claims = append(m.claims, held{c, len(m.claims) + 1, want})
	}
}

// write is a worker's, of any claim ever made, the newest most often; the
// superseded ones must be powerless.
func (m *machine) write(t *rapid.T) {
	if len(m.claims) == 0 {
		t.Skip("no claim")
	}
	h := m.claims[len(m.claims)-1-rapid.IntRange(0, len(m.claims)-1).Draw(t, "claim, from the newest")]
	ctx, r := m.t.Context(), h.row
	owns := r.token == h.token
	page := r.page
	if !owns {
		page = 99 // of a prefix that nobody wants any more
	}
	var err error
	switch e := rapid.SampledFrom([]work.Event{
		work.RoundDone, work.Frozen, "an effect", "a renewal", work.AckLost, work.RoundFailed, work.Stale, work.GivenBack,
		work.EndCompleted, work.EndCancelled, work.Unknown,
	}).Draw(t, "event"); e {
	case "an effect":
		if err = m.effect(ctx, h, r.ledger); owns {
			r.ledger++
		}
	case "a renewal":
		if err = m.store.Renew(ctx, h.Claim); owns {
			r.over = false
		}
	case work.Frozen:
		_, err = m.store.Freeze(ctx, h.Claim, store.Progress{NextPage: page}, 10, func(*store.Work, []protocol.ClassCount, []store.Entry) (store.Final, error) {
			return store.Final{State: protocol.Completed, Envelope: []byte("report")}, nil
		})
		owns = owns && r.step(e)
	default:
		if e == work.RoundDone {
			page++
		}
		_, err = m.store.Step(ctx, h.Claim, e, store.Progress{NextPage: page}, "")
		owns = owns && r.step(e)
	}
	if !owns {
		m.met["fenced"]++
	}
	if fenced := errors.Is(err, claim.ErrFenced); fenced == owns || !fenced && err != nil {
		t.Fatalf("claim %d, owner %t: %v", h.token, owns, err)
	}
}

func (m *machine) effect(ctx context.Context, h held, n int) error {
	row, err := m.store.Work(ctx, h.ID)
	if err != nil {
		return err
	}
	return m.store.InEffect(ctx, h.Claim, row, store.RepairPoints, func(e *store.Effect) error {
		return e.Note([]store.Entry{entry(byte(n), protocol.Repaired)})
	})
}

func (m *machine) timePasses(t *rapid.T) {
	r := m.pick(t)
	if r.token != 0 {
		m.exec(`UPDATE lockstep.work SET lease_until = now() - interval '1 second' WHERE task_id = $1`, r.id)
		r.over = true
	}
}

func (m *machine) sweep(t *rapid.T) {
	got, err := m.store.Sweep(m.t.Context())
	m.must(err)
	m.met["swept"] += got
	if want := m.twin.sweep(); got != want {
		t.Fatalf("swept %d, want %d", got, want)
	}
}

func (m *machine) waits(t *rapid.T) {
	r := m.pick(t)
	attempt := max(1, r.wanted-rapid.IntRange(0, 1).Draw(t, "behind"))
	e := rapid.SampledFrom([]work.Event{work.Stale, work.EndCancelled, work.Unknown}).Draw(t, "event")
	got, err := m.store.Untouched(m.t.Context(), r.id, work.Queued, attempt, e, "")
	m.must(err)
	if got {
		m.met["waited"]++
	}
	if want := r.waits(attempt, e); got != want {
		t.Fatalf("an answer about attempt %d changed the row: %t, want %t", attempt, got, want)
	}
}
