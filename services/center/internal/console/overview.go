package console

import (
	"context"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	shell "lockstep.dev/services/internal/console"
)

// open are the states of a task that has not ended.
var open = []evidencev1.TaskState{
	evidencev1.TaskState_TASK_STATE_RUNNING, evidencev1.TaskState_TASK_STATE_DISPATCHED, evidencev1.TaskState_TASK_STATE_QUEUED,
}

const (
	mostUnderWay = 20 // on the overview; the tasks' own page has the rest
	listPage     = 100
)

// scopeFields are the filters that most lists have.
func scopeFields(r *shell.Request, more ...shell.Field) shell.Filter {
	return r.Filter(append([]shell.Field{
		{Name: "consumer", Label: "Consumer"}, {Name: "tenant", Label: "Tenant", Kind: shell.Number}, {Name: "collection", Label: "Collection"},
	}, more...)...)
}

type overview struct {
	Who         shell.Who
	Filter      shell.Filter
	Collections []*centerv1.CollectionStatus
	UnderWay    []*centerv1.Task
	More        bool // tasks than are shown
	Pager       shell.Pager
}

func (p *pages) overview(ctx context.Context, r *shell.Request) (shell.View, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.View{}, err
	}
	collections, err := p.admin.ListCollections(ctx, &centerv1.ListCollectionsRequest{
		Consumer: r.Value("consumer"), TenantId: tenant, CollectionId: r.Value("collection"), PageSize: listPage, PageToken: r.Value(shell.PageToken),
	})
	if err != nil {
		return shell.View{}, err
	}
	tasks, err := p.admin.ListTasks(ctx, &centerv1.ListTasksRequest{
		Consumer: r.Value("consumer"), TenantId: tenant, CollectionId: r.Value("collection"), States: open, PageSize: mostUnderWay,
	})
	if err != nil {
		return shell.View{}, err
	}
	return shell.View{Title: "Overview", Data: overview{
		Who: r.Who, Filter: scopeFields(r), Collections: collections.GetCollections(), Pager: r.Pager(collections.GetNextPageToken()),
		UnderWay: tasks.GetTasks(), More: tasks.GetNextPageToken() != "",
	}}, nil
}
