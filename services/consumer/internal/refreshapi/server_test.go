package refreshapi

import (
	"context"
	"strings"
	"testing"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

func TestWhatWritesNeedsAnOperator(t *testing.T) {
	viewer, operator := identity.OperatorWith(identity.RoleViewer), identity.OperatorWith(identity.RoleOperator)
	rules := Rules()
	for _, method := range consumerv1.RefreshService_ServiceDesc.Methods {
		want := operator
		if strings.HasPrefix(method.MethodName, "Get") || strings.HasPrefix(method.MethodName, "List") || method.MethodName == "StationSummary" {
			want = viewer
		}
		if got := rules["/"+consumerv1.RefreshService_ServiceDesc.ServiceName+"/"+method.MethodName]; got != want {
			t.Errorf("%s: %+v, want %+v", method.MethodName, got, want)
		}
	}
	if rules[consumerv1.RefreshService_ExportBills_FullMethodName] != viewer || len(rules) != len(consumerv1.RefreshService_ServiceDesc.Methods)+1 {
		t.Error("the export, or a rule too many")
	}
}

func TestAnOperatorOfSomeTenantsSeesNothing(t *testing.T) {
	s := &Server{}
	for name, ctx := range map[string]context.Context{
		"of_one_tenant": identity.WithOperator(t.Context(), identity.Operator{ID: "bob", Role: identity.RoleAdmin, Tenants: []int64{7}}),
		"nobody":        t.Context(),
	} {
		for call, err := range map[string]error{
			"list":   fails(s.ListTasks(ctx, &consumerv1.ListTasksRequest{})),
			"show":   fails(s.GetTask(ctx, &consumerv1.GetTaskRequest{})),
			"scopes": fails(s.ListScopes(ctx, &consumerv1.ListScopesRequest{})),
			"submit": fails(s.Submit(ctx, &consumerv1.SubmitRequest{})),
			"now":    fails(s.RefreshNow(ctx, &consumerv1.RefreshNowRequest{})),
			"run":    fails(s.Run(ctx, &consumerv1.RunRequest{})),
			"retry":  fails(s.Retry(ctx, &consumerv1.RetryRequest{})),
			"bills":  fails(s.ListBills(ctx, &consumerv1.ListBillsRequest{})),
			"score":  fails(s.GetScore(ctx, &consumerv1.GetScoreRequest{})),
		} {
			if fault.ReasonOf(err) != fault.PermissionDenied {
				t.Errorf("%s, %s: %v, want PERMISSION_DENIED", name, call, err)
			}
		}
	}
}

func TestProjectionsThatAreNotKeptAreNotFound(t *testing.T) {
	s := &Server{}
	ctx := identity.WithOperator(t.Context(), identity.Operator{ID: "ann", Role: identity.RoleViewer})
	for call, err := range map[string]error{
		"bills":    fails(s.ListBills(ctx, &consumerv1.ListBillsRequest{})),
		"stations": fails(s.StationSummary(ctx, &consumerv1.StationSummaryRequest{})),
		"score":    fails(s.GetScore(ctx, &consumerv1.GetScoreRequest{})),
	} {
		if fault.ReasonOf(err) != fault.NotFound {
			t.Errorf("%s: %v, want NOT_FOUND", call, err)
		}
	}
}

func fails[A any](_ A, err error) error { return err }
