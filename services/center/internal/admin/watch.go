package admin

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/task"
)

const (
	// A look reads the version of one row by its key.
	firstLook = 100 * time.Millisecond // after a change; it doubles to lastLook
	lastLook  = 2 * time.Second
	// A task is read whole again after this long without a change: why it waits
	// depends on the clock and on others.
	wholeLook = 10 * time.Second
	// A stream ends then, and its reader opens another: calls spread over
	// replicas again, and whoever watches is verified again.
	watchLife = 15 * time.Minute

	maxWatchesEach = 16 // of an operator; the command line opens four
	maxWatches     = 80 // of a process: below the streams that one connection carries
)

// watches counts the open streams.
type watches struct {
	mu  sync.Mutex
	of  map[string]int
	all int
}

// enter takes a place; leave gives it back.
func (w *watches) enter(operator string) (leave func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string]int{}
	}
	if w.of[operator] >= maxWatchesEach || w.all >= maxWatches {
		return nil, fault.New(fault.RateLimited, "too many tasks are watched at once; end a stream, or try again later")
	}
	w.of[operator]++
	w.all++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all--
		if w.of[operator]--; w.of[operator] == 0 {
			delete(w.of, operator)
		}
	}, nil
}

// WatchTask sends a task as it is now and after every change, until it has ended.
func (s *Server) WatchTask(req *centerv1.WatchTaskRequest, stream grpc.ServerStreamingServer[centerv1.WatchTaskResponse]) error {
	ctx := stream.Context()
	op, err := caller(ctx)
	if err != nil {
		return err
	}
	tk, err := s.visible(ctx, op, req.GetTaskId())
	if err != nil {
		return err
	}
	leave, err := s.watches.enter(op.ID)
	if err != nil {
		return err
	}
	defer leave()
	life := time.NewTimer(watchLife)
	defer life.Stop()
	w := watch{s: s, op: op, task: tk.ID, send: stream.Send}
	for {
		ended, err := w.look(ctx)
		if err != nil || ended {
			return err
		}
		pause := time.NewTimer(w.pause)
		select {
		case <-pause.C:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-s.Stopping:
			err = fault.New(fault.Unavailable, "the service stops; watch again")
		case <-life.C:
			err = fault.New(fault.Unavailable, "the stream is as old as one may get; watch again")
		}
		pause.Stop()
		return err
	}
}

// watch is one stream.
type watch struct {
	s    *Server
	op   identity.Operator
	task uuid.UUID
	send func(*centerv1.WatchTaskResponse) error

	version string         // of the row when it was read whole
	sent    *centerv1.Task // nil before the first
	pause   time.Duration  // until the next look
	unread  time.Duration  // since the task was read whole
}

// look sends the task if it is not as it was sent last. The version is read
// first: a change between the two reads is found by the next look.
func (w *watch) look(ctx context.Context) (ended bool, err error) {
	version, err := w.s.Store.TaskVersion(ctx, w.task)
	if err != nil {
		return false, err
	}
	moved := version != w.version
	w.unread += w.pause
	w.pause = min(max(2*w.pause, firstLook), lastLook)
	if !moved && w.unread < wholeLook {
		return false, nil
	}
	tk, err := w.s.Store.Task(ctx, w.task)
	if err != nil {
		return false, err
	}
	views, err := w.s.views(ctx, w.op, []*task.Task{tk})
	if err != nil {
		return false, err
	}
	w.version, w.unread = version, 0
	if moved {
		w.pause = firstLook
	}
	if proto.Equal(views[0], w.sent) {
		return false, nil
	}
	w.sent = views[0]
	return tk.State.Terminal(), w.send(&centerv1.WatchTaskResponse{Task: views[0]})
}
