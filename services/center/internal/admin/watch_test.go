package admin_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/center/internal/centertest"
)

// reader is the other end of a stream.
type reader struct {
	grpc.ServerStream

	ctx  context.Context
	sent chan *centerv1.Task
}

func (r *reader) Context() context.Context { return r.ctx }

func (r *reader) Send(m *centerv1.WatchTaskResponse) error {
	select {
	case r.sent <- m.GetTask():
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

// watched is a stream in progress.
type watched struct {
	*reader
	w     *world
	stop  context.CancelFunc
	ended chan error
}

func (w *world) watch(ctx context.Context, id uuid.UUID) *watched {
	ctx, stop := context.WithCancel(ctx)
	s := &watched{reader: &reader{ctx: ctx, sent: make(chan *centerv1.Task)}, w: w, stop: stop, ended: make(chan error, 1)}
	w.T.(*testing.T).Cleanup(stop)
	go func() { s.ended <- w.s.WatchTask(&centerv1.WatchTaskRequest{TaskId: protocol.FormatID(id)}, s) }()
	return s
}

const patience = 30 * time.Second

func (s *watched) next() *centerv1.Task {
	s.w.T.Helper()
	select {
	case tk := <-s.sent:
		return tk
	case err := <-s.ended:
		s.w.T.Fatalf("the stream ended: %v", err)
	case <-time.After(patience):
		s.w.T.Fatal("nothing came")
	}
	return nil
}

func (s *watched) end() error {
	s.w.T.Helper()
	select {
	case err := <-s.ended:
		return err
	case <-time.After(patience):
		s.w.T.Fatal("the stream does not end")
		return nil
	}
}

func TestWatchTask(t *testing.T) {
	t.Run("now and after each change until the end", func(t *testing.T) {
		w := setup(t)
		id := w.Ready(centertest.Scope)
		s := w.watch(w.eva, id)
		var states []evidencev1.TaskState
		states = append(states, s.next().GetState())
		for _, set := range []string{
			`state = 'DISPATCHED', attempt = 1, slot = 1, lease_until = now() + interval '15 minutes'`,
			`state = 'RUNNING'`,
			`state = 'PARTIAL', slot = NULL, lease_until = NULL, ended_at = now()`,
		} {
			w.Set(id, set)
			states = append(states, s.next().GetState())
		}
		if err := s.end(); err != nil {
			t.Errorf("the stream ended with %v", err)
		}
		want := []evidencev1.TaskState{
			evidencev1.TaskState_TASK_STATE_QUEUED, evidencev1.TaskState_TASK_STATE_DISPATCHED, evidencev1.TaskState_TASK_STATE_RUNNING, evidencev1.TaskState_TASK_STATE_PARTIAL,
		}
		if !slices.Equal(states, want) {
			t.Errorf("got %v, want %v", states, want)
		}
	})
	t.Run("an ended task is sent once", func(t *testing.T) {
		w := setup(t)
		id := w.Running(centertest.Scope)
		w.Set(id, `state = 'COMPLETED', slot = NULL, lease_until = NULL, ended_at = now()`)
		before := w.Everything()
		s := w.watch(w.eva, id)
		if got := s.next().GetState(); got != evidencev1.TaskState_TASK_STATE_COMPLETED {
			t.Errorf("the task is %s", got)
		}
		if err := s.end(); err != nil {
			t.Error(err)
		}
		if w.Everything() != before {
			t.Error("watching wrote something")
		}
	})
	t.Run("a change that shows nothing sends nothing", func(t *testing.T) {
		w := setup(t)
		id := w.Running(centertest.Scope)
		s := w.watch(w.eva, id)
		s.next()
		w.Set(id, `materialise_tries = materialise_tries + 1`)
		w.Set(id, `code = 'SEEN'`)
		if got := s.next().GetCode(); got != "SEEN" {
			t.Errorf("the next is %q", got)
		}
	})
	t.Run("a stop ends the stream with a code", func(t *testing.T) {
		w := setup(t)
		stopping := make(chan struct{})
		w.s.Stopping = stopping
		s := w.watch(w.eva, w.Running(centertest.Scope))
		s.next()
		close(stopping)
		wantReason(t, s.end(), fault.Unavailable)
	})
	t.Run("a reader that goes ends it", func(t *testing.T) {
		w := setup(t)
		s := w.watch(w.eva, w.Running(centertest.Scope))
		s.next()
		s.stop()
		if err := s.end(); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("what may not be seen is not there", func(t *testing.T) {
		w := setup(t)
		id := w.Running(centertest.Scope)
		wantReason(t, w.watch(w.tom, id).end(), fault.TaskNotFound)
		wantReason(t, w.watch(w.eva, uuid.New()).end(), fault.TaskNotFound)
		wantReason(t, w.watch(t.Context(), id).end(), fault.PermissionDenied)
	})
	t.Run("an operator has a bounded number of streams", func(t *testing.T) {
		w := setup(t)
		id := w.Running(centertest.Scope)
		const most = 16
		open := make([]*watched, most)
		for i := range open {
			open[i] = w.watch(w.eva, id)
			open[i].next()
		}
		wantReason(t, w.watch(w.eva, id).end(), fault.RateLimited)
		ada := identity.WithOperator(t.Context(), identity.Operator{ID: "ada", Role: identity.RoleViewer})
		w.watch(ada, id).next()
		open[0].stop()
		_ = open[0].end()
		w.watch(w.eva, id).next()
	})
}
