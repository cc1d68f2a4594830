package console

import (
	"context"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	shell "lockstep.dev/services/internal/console"
)

// maxMoving is how many running tasks the overview shows; the list of work has all.
const maxMoving = 10

type overview struct {
	Filter      shell.Filter
	Moving      []*consumerv1.Work
	More        bool
	Collections []collection
	Pager       shell.Pager
}

// collection is a line of the overview, with where it leads.
type collection struct {
	*consumerv1.CollectionStatus

	Work, Quarantine, Retired string
}

func collectionsOf(statuses []*consumerv1.CollectionStatus) []collection {
	lines := make([]collection, len(statuses))
	for i, status := range statuses {
		tenant := number(status.GetTenantId())
		lines[i] = collection{
			CollectionStatus: status,
			Work:             shell.Href(with("work", "tenant", tenant, "collection", status.GetCollectionId())),
			Quarantine:       shell.Href(with("quarantine", "tenant", tenant, "collection", status.GetCollectionId())),
			Retired:          shell.Href(with("retired", "tenant", tenant, "collection", status.GetCollectionId())),
		}
	}
	return lines
}

// overview shows what moves, and how every collection stands.
func (p *pages) overview(ctx context.Context, r *shell.Request) (shell.View, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.View{}, err
	}
	moving, err := p.admin.ListWork(ctx, &consumerv1.ListWorkRequest{
		TenantId: tenant, CollectionId: r.Value("collection"), PageSize: maxMoving,
		States: []consumerv1.WorkState{consumerv1.WorkState_WORK_STATE_RUNNING, consumerv1.WorkState_WORK_STATE_REPORTING},
	})
	if err != nil {
		return shell.View{}, err
	}
	listed, err := p.admin.ListCollections(ctx, &consumerv1.ListCollectionsRequest{
		TenantId: tenant, CollectionId: r.Value("collection"), PageSize: pageRows, PageToken: r.Value(shell.PageToken),
	})
	if err != nil {
		return shell.View{}, err
	}
	return shell.View{Title: "Overview", Data: overview{
		Filter: r.Filter(tenantField(), collectionField()), Moving: moving.GetWork(), More: moving.GetNextPageToken() != "",
		Collections: collectionsOf(listed.GetCollections()), Pager: r.Pager(listed.GetNextPageToken()),
	}}, nil
}
