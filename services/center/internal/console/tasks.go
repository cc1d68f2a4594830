package console

import (
	"context"
	"fmt"

	"lockstep.dev/pkg/fault"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	shell "lockstep.dev/services/internal/console"
)

// states are the choices of a task's state.
var states = []shell.Option{
	{Value: "", Label: "all"},
	{Value: "OPEN", Label: "not ended"},
	{Value: "QUEUED", Label: "QUEUED"},
	{Value: "DISPATCHED", Label: "DISPATCHED"},
	{Value: "RUNNING", Label: "RUNNING"},
	{Value: "COMPLETED", Label: "COMPLETED"},
	{Value: "PARTIAL", Label: "PARTIAL"},
	{Value: "FAILED", Label: "FAILED"},
	{Value: "CANCELLED", Label: "CANCELLED"},
}

func statesOf(choice string) ([]evidencev1.TaskState, error) {
	switch choice {
	case "":
		return nil, nil
	case "OPEN":
		return open, nil
	}
	number, ok := evidencev1.TaskState_value["TASK_STATE_"+choice]
	if !ok || number == 0 {
		return nil, fault.New(fault.InvalidArgument, "there is no such state").WithField("state", "is a task's state")
	}
	return []evidencev1.TaskState{evidencev1.TaskState(number)}, nil
}

type tasks struct {
	Who    shell.Who
	Filter shell.Filter
	Tasks  []*centerv1.Task
	Pager  shell.Pager
}

func (p *pages) tasks(ctx context.Context, r *shell.Request) (shell.View, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.View{}, err
	}
	wanted, err := statesOf(r.Value("state"))
	if err != nil {
		return shell.View{}, err
	}
	got, err := p.admin.ListTasks(ctx, &centerv1.ListTasksRequest{
		Consumer: r.Value("consumer"), TenantId: tenant, CollectionId: r.Value("collection"), States: wanted, PageToken: r.Value(shell.PageToken),
	})
	if err != nil {
		return shell.View{}, err
	}
	return shell.View{Title: "Tasks", Data: tasks{
		Who:    r.Who,
		Filter: scopeFields(r, shell.Field{Name: "state", Label: "State", Kind: shell.Choice, Options: states}),
		Tasks:  got.GetTasks(), Pager: r.Pager(got.GetNextPageToken()),
	}}, nil
}

// newTaskForm is for any scope; what does not belong to the scope asked for is
// refused by the API.
func (p *pages) newTaskForm(ctx context.Context, _ *shell.Request) (shell.Form, error) {
	consumers, err := p.consumers(ctx)
	if err != nil {
		return shell.Form{}, err
	}
	return shell.Form{
		Title: "New task", Trail: []shell.Link{{Label: "Tasks", Path: "tasks"}}, Back: "tasks", Button: "Make the task",
		Explain: "The consumer's copy is compared with what the center has at the moment the task begins. An open task of the same scope is shown instead of making another.",
		Fields: []shell.Field{
			consumers,
			{Name: "scope", Label: "Scope", Kind: shell.Choice, Value: "COLLECTION", Options: []shell.Option{
				{Value: "COLLECTION", Label: "one collection"}, {Value: "RECORD", Label: "one record"}, {Value: "ALL", Label: "every collection that the consumer may have"},
			}},
			{Name: "tenant", Label: "Tenant", Kind: shell.Number, Help: "Not for every collection."},
			{Name: "collection", Label: "Collection", Help: "Not for every collection."},
			{Name: "key", Label: "Key", Help: "For one record: 32 lower-case hex digits."},
			{Name: "mode", Label: "Mode", Kind: shell.Choice, Value: "REPAIR", Options: []shell.Option{
				{Value: "REPAIR", Label: "repair what differs"}, {Value: "DRY_RUN", Label: "dry run: only report what differs"},
			}},
			{Name: "breaker_override", Label: "Retire extra rows past the breaker", Kind: shell.Check, Help: "Only when the consumer refused with RETIRE_BREAKER and the center's side is right."},
			{Name: "override_reason", Label: "Reason for the override", Kind: shell.LongText, Max: 500, Help: "It is kept with the task and in the audit log."},
		},
	}, nil
}

// consumers is a field that lets one of the registered targets be chosen.
func (p *pages) consumers(ctx context.Context) (shell.Field, error) {
	targets, err := p.admin.ListTargets(ctx, &centerv1.ListTargetsRequest{})
	if err != nil {
		return shell.Field{}, err
	}
	field := shell.Field{Name: "consumer", Label: "Consumer", Kind: shell.Choice, Required: true}
	for _, target := range targets.GetTargets() {
		field.Options = append(field.Options, shell.Option{Value: target.GetConsumer(), Label: target.GetConsumer()})
	}
	if len(field.Options) == 0 {
		field.Kind, field.Help = shell.Text, "The settings name none under targets, so nothing will be dispatched."
	}
	return field, nil
}

func (p *pages) newTask(ctx context.Context, r *shell.Request) (shell.Done, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.Done{}, err
	}
	got, err := p.admin.CreateTask(ctx, &centerv1.CreateTaskRequest{
		Consumer: r.Value("consumer"), TenantId: tenant, CollectionId: r.Value("collection"), Key: r.Value("key"),
		Scope:           evidencev1.Scope(evidencev1.Scope_value["SCOPE_"+r.Value("scope")]),
		Mode:            evidencev1.Mode(evidencev1.Mode_value["MODE_"+r.Value("mode")]),
		BreakerOverride: r.Checked("breaker_override"), OverrideReason: r.Value("override_reason"),
	})
	if err != nil {
		return shell.Done{}, renamed(err)
	}
	existing := 0
	for _, made := range got.GetTasks() {
		if made.GetExisting() {
			existing++
		}
	}
	if len(got.GetTasks()) == 1 && len(got.GetLeftOut()) == 0 {
		say := "The task is made."
		if existing == 1 {
			say = "There is an open task of this scope already; this is it."
		}
		return shell.Done{To: shell.Path("tasks", got.GetTasks()[0].GetTask().GetTaskId()), Say: say}, nil
	}
	return shell.Done{To: "tasks", Say: fmt.Sprintf("%d tasks are made, %d were there already, %d collections were left out by max_tasks_per_run.",
		len(got.GetTasks())-existing, existing, len(got.GetLeftOut()))}, nil
}

// renamed makes a refusal name the fields as the console's forms do.
func renamed(err error) error {
	if fault.ReasonOf(err) != fault.InvalidArgument {
		return err
	}
	fields := fault.FieldsOf(err)
	if len(fields) == 0 {
		return err
	}
	refusal := fault.New(fault.InvalidArgument, "something is not right yet")
	for _, field := range fields {
		name := field.Name
		switch name {
		case "tenant_id":
			name = "tenant"
		case "collection_id":
			name = "collection"
		}
		refusal = refusal.WithField(name, "%s", field.Message)
	}
	return refusal
}

func (p *pages) cancelForm(ctx context.Context, r *shell.Request) (shell.Form, error) {
	got, err := p.admin.GetTask(ctx, &centerv1.GetTaskRequest{TaskId: r.Value("task")})
	if err != nil {
		return shell.Form{}, err
	}
	t := got.GetTask()
	return shell.Form{
		Title: "Cancel the task", Trail: trailOf(t), Back: shell.Path("tasks", t.GetTaskId()), Button: "Cancel the task", Danger: true,
		Explain: "What was repaired so far stays. The consumer stops at its next word with the center; extra rows are not retired.",
		Facts:   factsOf(t), Fields: []shell.Field{shell.Reason()},
	}, nil
}

func (p *pages) cancel(ctx context.Context, r *shell.Request) (shell.Done, error) {
	_, err := p.admin.CancelTask(ctx, &centerv1.CancelTaskRequest{TaskId: r.Value("task"), Reason: r.Value("reason")})
	return shell.Done{To: shell.Path("tasks", r.Value("task")), Say: "The task is cancelled."}, err
}

// trailOf is what lies above the pages of a task.
func trailOf(t *centerv1.Task) []shell.Link {
	return []shell.Link{{Label: "Tasks", Path: "tasks"}, {Label: "Task " + t.GetTaskId(), Path: shell.Path("tasks", t.GetTaskId())}}
}

func factsOf(t *centerv1.Task) []shell.Fact {
	return []shell.Fact{
		{Label: "Task", Value: t.GetTaskId()},
		{Label: "Consumer", Value: t.GetConsumer()},
		{Label: "Tenant", Value: fmt.Sprint(t.GetTenantId())},
		{Label: "Collection", Value: t.GetCollectionId()},
		{Label: "State", Value: shell.Word(t.GetState())},
	}
}
