package cli

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/lockstep/internal/api"
)

func newTask(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "task", Short: "Reconciliations at the center: make, list, watch, cancel",
		Example: `  lockstep task create --consumer svc-hall --tenant 101 --collection enrolment --wait
  lockstep task list --state RUNNING`,
	})
	r := newRemote(env, cmd, "center")
	cmd.AddCommand(taskCreate(r), taskList(r), taskShow(r), taskWatch(r), taskCancel(r), taskResults(r), taskOutcomes(r))
	completeArgs(cmd, func(name string) cobra.CompletionFunc {
		return completeIDs(r, taskIDs(name == "watch" || name == "cancel"))
	})
	return cmd
}

// createFlags are what task create is told.
type createFlags struct {
	consumer, collection, key, override string
	tenant                              int64
	all, dryRun, wait                   bool
}

// request checks the flags against each other.
func (f *createFlags) request() (*centerv1.CreateTaskRequest, error) {
	in := &centerv1.CreateTaskRequest{
		Consumer: f.consumer, TenantId: f.tenant, CollectionId: f.collection, Key: f.key,
		Scope: evidencev1.Scope_SCOPE_COLLECTION, Mode: evidencev1.Mode_MODE_REPAIR,
		BreakerOverride: f.override != "", OverrideReason: f.override,
	}
	if f.dryRun {
		in.Mode = evidencev1.Mode_MODE_DRY_RUN
	}
	switch {
	case f.all:
		if f.collection != "" || f.key != "" || f.tenant != 0 {
			return nil, errors.New("--all takes no --tenant, --collection or --key")
		}
		in.Scope = evidencev1.Scope_SCOPE_ALL
	case f.collection == "" || f.tenant == 0:
		return nil, errors.New("give --tenant and --collection, or --all")
	case f.key != "":
		in.Scope = evidencev1.Scope_SCOPE_RECORD
	}
	return in, nil
}

func taskCreate(r *remote) *cobra.Command {
	var f createFlags
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Reconcile one collection, one record, or every subscription",
		Long: `Makes a task, or returns the open one of the same coordinates. A creation that is
refused leaves a FAILED task with its code.

Exit codes with --wait: 0 every task COMPLETED (the sets are equal), 1 something is
still open or was left out, 2 refused or cancelled, 3 did not work. Without: 0 made, 2 refused.`,
		Example: `  lockstep task create --consumer svc-hall --all --wait
  lockstep task create --consumer svc-hall --tenant 101 --collection enrolment --dry-run --wait
  lockstep task create --consumer svc-hall --tenant 101 --collection enrolment --key 0190f5c27cde7a4f8a9b1c2d3e4f5061
  lockstep task create --consumer svc-hall --tenant 101 --collection enrolment --override-breaker "form emptied on purpose, ticket 812"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := f.request()
			if err != nil {
				return err
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			out, text, err := client.CreateTask(cmd.Context(), in)
			if err != nil {
				return err
			}
			if f.wait {
				return r.watch(cmd.Context(), client, out)
			}
			if err := r.show(text, func(w *tabwriter.Writer) { writeCreated(w, out) }); err != nil {
				return err
			}
			return exitOf(createdCode(out))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.consumer, "consumer", "", "the consumer's app key")
	flags.BoolVar(&f.all, "all", false, "one task for every effective subscription of the consumer")
	flags.Int64Var(&f.tenant, "tenant", 0, "the tenant")
	flags.StringVar(&f.collection, "collection", "", "the collection")
	flags.StringVar(&f.key, "key", "", "one record: its key as 32 lower-case hex digits")
	flags.BoolVar(&f.dryRun, "dry-run", false, "find and report; write and fetch nothing")
	flags.StringVar(&f.override, "override-breaker", "", "retire extra rows even if they are many; say why")
	flags.BoolVar(&f.wait, "wait", false, "show progress until the end")
	require(cmd, "consumer")
	return cmd
}

// createdCode: what is FAILED at once was refused.
func createdCode(out *centerv1.CreateTaskResponse) int {
	code := exitDone
	for _, created := range out.GetTasks() {
		if api.Ended(created.GetTask().GetState()) {
			code = max(code, taskCode(created.GetTask()))
		}
	}
	return code
}

func writeCreated(w *tabwriter.Writer, out *centerv1.CreateTaskResponse) {
	fmt.Fprint(w, taskHead)
	for _, created := range out.GetTasks() {
		writeTask(w, created.GetTask())
	}
	for _, created := range out.GetTasks() {
		if created.GetExisting() {
			fmt.Fprintf(w, "%s was open already\n", created.GetTask().GetTaskId())
		}
	}
	writeLeftOut(w, out)
}

func writeLeftOut(w *tabwriter.Writer, out *centerv1.CreateTaskResponse) {
	for _, left := range out.GetLeftOut() {
		fmt.Fprintf(w, "left out this time: tenant %d, %s (%s)\n", left.GetTenantId(), left.GetCollectionId(), left.GetCode())
	}
}

// listFlags are the filters and the page of a list.
type listFlags struct {
	paging

	consumer, collection string
	tenant               int64
	states               []string
}

func (f *listFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Int64Var(&f.tenant, "tenant", 0, "only this tenant")
	flags.StringVar(&f.collection, "collection", "", "only this collection")
	flags.StringSliceVar(&f.states, "state", nil, "only these states")
	f.paging.add(cmd)
}

func taskList(r *remote) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use: "list", Short: "List tasks, newest first", Args: cobra.NoArgs,
		Example: `  lockstep task list
  lockstep task list --consumer svc-hall --state PARTIAL --state FAILED --limit 20
  lockstep task list --all --json > tasks.jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			states, err := parseAll[evidencev1.TaskState](f.states)
			if err != nil {
				return fmt.Errorf("--state: %w", err)
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(cmd.Context(), &f.paging, taskHead, func(size int32, token string) (listed, error) {
				out, text, err := client.Tasks(cmd.Context(), &centerv1.ListTasksRequest{
					Consumer: f.consumer, TenantId: f.tenant, CollectionId: f.collection, States: states, PageSize: size, PageToken: token,
				})
				return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) {
					for _, t := range out.GetTasks() {
						writeTask(w, t)
					}
				}}, err
			})
		},
	}
	cmd.Flags().StringVar(&f.consumer, "consumer", "", "only this consumer")
	f.add(cmd)
	completeStates[evidencev1.TaskState](cmd)
	return cmd
}

func taskShow(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "show TASK", Short: "Show a task, its figures and why it waits", Args: cobra.ExactArgs(1),
		Example: "  lockstep task show 0190f5c27cde7a4f8a9b1c2d3e4f5061",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			task, text, err := client.Task(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { writeTaskDetail(w, task) })
		},
	}
}

func taskWatch(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "watch TASK…", Short: "Show progress until the tasks have ended", Args: cobra.MinimumNArgs(1),
		Long: `Shows how far the scans are, how fast they go and when they end, until every task has
ended, then what came out. A stream that breaks is opened again.

Exit codes: 0 every task COMPLETED, 1 something is still open, 2 refused or cancelled, 3 did not work.`,
		Example: "  lockstep task watch 0190f5c27cde7a4f8a9b1c2d3e4f5061",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			made := &centerv1.CreateTaskResponse{}
			for _, id := range args {
				made.Tasks = append(made.Tasks, &centerv1.CreateTaskResponse_Created{Task: &centerv1.Task{TaskId: id}})
			}
			return r.watch(cmd.Context(), client, made)
		},
	}
}

func taskCancel(r *remote) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "cancel TASK", Short: "End a task that has not ended", Args: cobra.ExactArgs(1),
		Example: `  lockstep task cancel 0190f5c27cde7a4f8a9b1c2d3e4f5061 --reason "wrong form"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			task, text, err := client.CancelTask(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { writeTasks(w, task) })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return cmd
}

func taskResults(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "results TASK", Short: "Show a task's result reports, by attempt", Args: cobra.ExactArgs(1),
		Example: `  lockstep task results 0190f5c27cde7a4f8a9b1c2d3e4f5061
  lockstep task results 0190f5c27cde7a4f8a9b1c2d3e4f5061 --json | jq '.results[0].report'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			results, text, err := client.Results(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { writeResults(w, results) })
		},
	}
}
