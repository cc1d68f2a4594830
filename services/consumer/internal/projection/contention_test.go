package projection

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.dev/pkg/pg"
)

// A host that changes a row between the scan and the repair keeps its value.
func TestRepairAfterTheHostWrote(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		scanned := w.put(t, w.at, 1, 2, "old")
		w.set(t, key(1), w.table.Revision+" = 3")
		w.unchanged(t, func() {
			if got := w.repair(t, Item{Key: key(1), Expected: Live(scanned), Snapshot: snapshot(t, 1, 3, body("new"))}); got != nil {
				t.Errorf("wrote %x", got)
			}
		})
	})
}

// begin opens a transaction of the host and runs a statement in it.
func (w *world) begin(t *testing.T, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := w.host.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
	return tx
}

// A row that a host transaction holds is passed over at once; its neighbours are written.
func TestRepairPassesOverALockedRow(t *testing.T) {
	eachVariant(t, func(t *testing.T, w *world) {
		one, two := w.put(t, w.at, 1, 2, "old"), w.put(t, w.at, 2, 2, "old")
		w.put(t, w.at, 3, 2, "retired")
		w.set(t, key(3), w.table.Retired+" = now()")
		host := w.begin(t, "UPDATE "+w.table.Ident+" AS t SET "+w.table.Revision+" = 5 WHERE t."+w.table.Key+" = ANY($1)", w.table.KeyArgs(keys(1, 3)))
		got := w.repair(t,
			Item{Key: key(1), Expected: Live(one), Snapshot: snapshot(t, 1, 3, body("new"))},
			Item{Key: key(2), Expected: Live(two), Snapshot: snapshot(t, 2, 3, body("new"))},
			Item{Key: key(3), Expected: Absent(), Snapshot: snapshot(t, 3, 3, body("new"))})
		if !slices.Equal(got, keys(2)) {
			t.Errorf("wrote %x", got)
		}
		if err := host.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := w.repair(t, Item{Key: key(1), Expected: Live(one), Snapshot: snapshot(t, 1, 3, body("new"))}); got != nil {
			t.Errorf("wrote %x over the host's value", got)
		}
		if row, _ := w.row(t, 1); row.Revision != 5 {
			t.Errorf("got %+v", row)
		}
	})
}

// A host that is just inserting the key is waited for, but not for long.
func TestRepairOfAKeyTheHostIsInserting(t *testing.T) {
	for _, end := range []string{"commits", "rolls back"} {
		t.Run(end, func(t *testing.T) {
			w := setup(t, bundled)
			item := Item{Key: key(1), Expected: Absent(), Snapshot: snapshot(t, 1, 3, body("new"))}
			content := hashOf(t, body("host's"))
			host := w.begin(t, w.insert, w.at.TenantID, w.at.CollectionID, "00000000000000000000000000000001", 9, content[:], false, body("host's"))
			if _, err := w.tryRepair(t.Context(), item); FaultOf(err) != Busy || pg.Code(err) != "55P03" {
				t.Fatalf("got %v", err)
			}
			if end == "commits" {
				if err := host.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.unchanged(t, func() {
					if got := w.repair(t, item); got != nil {
						t.Errorf("wrote %x", got)
					}
				})
				return
			}
			if err := host.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := w.repair(t, item); !slices.Equal(got, keys(1)) {
				t.Errorf("wrote %x", got)
			}
		})
	}
}

// Where a repair and a host transaction come to wait for each other, the repair gives up.
func TestRepairNeverCostsTheHostItsTransaction(t *testing.T) {
	w := setup(t, bundled)
	// PostgreSQL's own default, for both sides.
	w.exec(t, "SET deadlock_timeout = '1s'")
	w.session(t, "deadlock_timeout", "1s")
	content := hashOf(t, body("host's"))
	insert := func(k string) []any {
		return []any{w.at.TenantID, w.at.CollectionID, k, 9, content[:], false, body("host's")}
	}
	host := w.begin(t, w.insert, insert("00000000000000000000000000000002")...)
	failed := make(chan error, 1)
	go func() {
		_, err := w.tryRepair(t.Context(),
			Item{Key: key(1), Expected: Absent(), Snapshot: snapshot(t, 1, 3, body("new"))},
			Item{Key: key(2), Expected: Absent(), Snapshot: snapshot(t, 2, 3, body("new"))})
		failed <- err
	}()
	for blocked := false; !blocked; {
		err := host.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid)))`).Scan(&blocked)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := host.Exec(t.Context(), "SELECT pg_stat_clear_snapshot()"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := host.Exec(t.Context(), w.insert, insert("00000000000000000000000000000001")...); err != nil {
		t.Errorf("the host's insert failed: %v", err)
	}
	if err := host.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-failed; FaultOf(err) != Busy {
		t.Errorf("the repair ended with %v", err)
	}
}

// The short wait is the repair's own; the rest of the caller's transaction keeps the session's.
func TestRepairLeavesTheSessionsLockTimeout(t *testing.T) {
	w := setup(t, bundled)
	err := pg.InTx(t.Context(), w.pool, func(tx pgx.Tx) error {
		var before, after string
		if err := tx.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&before); err != nil {
			return err
		}
		item := Item{Key: key(1), Expected: Absent(), Snapshot: snapshot(t, 1, 3, body("new"))}
		if _, err := w.Repair(t.Context(), tx, w.at, []Item{item}); err != nil {
			return err
		}
		if err := tx.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&after); err != nil {
			return err
		}
		if before != after {
			t.Errorf("lock_timeout was %s, is %s", before, after)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFaultOf(t *testing.T) {
	for code, want := range map[string]Fault{
		"22001": RowsOwn, "22P05": RowsOwn, "23502": RowsOwn, "23505": RowsOwn, "23514": RowsOwn, "44000": RowsOwn,
		"54000": RowsOwn, "54001": RowsOwn, "P0001": RowsOwn,
		"55P03": Busy,
		"42501": Misconfigured, "42P01": Misconfigured, "28000": Misconfigured, "3D000": Misconfigured, "0A000": Misconfigured,
		"40001": Transient, "40P01": Transient, "57014": Transient, "53300": Transient, "08006": Transient, "XX000": Transient, "": Transient,
	} {
		err := fmt.Errorf("repair: %w", &pgconn.PgError{Code: code})
		if got := FaultOf(err); got != want {
			t.Errorf("%s: got %d, want %d", code, got, want)
		}
	}
	if got := FaultOf(io.ErrUnexpectedEOF); got != Transient {
		t.Errorf("a lost connection: got %d", got)
	}
	if got := FaultOf(errors.Join(ErrUnrepresentable)); got != RowsOwn {
		t.Errorf("unrepresentable: got %d", got)
	}
}
