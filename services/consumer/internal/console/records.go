package console

import (
	"context"

	"lockstep.dev/pkg/fault"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	shell "lockstep.dev/services/internal/console"
)

// place is where a page of records looks.
type place struct {
	tenant     int64
	collection string
}

func placeOf(r *shell.Request) (place, error) {
	tenant, err := r.Number("tenant")
	return place{tenant: tenant, collection: r.Value("collection")}, err
}

// choice is what there is to look at while nobody has chosen.
type choice struct {
	Collections []collection
	Pager       shell.Pager
}

func (p *pages) choice(ctx context.Context, r *shell.Request, at place) (*choice, error) {
	listed, err := p.admin.ListCollections(ctx, &consumerv1.ListCollectionsRequest{
		TenantId: at.tenant, CollectionId: at.collection, PageSize: pageRows, PageToken: r.Value(shell.PageToken),
	})
	if err != nil {
		return nil, err
	}
	return &choice{Collections: collectionsOf(listed.GetCollections()), Pager: r.Pager(listed.GetNextPageToken())}, nil
}

type quarantine struct {
	Who     shell.Who
	Filter  shell.Filter
	Choice  *choice // nil once a tenant is chosen
	Records []quarantined
	Pager   shell.Pager
}

type quarantined struct {
	outcome

	TaskID, Collection string
	Retry              string
}

// quarantine shows what tasks could not repair.
func (p *pages) quarantine(ctx context.Context, r *shell.Request) (shell.View, error) {
	at, err := placeOf(r)
	if err != nil {
		return shell.View{}, err
	}
	page := quarantine{Who: r.Who, Filter: r.Filter(tenantField(), collectionField())}
	view := shell.View{Title: "Quarantine"}
	if at.tenant == 0 {
		page.Choice, err = p.choice(ctx, r, at)
		view.Data = page
		return view, err
	}
	listed, err := p.admin.ListQuarantined(ctx, &consumerv1.ListQuarantinedRequest{
		TenantId: at.tenant, CollectionId: at.collection, PageSize: pageRows, PageToken: r.Value(shell.PageToken),
	})
	if err != nil {
		return shell.View{}, err
	}
	for _, record := range listed.GetRecords() {
		about := []string{"tenant", number(at.tenant), "collection", record.GetCollectionId(), "key", record.GetOutcome().GetKey()}
		page.Records = append(page.Records, quarantined{
			outcome: outcome{Outcome: record.GetOutcome(), Record: shell.Href(with("record", about...))},
			TaskID:  record.GetTaskId(), Collection: record.GetCollectionId(), Retry: shell.Href(with("quarantine/retry", about...)),
		})
	}
	page.Pager, view.Data = r.Pager(listed.GetNextPageToken()), page
	view.Data = page
	return view, nil
}

// aboutRecord is what an action's form says of its record.
func aboutRecord(r *shell.Request, list string, form shell.Form) (shell.Form, error) {
	at, err := placeOf(r)
	if err != nil {
		return shell.Form{}, err
	}
	if at.tenant == 0 || at.collection == "" || r.Value("key") == "" {
		return shell.Form{}, fault.New(fault.InvalidArgument, "no record is named")
	}
	form.Facts = []shell.Fact{
		{Label: "Key", Value: r.Value("key")}, {Label: "Tenant", Value: number(at.tenant)}, {Label: "Collection", Value: at.collection},
	}
	form.Fields = []shell.Field{shell.Reason()}
	form.Back = with(list, "tenant", number(at.tenant), "collection", at.collection)
	return form, nil
}

func (p *pages) retryForm(_ context.Context, r *shell.Request) (shell.Form, error) {
	return aboutRecord(r, "quarantine", shell.Form{
		Title: "Retry a quarantined record", Button: "Take it off the list", Trail: []shell.Link{{Label: "Quarantine", Path: "quarantine"}},
		Explain: "The record leaves the list until a task finds it again. Every task tries every difference; a task of the scope RECORD, made at the center, tries this one now.",
	})
}

func (p *pages) retry(ctx context.Context, r *shell.Request) (shell.Done, error) {
	at, err := placeOf(r)
	if err != nil {
		return shell.Done{}, err
	}
	_, err = p.admin.RetryQuarantined(ctx, &consumerv1.RetryQuarantinedRequest{
		Key: r.Value("key"), TenantId: at.tenant, CollectionId: at.collection, Reason: r.Value("reason"),
	})
	return shell.Done{To: with("quarantine", "tenant", number(at.tenant), "collection", at.collection), Say: "The record is off the list until a task finds it again."}, err
}

type retired struct {
	Who    shell.Who
	Filter shell.Filter
	Choice *choice // nil once a collection is chosen
	Rows   []retiredRow
	Pager  shell.Pager
}

type retiredRow struct {
	*consumerv1.RetiredRow

	Record, Restore string
}

// retired shows what was taken out of a collection on the center's signed word.
func (p *pages) retired(ctx context.Context, r *shell.Request) (shell.View, error) {
	at, err := placeOf(r)
	if err != nil {
		return shell.View{}, err
	}
	page := retired{Who: r.Who, Filter: r.Filter(tenantField(), collectionField())}
	view := shell.View{Title: "Retired rows"}
	if at.tenant == 0 || at.collection == "" {
		page.Choice, err = p.choice(ctx, r, at)
		view.Data = page
		return view, err
	}
	listed, err := p.admin.ListRetired(ctx, &consumerv1.ListRetiredRequest{
		TenantId: at.tenant, CollectionId: at.collection, PageSize: pageRows, PageToken: r.Value(shell.PageToken),
	})
	if err != nil {
		return shell.View{}, err
	}
	for _, row := range listed.GetRows() {
		about := []string{"tenant", number(at.tenant), "collection", at.collection, "key", row.GetKey()}
		page.Rows = append(page.Rows, retiredRow{
			RetiredRow: row, Record: shell.Href(with("record", about...)), Restore: shell.Href(with("retired/restore", about...)),
		})
	}
	page.Pager = r.Pager(listed.GetNextPageToken())
	view.Data = page
	return view, nil
}

func (p *pages) restoreForm(_ context.Context, r *shell.Request) (shell.Form, error) {
	return aboutRecord(r, "retired", shell.Form{
		Title: "Restore a retired row", Button: "Restore it", Trail: []shell.Link{{Label: "Retired rows", Path: "retired"}},
		Explain: "The row comes back as it was and is held: tasks report it from then on and never retire it again.",
	})
}

func (p *pages) restore(ctx context.Context, r *shell.Request) (shell.Done, error) {
	at, err := placeOf(r)
	if err != nil {
		return shell.Done{}, err
	}
	_, err = p.admin.RestoreRetired(ctx, &consumerv1.RestoreRetiredRequest{
		Key: r.Value("key"), TenantId: at.tenant, CollectionId: at.collection, Reason: r.Value("reason"),
	})
	return shell.Done{To: with("retired", "tenant", number(at.tenant), "collection", at.collection), Say: "The row is back, and held."}, err
}

type record struct {
	Who    shell.Who
	Filter shell.Filter
	Asked  bool
	// Elsewhere: the key belongs to another collection than the one asked for.
	Elsewhere bool
	// Differs: the stored content does not give the hash stored beside it.
	Differs bool
	*consumerv1.ExplainRecordResponse

	Restore string // "" where there is nothing to restore
}

// record explains one row, with its content.
func (p *pages) record(ctx context.Context, r *shell.Request) (shell.View, error) {
	at, err := placeOf(r)
	if err != nil {
		return shell.View{}, err
	}
	tenant, inside := tenantField(), collectionField()
	tenant.Required, inside.Required = true, true
	page := record{Who: r.Who, Filter: r.Filter(tenant, inside, shell.Field{Name: "key", Label: "Key", Required: true})}
	page.Filter.Button = "Explain"
	view := shell.View{Title: "Record"}
	if at.tenant == 0 || at.collection == "" || r.Value("key") == "" {
		view.Data = page
		return view, nil
	}
	got, err := p.admin.ExplainRecord(ctx, &consumerv1.ExplainRecordRequest{Key: r.Value("key"), TenantId: at.tenant, CollectionId: at.collection})
	if err != nil {
		return shell.View{}, err
	}
	page.Asked, page.ExplainRecordResponse = true, got
	page.Elsewhere = got.GetFound() && got.GetCollectionId() != at.collection
	page.Differs = got.GetFound() && got.GetRefused() == "" && got.GetContentHash() != got.GetStoredHash()
	if got.GetRetiredAt() != nil {
		page.Restore = shell.Href(with("retired/restore", "tenant", number(at.tenant), "collection", got.GetCollectionId(), "key", r.Value("key")))
	}
	view.Data = page
	return view, nil
}
