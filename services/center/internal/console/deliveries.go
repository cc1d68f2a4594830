package console

import (
	"context"
	"fmt"
	"slices"

	"lockstep.dev/pkg/fault"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	shell "lockstep.dev/services/internal/console"
)

var deliveryStates = []shell.Option{
	{Value: "", Label: "FAILED"},
	{Value: "PENDING", Label: "PENDING"},
	{Value: "SENDING", Label: "SENDING"},
	{Value: "DONE", Label: "DONE"},
	{Value: "DROPPED", Label: "DROPPED"},
}

type deliveries struct {
	Who        shell.Who
	Filter     shell.Filter
	Failed     bool // only what was given up
	Deliveries []*centerv1.Delivery
	Pager      shell.Pager
}

func (p *pages) deliveries(ctx context.Context, r *shell.Request) (shell.View, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.View{}, err
	}
	req := &centerv1.ListFailedDeliveriesRequest{
		Consumer: r.Value("consumer"), TenantId: tenant, CollectionId: r.Value("collection"), Code: r.Value("code"), PageToken: r.Value(shell.PageToken),
	}
	if choice := r.Value("state"); choice != "" {
		number, ok := centerv1.DeliveryState_value["DELIVERY_STATE_"+choice]
		if !ok || number == 0 {
			return shell.View{}, fault.New(fault.InvalidArgument, "there is no such state").WithField("state", "is a delivery's state")
		}
		req.States = []centerv1.DeliveryState{centerv1.DeliveryState(number)}
	}
	got, err := p.admin.ListFailedDeliveries(ctx, req)
	if err != nil {
		return shell.View{}, err
	}
	return shell.View{Title: "Deliveries", Data: deliveries{
		Who:    r.Who,
		Filter: scopeFields(r, shell.Field{Name: "code", Label: "Code"}, shell.Field{Name: "state", Label: "State", Kind: shell.Choice, Options: deliveryStates}),
		Failed: len(req.GetStates()) == 0, Deliveries: got.GetDeliveries(), Pager: r.Pager(got.GetNextPageToken()),
	}}, nil
}

// replayForm shows what became of the record so far.
func (p *pages) replayForm(ctx context.Context, r *shell.Request) (shell.Form, error) {
	got, err := p.admin.GetDelivery(ctx, &centerv1.GetDeliveryRequest{DeliveryId: r.Value("delivery")})
	if err != nil {
		return shell.Form{}, err
	}
	d := got.GetDelivery()
	facts := []shell.Fact{
		{Label: "Record", Value: d.GetKey()},
		{Label: "Consumer", Value: d.GetConsumer()},
		{Label: "Tenant", Value: fmt.Sprint(d.GetTenantId())},
		{Label: "Collection", Value: d.GetCollectionId()},
		{Label: "State", Value: shell.Word(d.GetState())},
		{Label: "Code", Value: d.GetCode()},
		{Label: "Outcome", Value: d.GetOutcome()},
		{Label: "Attempts", Value: fmt.Sprint(d.GetAttempts())},
		{Label: "Queued", Value: r.Ago(d.GetCreatedAt())},
		{Label: "Last moved", Value: r.Ago(d.GetUpdatedAt())},
		{Label: "Delivery", Value: d.GetDeliveryId()},
	}
	return shell.Form{
		Title: "Send the record again", Trail: []shell.Link{{Label: "Deliveries", Path: "deliveries"}}, Back: "deliveries", Button: "Send again",
		Explain: "The record's current value is sent, if the grant still allows it. A consumer that has it already says so and changes nothing.",
		Facts:   slices.DeleteFunc(facts, func(f shell.Fact) bool { return f.Value == "" }), Fields: []shell.Field{shell.Reason()},
	}, nil
}

func (p *pages) replay(ctx context.Context, r *shell.Request) (shell.Done, error) {
	got, err := p.admin.ReplayDelivery(ctx, &centerv1.ReplayDeliveryRequest{DeliveryId: r.Value("delivery"), Reason: r.Value("reason")})
	return shell.Done{To: "deliveries", Say: sent(got.GetDelivery())}, err
}

func sent(d *centerv1.Delivery) string {
	return fmt.Sprintf("The record %s goes to %s again.", d.GetKey(), d.GetConsumer())
}

type recordPage struct {
	Who        shell.Who
	Filter     shell.Filter
	Asked      bool
	Key        string
	Tenant     int64
	Collection string
	Record     *centerv1.ExplainRecordResponse
}

func (p *pages) record(ctx context.Context, r *shell.Request) (shell.View, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.View{}, err
	}
	page := recordPage{
		Who: r.Who, Key: r.Value("key"), Tenant: tenant, Collection: r.Value("collection"),
		Filter: r.Filter(shell.Field{Name: "key", Label: "Key", Help: "32 lower-case hex digits"},
			shell.Field{Name: "tenant", Label: "Tenant", Kind: shell.Number}, shell.Field{Name: "collection", Label: "Collection"}),
	}
	page.Filter.Button = "Show"
	view := shell.View{Title: "Records"}
	if page.Key != "" {
		page.Asked = true
		page.Record, err = p.admin.ExplainRecord(ctx, &centerv1.ExplainRecordRequest{Key: page.Key, TenantId: tenant, CollectionId: page.Collection})
		view.Title, view.Trail = "Record "+page.Key, []shell.Link{{Label: "Records", Path: "records"}}
	}
	view.Data = page
	return view, err
}

func (p *pages) sendForm(ctx context.Context, r *shell.Request) (shell.Form, error) {
	consumers, err := p.consumers(ctx)
	if err != nil {
		return shell.Form{}, err
	}
	return shell.Form{
		Title: "Send a record", Trail: []shell.Link{{Label: "Records", Path: "records"}}, Back: "records", Button: "Send",
		Explain: "The record's current value is sent to the consumer by ordinary delivery, if a grant allows it.",
		Fields: []shell.Field{
			consumers,
			{Name: "key", Label: "Key", Required: true, Help: "32 lower-case hex digits"},
			{Name: "tenant", Label: "Tenant", Kind: shell.Number, Required: true},
			{Name: "collection", Label: "Collection", Required: true},
			shell.Reason(),
		},
	}, nil
}

func (p *pages) send(ctx context.Context, r *shell.Request) (shell.Done, error) {
	tenant, err := r.Number("tenant")
	if err != nil {
		return shell.Done{}, err
	}
	got, err := p.admin.ReplayRecord(ctx, &centerv1.ReplayRecordRequest{
		Key: r.Value("key"), Consumer: r.Value("consumer"), TenantId: tenant, CollectionId: r.Value("collection"), Reason: r.Value("reason"),
	})
	return shell.Done{To: "deliveries?state=" + shell.Word(got.GetDelivery().GetState()), Say: sent(got.GetDelivery())}, renamed(err)
}
