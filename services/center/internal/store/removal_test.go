package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/store"
)

// TestRemovedMeanwhile: what waits for the removal of a tenant to commit sees
// all of it, in the grant's row and outside it. A statement that waits for a row
// sees the newest version of that row and everything else as it was when it began.
func TestRemovedMeanwhile(t *testing.T) {
	all := store.Grant{Scope: centertest.Scope, Enabled: true, ReadAllowed: true, SubscribeAllowed: true}
	for name, c := range map[string]struct {
		prepare func(w *centertest.World) uuid.UUID
		do      func(ctx context.Context, w *centertest.World, id uuid.UUID) error
		code    fault.Reason
		state   string // of the prepared task
	}{
		"a_check": {
			prepare: func(w *centertest.World) uuid.UUID { return w.Running(centertest.Scope) },
			do: func(ctx context.Context, w *centertest.World, id uuid.UUID) error {
				_, code, err := w.Store.CancelLost(ctx, id)
				if code != fault.GrantRevoked {
					w.T.Errorf("cancelled with %q", code)
				}
				return err
			},
			state: "CANCELLED GRANT_REVOKED",
		},
		"a_dispatcher": {
			prepare: func(w *centertest.World) uuid.UUID { return w.Ready(centertest.Scope) },
			do: func(ctx context.Context, w *centertest.World, _ uuid.UUID) error {
				_, _, ok, err := w.Store.ClaimDispatch(ctx, "d", centertest.Policy)
				if ok {
					w.T.Error("it was dispatched")
				}
				return err
			},
			state: "CANCELLED GRANT_REVOKED",
		},
		"a_replay": {
			do: func(ctx context.Context, w *centertest.World, _ uuid.UUID) error {
				_, err := w.Store.Replay(ctx, centertest.Scope, "key", "asked for", "operator/eva", "delivery/1")
				return err
			},
			code: fault.GrantRevoked,
		},
		"a_scheduled_run": {
			do: func(ctx context.Context, w *centertest.World, _ uuid.UUID) error {
				run, err := w.Store.ScheduleRun(ctx, "2026-03-01", 10, uuid.New)
				if run.Created != 0 || !run.Finished {
					w.T.Errorf("the run made %d tasks, finished %t", run.Created, run.Finished)
				}
				return err
			},
		},
		"a_new_grant": {
			do: func(ctx context.Context, w *centertest.World, _ uuid.UUID) error {
				_, _, err := w.Store.SetGrant(ctx, all, "operator/eva")
				return err
			},
			code: fault.ScopeMismatch,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := centertest.New(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var id uuid.UUID
			if c.prepare != nil {
				id = c.prepare(w)
			}
			// The removal's last statement waits, and so its commit.
			hold, err := w.Connect().Begin(ctx)
			w.Must(err)
			_, err = hold.Exec(ctx, `LOCK TABLE lockstep.audit IN SHARE MODE`)
			w.Must(err)
			removed := make(chan error, 1)
			go func() {
				_, err := w.Store.RemoveTenant(ctx, centertest.Consumer, centertest.Tenant, "operator/eva")
				removed <- err
			}()
			w.BlockedAll(ctx, 1)
			done := make(chan error, 1)
			go func() { done <- c.do(ctx, w, id) }()
			w.BlockedAll(ctx, 2)
			w.Must(hold.Commit(ctx))
			w.Must(<-removed)
			if err := <-done; fault.ReasonOf(err) != c.code || c.code == fault.None && err != nil {
				t.Errorf("it answered %v, want %q", err, c.code)
			}
			if c.prepare != nil {
				w.WantState(id, c.state)
			} else if n := w.Int(`SELECT (SELECT count(*) FROM lockstep.task) + (SELECT count(*) FROM lockstep.delivery)`); n != 0 {
				t.Errorf("%d tasks or deliveries were made", n)
			}
		})
	}
}
