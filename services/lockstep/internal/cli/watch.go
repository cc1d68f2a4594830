package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/lockstep/internal/api"
	"lockstep.dev/services/lockstep/internal/demo"
)

const (
	streams     = 4 // at once; the others are watched when one of these has ended
	firstPause  = 250 * time.Millisecond
	lastPause   = 5 * time.Second
	maxFailures = 40 // in a row: about three minutes
)

// heard is what a stream said of one of the tasks.
type heard struct {
	at   int
	task *centerv1.Task
	text json.RawMessage
	err  error // the task can't be watched to its end
}

// watch shows progress until every task has ended, then what came out.
func (r *remote) watch(ctx context.Context, client *api.Client, made *centerv1.CreateTaskResponse) error {
	tasks := make([]*centerv1.Task, 0, len(made.GetTasks()))
	for _, created := range made.GetTasks() {
		tasks = append(tasks, created.GetTask())
	}
	progress := demo.NewProgress(r.env.Err, isTerminal(r.env.Err))
	defer progress.End()
	texts, err := follow(ctx, client, tasks, func() { progress.Show("", tasks) })
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped watching; the tasks go on: %w", ctx.Err())
		}
		return err
	}
	progress.End()
	return r.outcome(made, tasks, texts)
}

// follow keeps tasks as their streams say, until all have ended, and gives the
// last word on each as it came.
func follow(ctx context.Context, client *api.Client, tasks []*centerv1.Task, changed func()) ([]json.RawMessage, error) {
	ctx, stop := context.WithCancel(ctx)
	words := make(chan heard)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	ids := make(chan int, len(tasks))
	for i := range tasks {
		ids <- i
	}
	close(ids)
	for range min(streams, len(tasks)) {
		group.Go(func() {
			for i := range ids {
				watchOne(ctx, client, i, tasks[i].GetTaskId(), words)
			}
		})
	}
	texts := make([]json.RawMessage, len(tasks))
	for open := len(tasks); open > 0; {
		select {
		case word := <-words:
			if word.err != nil {
				return nil, word.err
			}
			tasks[word.at], texts[word.at] = word.task, word.text
			changed()
			if api.Ended(word.task.GetState()) {
				open--
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return texts, nil
}

// watchOne opens a stream again whenever it breaks before the task has ended.
func watchOne(ctx context.Context, client *api.Client, at int, id string, words chan<- heard) {
	tell := func(word heard) error {
		select {
		case words <- word:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	failures := 0
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		ended := false
		err := client.WatchTask(ctx, id, func(task *centerv1.Task, text []byte) error {
			pause, failures, ended = firstPause, 0, api.Ended(task.GetState())
			return tell(heard{at: at, task: task, text: slices.Clone(text)})
		})
		failures++
		switch {
		case ended || ctx.Err() != nil:
			return
		case err != nil && (!api.MayComeBack(err) || failures > maxFailures):
			_ = tell(heard{at: at, err: err}) // or nobody listens any more
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// outcome prints ended tasks and gives the exit code of the worst one.
func (r *remote) outcome(made *centerv1.CreateTaskResponse, tasks []*centerv1.Task, texts []json.RawMessage) error {
	code := exitDone
	for _, task := range tasks {
		code = max(code, taskCode(task))
	}
	if len(made.GetLeftOut()) > 0 {
		code = max(code, exitDiffers)
	}
	text, err := json.Marshal(texts)
	if err != nil {
		return fmt.Errorf("print the tasks: %w", err)
	}
	err = r.show(text, func(w *tabwriter.Writer) {
		writeTasks(w, tasks...)
		for _, task := range tasks {
			writeCounts(w, task.GetCollectionId(), task.GetProgress().GetCounts())
		}
		writeLeftOut(w, made)
	})
	if err != nil {
		return err
	}
	return exitOf(code)
}

// Codes of a FAILED task that say it could not be worked, not that it was refused.
var broken = []string{"MATERIALISE_FAILED", "DISPATCH_FAILED", "TARGET_NOT_REGISTERED", "LEASE_EXPIRED"}

// taskCode is the exit code of an ended task.
func taskCode(t *centerv1.Task) int {
	switch api.Word(t.GetState()) {
	case "COMPLETED":
		return exitDone
	case "PARTIAL":
		return exitDiffers
	case "CANCELLED":
		return exitRefused
	}
	if slices.Contains(broken, t.GetCode()) {
		return exitError
	}
	return exitRefused
}

func exitOf(code int) error {
	if code == exitDone {
		return nil
	}
	return exit(code)
}
