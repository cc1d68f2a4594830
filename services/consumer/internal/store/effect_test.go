package store_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/store"
)

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
