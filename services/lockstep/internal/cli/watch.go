package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"lockstep.dev/pkg/fault"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/lockstep/internal/api"
	"lockstep.dev/services/lockstep/internal/demo"
)

const watchInterval = time.Second

// watch shows progress until every task has ended, then what came out.
func (r *remote) watch(ctx context.Context, client *api.Client, made *centerv1.CreateTaskResponse) error {
	tasks := make([]*centerv1.Task, 0, len(made.GetTasks()))
	texts := make([]json.RawMessage, len(made.GetTasks()))
	for _, created := range made.GetTasks() {
		tasks = append(tasks, created.GetTask())
	}
	progress := demo.NewProgress(r.env.Err, isTerminal(r.env.Err))
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	defer progress.End()
	for {
		open, err := readOpen(ctx, client, tasks, texts)
		if err != nil {
			return err
		}
		progress.Show("", tasks)
		if !open {
			progress.End()
			return r.outcome(made, tasks, texts)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("stopped watching; the tasks go on: %w", ctx.Err())
		}
	}
}

// readOpen reads those of the tasks that had not ended, and says whether any is still to be read.
func readOpen(ctx context.Context, client *api.Client, tasks []*centerv1.Task, texts []json.RawMessage) (open bool, err error) {
	for i, task := range tasks {
		if texts[i] != nil && api.Ended(task.GetState()) {
			continue
		}
		read, text, err := client.Task(ctx, task.GetTaskId())
		if limited(err) {
			return true, nil // the others are read with the next tick
		}
		if err != nil {
			return false, err
		}
		tasks[i], texts[i] = read, text
		open = open || !api.Ended(read.GetState())
	}
	return open, nil
}

// limited says whether the service only asks for patience.
func limited(err error) bool {
	refused := new(api.Refused)
	return errors.As(err, &refused) && refused.Reason == string(fault.RateLimited)
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
