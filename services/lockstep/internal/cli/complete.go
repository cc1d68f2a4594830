package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/lockstep/internal/api"
)

// completeTimeout bounds what a press of the tab key waits for.
const completeTimeout = 2 * time.Second

// completeWords offers the words of a flag.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	must(cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	}))
}

// must: the flag was declared, a few lines above.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func completeStates[E protoreflect.Enum](cmd *cobra.Command) {
	completeWords(cmd, "state", api.Words[E]()...)
}

// completeClasses offers what a ledger's rows are.
func completeClasses(cmd *cobra.Command) {
	var classes []string
	for _, class := range protocol.Classes() {
		classes = append(classes, string(class))
	}
	completeWords(cmd, "class", classes...)
	completeWords(cmd, "outcome", "REPAIRED", "SETTLED", "RETIRED", "REPORTED", "DEFERRED", "EXHAUSTED", "QUARANTINED")
}

// completeIDs offers the newest ids of the page that list reads. Where the
// service can't be asked nothing is offered.
func completeIDs(r *remote, list func(context.Context, *api.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		client, err := r.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		ids, err := list(ctx, client)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ids = slices.DeleteFunc(ids, func(id string) bool {
			name, _, _ := strings.Cut(id, "\t")
			return !strings.HasPrefix(name, begun) || slices.Contains(args, name)
		})
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// taskIDs are the newest tasks of the center, those that have not ended only where open is.
func taskIDs(open bool) func(context.Context, *api.Client) ([]string, error) {
	in := &centerv1.ListTasksRequest{PageSize: defaultLimit}
	if open {
		in.States = []evidencev1.TaskState{
			evidencev1.TaskState_TASK_STATE_QUEUED, evidencev1.TaskState_TASK_STATE_DISPATCHED, evidencev1.TaskState_TASK_STATE_RUNNING,
		}
	}
	return func(ctx context.Context, client *api.Client) (ids []string, err error) {
		out, _, err := client.Tasks(ctx, in)
		for _, t := range out.GetTasks() {
			ids = append(ids, t.GetTaskId()+"\t"+api.Word(t.GetState())+" "+t.GetCollectionId())
		}
		return ids, err
	}
}

func workIDs(ctx context.Context, client *api.Client) (ids []string, err error) {
	out, _, err := client.WorkList(ctx, &consumerv1.ListWorkRequest{PageSize: defaultLimit})
	for _, w := range out.GetWork() {
		ids = append(ids, w.GetTaskId()+"\t"+api.Word(w.GetState())+" "+w.GetCollectionId())
	}
	return ids, err
}

func refreshIDs(ctx context.Context, client *api.Client) (ids []string, err error) {
	out, _, err := client.RefreshTasks(ctx, &consumerv1.ListTasksRequest{PageSize: defaultLimit})
	for _, t := range out.GetTasks() {
		ids = append(ids, t.GetTaskId()+"\t"+api.Word(t.GetState())+" "+t.GetBusinessKey())
	}
	return ids, err
}

// completeArgs gives ids to those of a group's commands that take a task.
func completeArgs(group *cobra.Command, of func(name string) cobra.CompletionFunc) {
	for _, cmd := range group.Commands() {
		if strings.Contains(cmd.Use, " TASK") {
			cmd.ValidArgsFunction = of(cmd.Name())
		}
	}
}
