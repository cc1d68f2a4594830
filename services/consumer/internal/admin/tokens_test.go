package admin_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// listed is a list's answer, whichever it is.
type listed interface{ GetNextPageToken() string }

// TestAPageTokenGoesOnWithItsListOnly: each list's token is refused by the same
// list with another filter, and by every other list.
func TestAPageTokenGoesOnWithItsListOnly(t *testing.T) {
	w := records(t)
	ann := w.as(identity.RoleOperator)
	task, other := w.task(7), w.task(7)
	w.task(8)
	for n := 1; n <= 3; n++ {
		for _, id := range []string{task, other} {
			w.exec(`INSERT INTO lockstep.outcome (tenant_id, task_id, record_key, class, outcome, code, op_id)
				VALUES (7, $1::text::uuid, decode($2, 'hex'), 'STALE', 'QUARANTINED', 'QUARANTINED', gen_random_uuid())`, id, key(n))
		}
	}
	lists := []list{
		of("work", ann, w.server.ListWork, &consumerv1.ListWorkRequest{PageSize: 1},
			&consumerv1.ListWorkRequest{TenantId: 7}, &consumerv1.ListWorkRequest{CollectionId: "form-1"},
			&consumerv1.ListWorkRequest{States: []consumerv1.WorkState{consumerv1.WorkState_WORK_STATE_QUEUED}}),
		of("outcomes", ann, w.server.ListOutcomes, &consumerv1.ListOutcomesRequest{TaskId: task, PageSize: 1},
			&consumerv1.ListOutcomesRequest{TaskId: other}, &consumerv1.ListOutcomesRequest{TaskId: task, Class: "STALE"},
			&consumerv1.ListOutcomesRequest{TaskId: task, Outcome: "QUARANTINED"}),
		of("collections", ann, w.server.ListCollections, &consumerv1.ListCollectionsRequest{PageSize: 1},
			&consumerv1.ListCollectionsRequest{TenantId: 8}, &consumerv1.ListCollectionsRequest{CollectionId: "form-1"}),
		of("retired", ann, w.server.ListRetired, &consumerv1.ListRetiredRequest{TenantId: 7, CollectionId: "form-1", PageSize: 1},
			&consumerv1.ListRetiredRequest{TenantId: 8, CollectionId: "form-1"}, &consumerv1.ListRetiredRequest{TenantId: 7, CollectionId: "form-2"}),
		of("quarantined", ann, w.server.ListQuarantined, &consumerv1.ListQuarantinedRequest{TenantId: 7, PageSize: 1},
			&consumerv1.ListQuarantinedRequest{TenantId: 8}, &consumerv1.ListQuarantinedRequest{TenantId: 7, CollectionId: "form-1"}),
	}
	tokens := map[string]string{}
	for _, l := range lists {
		got, err := l.call("")
		w.must(err)
		if tokens[l.name] = got.GetNextPageToken(); tokens[l.name] == "" {
			t.Fatalf("%s has one page", l.name)
		}
		if _, err := l.call(tokens[l.name]); err != nil {
			t.Errorf("%s does not go on: %v", l.name, err)
		}
	}
	for _, l := range lists {
		for filter, call := range l.others {
			if _, err := call(tokens[l.name]); fault.ReasonOf(err) != fault.CursorInvalid || len(fault.FieldsOf(err)) != 1 {
				t.Errorf("%s goes on with %s: %v", l.name, filter, err)
			}
		}
		for from, token := range tokens {
			if _, err := l.call(token); from != l.name && fault.ReasonOf(err) != fault.CursorInvalid {
				t.Errorf("%s goes on with a token of %s: %v", l.name, from, err)
			}
		}
	}
	if _, err := w.server.ListEvidence(ann, &consumerv1.ListEvidenceRequest{TaskId: task, PageToken: tokens["outcomes"]}); fault.ReasonOf(err) != fault.CursorInvalid {
		t.Errorf("evidence goes on with a token of outcomes: %v", err)
	}
}

// list asks one list with a token, as its first page was asked for and as others are.
type list struct {
	name   string
	call   func(token string) (listed, error)
	others map[string]func(token string) (listed, error)
}

func of[Q proto.Message, A listed](name string, ctx context.Context, ask func(context.Context, Q) (A, error), first Q, others ...Q) list {
	call := func(request Q) func(token string) (listed, error) {
		return func(token string) (listed, error) {
			with := proto.CloneOf(request)
			m := with.ProtoReflect()
			m.Set(m.Descriptor().Fields().ByName("page_token"), protoreflect.ValueOfString(token))
			return ask(ctx, with)
		}
	}
	l := list{name: name, call: call(first), others: map[string]func(token string) (listed, error){}}
	for _, other := range others {
		l.others[fmt.Sprint(other)] = call(other)
	}
	return l
}
