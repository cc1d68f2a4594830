package console

import (
	"context"
	"fmt"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	shell "lockstep.dev/services/internal/console"
)

type grants struct {
	Who    shell.Who
	Filter shell.Filter
	Grants []*centerv1.Grant
	Pager  shell.Pager
}

func (p *pages) grants(ctx context.Context, r *shell.Request) (shell.View, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.View{}, err
	}
	got, err := p.admin.ListGrants(ctx, &centerv1.ListGrantsRequest{
		Consumer: r.Value("consumer"), TenantId: tenant, PageSize: listPage, PageToken: r.Value(shell.PageToken),
	})
	if err != nil {
		return shell.View{}, err
	}
	return shell.View{Title: "Grants", Data: grants{
		Who:    r.Who,
		Filter: r.Filter(shell.Field{Name: "consumer", Label: "Consumer"}, shell.Field{Name: "tenant", Label: "Tenant", Kind: shell.Number}),
		Grants: got.GetGrants(), Pager: r.Pager(got.GetNextPageToken()),
	}}, nil
}

// grantForm begins with what a grant of the page has, given by the link's query.
func (p *pages) grantForm(_ context.Context, _ *shell.Request) (shell.Form, error) {
	return shell.Form{
		Title: "Set a grant", Trail: []shell.Link{{Label: "Grants", Path: "grants"}}, Back: "grants", Button: "Set the grant", Danger: true,
		Explain: "Taking something away raises the grant's epoch and cancels its open tasks: what was signed under the epoch before is refused from then on.",
		Fields: []shell.Field{
			{Name: "consumer", Label: "Consumer", Required: true},
			{Name: "tenant", Label: "Tenant", Kind: shell.Number, Required: true},
			{Name: "collection", Label: "Collection", Required: true},
			{Name: "enabled", Label: "In force", Kind: shell.Check},
			{Name: "read", Label: "May read snapshots, proofs and manifests", Kind: shell.Check},
			{Name: "subscribe", Label: "May be sent tasks and changes", Kind: shell.Check},
		},
	}, nil
}

func (p *pages) setGrant(ctx context.Context, r *shell.Request) (shell.Done, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.Done{}, err
	}
	got, err := p.admin.SetGrant(ctx, &centerv1.SetGrantRequest{
		Consumer: r.Value("consumer"), TenantId: tenant, CollectionId: r.Value("collection"),
		Enabled: r.Checked("enabled"), ReadAllowed: r.Checked("read"), SubscribeAllowed: r.Checked("subscribe"),
	})
	return shell.Done{To: "grants", Say: fmt.Sprintf("The grant of %s is set, epoch %d; open tasks cancelled: %d.",
		got.GetGrant().GetCollectionId(), got.GetGrant().GetGrantEpoch(), got.GetCancelledTasks())}, renamed(err)
}

func (p *pages) targets(ctx context.Context, _ *shell.Request) (shell.View, error) {
	got, err := p.admin.ListTargets(ctx, &centerv1.ListTargetsRequest{})
	return shell.View{Title: "Consumers", Data: got.GetTargets()}, err
}

type tenantsPage struct {
	Who      shell.Who
	Consumer string
	Tenants  []int64
}

func (p *pages) tenants(ctx context.Context, r *shell.Request) (shell.View, error) {
	consumer := r.Value("consumer")
	got, err := p.admin.ListTenants(ctx, &centerv1.ListTenantsRequest{Consumer: consumer})
	return shell.View{
		Title: "Tenants of " + consumer, Trail: []shell.Link{{Label: "Consumers", Path: "targets"}},
		Data: tenantsPage{Who: r.Who, Consumer: consumer, Tenants: got.GetTenantIds()},
	}, err
}

// above a form about a consumer's tenants.
func above(consumer string) []shell.Link {
	return []shell.Link{{Label: "Consumers", Path: "targets"}, {Label: "Tenants of " + consumer, Path: shell.Path("targets", consumer)}}
}

func (p *pages) addTenantForm(_ context.Context, r *shell.Request) (shell.Form, error) {
	consumer := r.Value("consumer")
	return shell.Form{
		Title: "Add a tenant", Trail: above(consumer), Back: shell.Path("targets", consumer), Button: "Add the tenant",
		Explain: "The consumer may then be granted collections of the tenant. It is granted nothing by this alone.",
		Facts:   []shell.Fact{{Label: "Consumer", Value: consumer}},
		Fields:  []shell.Field{{Name: "tenant", Label: "Tenant", Kind: shell.Number, Required: true}},
	}, nil
}

func (p *pages) addTenant(ctx context.Context, r *shell.Request) (shell.Done, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.Done{}, err
	}
	_, err = p.admin.AddTenant(ctx, &centerv1.AddTenantRequest{Consumer: r.Value("consumer"), TenantId: tenant})
	return shell.Done{To: shell.Path("targets", r.Value("consumer")), Say: fmt.Sprintf("Tenant %d is added.", tenant)}, renamed(err)
}

func (p *pages) removeTenantForm(_ context.Context, r *shell.Request) (shell.Form, error) {
	consumer := r.Value("consumer")
	return shell.Form{
		Title: "Remove a tenant", Trail: above(consumer), Back: shell.Path("targets", consumer), Button: "Remove the tenant", Danger: true,
		Explain: "The epochs of all its grants rise, their open tasks are cancelled, and nothing of the tenant is sent to the consumer any more. What the consumer has stays.",
		Facts:   []shell.Fact{{Label: "Consumer", Value: consumer}, {Label: "Tenant", Value: r.Value("tenant")}},
	}, nil
}

func (p *pages) removeTenant(ctx context.Context, r *shell.Request) (shell.Done, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.Done{}, err
	}
	got, err := p.admin.RemoveTenant(ctx, &centerv1.RemoveTenantRequest{Consumer: r.Value("consumer"), TenantId: tenant})
	return shell.Done{
		To:  shell.Path("targets", r.Value("consumer")),
		Say: fmt.Sprintf("Tenant %d is removed; open tasks cancelled: %d.", tenant, got.GetCancelledTasks()),
	}, renamed(err)
}
