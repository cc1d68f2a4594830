package admin_test

import (
	"strings"
	"testing"

	"go.uber.org/zap"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/source"
)

const recordKey = centertest.Key

// delivering is a world with one record, whose source is the same database.
func delivering(t *testing.T) (w *world, woken *int) {
	t.Helper()
	w, woken = setup(t), new(int)
	table, err := dataset.Resolve(t.Context(), w.Pool, dataset.Config{
		Name: "answers", Table: "answers.answer", KeyKind: protocol.KeyKindUUID,
		Columns: dataset.Columns{
			Key: "answer_id", Tenant: "tenant_id", Collection: "form_id", Revision: "revision", Deleted: "deleted",
			SchemaVersion: "version", Sequence: "seq_no", Content: "values",
		},
	}, dataset.Center)
	w.Must(err)
	w.s.Source, err = source.Open(t.Context(), w.Pool, table, zap.NewNop())
	w.Must(err)
	w.s.Delivering, w.s.WakeDelivery = true, func() { *woken++ }
	w.Exec(`INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values") VALUES (7, $1::text::uuid, 'form-1', 2, 5, 3, '{"b": 2.50, "a": "é"}')`, recordKey)
	return w, woken
}

func (w *world) delivery(n int, state, code string) {
	ended := "NULL"
	if state != "PENDING" {
		ended = "now()"
	}
	w.Exec(`INSERT INTO lockstep.delivery (consumer, tenant_id, collection_id, record_key, state, code, attempts, ended_at, updated_at)
		VALUES ($1, 7, 'form-1', int4send($2), $3, $4, 3, `+ended+`, now() - make_interval(mins => $2))`, centertest.Consumer, n, state, code)
}

func TestListFailedDeliveries(t *testing.T) {
	w, _ := delivering(t)
	for n := 1; n <= 5; n++ {
		w.delivery(n, "FAILED", "UNAVAILABLE")
	}
	w.delivery(6, "FAILED", "HASH_CONFLICT")
	w.delivery(7, "PENDING", "")
	w.delivery(8, "DROPPED", "GRANT_REVOKED")
	codes := func(req *centerv1.ListFailedDeliveriesRequest) (out []string, next string) {
		t.Helper()
		got, err := w.s.ListFailedDeliveries(w.eva, req)
		w.Must(err)
		for _, d := range got.GetDeliveries() {
			out = append(out, d.GetKey()+" "+d.GetCode())
		}
		return out, got.GetNextPageToken()
	}
	t.Run("page_by_page", func(t *testing.T) {
		var all []string
		token, pages := "", 0
		for pages == 0 || token != "" {
			var some []string
			some, token = codes(&centerv1.ListFailedDeliveriesRequest{PageSize: 4, PageToken: token})
			all = append(all, some...)
			pages++
		}
		if pages != 2 || len(all) != 6 || all[0] != "00000001 UNAVAILABLE" || all[5] != "00000006 HASH_CONFLICT" {
			t.Errorf("%d pages: %q", pages, all)
		}
	})
	t.Run("filtered", func(t *testing.T) {
		for name, c := range map[string]struct {
			req  *centerv1.ListFailedDeliveriesRequest
			want int
		}{
			"by code":     {&centerv1.ListFailedDeliveriesRequest{Code: "HASH_CONFLICT"}, 1},
			"by state":    {&centerv1.ListFailedDeliveriesRequest{States: []centerv1.DeliveryState{centerv1.DeliveryState_DELIVERY_STATE_PENDING, centerv1.DeliveryState_DELIVERY_STATE_DROPPED}}, 2},
			"by consumer": {&centerv1.ListFailedDeliveriesRequest{Consumer: "svc-other"}, 0},
			"by tenant":   {&centerv1.ListFailedDeliveriesRequest{TenantId: 8}, 0},
			"by form":     {&centerv1.ListFailedDeliveriesRequest{CollectionId: "form-1"}, 6},
		} {
			if got, _ := codes(c.req); len(got) != c.want {
				t.Errorf("%s: %q, want %d", name, got, c.want)
			}
		}
	})
	t.Run("a_token_of_another_filter_is_refused", func(t *testing.T) {
		_, token := codes(&centerv1.ListFailedDeliveriesRequest{PageSize: 1})
		_, err := w.s.ListFailedDeliveries(w.eva, &centerv1.ListFailedDeliveriesRequest{Code: "UNAVAILABLE", PageToken: token})
		wantReason(t, err, fault.CursorInvalid)
	})
	t.Run("what_lies_outside_the_operators_tenants_is_absent", func(t *testing.T) {
		got, err := w.s.ListFailedDeliveries(w.tom, &centerv1.ListFailedDeliveriesRequest{})
		if err != nil || len(got.GetDeliveries()) != 0 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestReplay(t *testing.T) {
	w, woken := delivering(t)
	record := &centerv1.ReplayRecordRequest{Key: recordKey, Consumer: centertest.Consumer, TenantId: 7, CollectionId: "form-1", Reason: "ticket 812"}
	got, err := w.s.ReplayRecord(w.eva, record)
	w.Must(err)
	d := got.GetDelivery()
	if d.GetState() != centerv1.DeliveryState_DELIVERY_STATE_PENDING || d.GetKey() != recordKey || *woken != 1 {
		t.Errorf("%v, woken %d", d, *woken)
	}
	w.Exec(`UPDATE lockstep.delivery SET state = 'FAILED', code = 'QUARANTINED', attempts = 9, ended_at = now()`)
	shown, err := w.s.GetDelivery(w.eva, &centerv1.GetDeliveryRequest{DeliveryId: d.GetDeliveryId()})
	w.Must(err)
	if s := shown.GetDelivery(); s.GetKey() != recordKey || s.GetConsumer() != centertest.Consumer || s.GetCode() != "QUARANTINED" || s.GetAttempts() != 9 || s.GetEndedAt() == nil {
		t.Errorf("%v", s)
	}
	for want, c := range map[fault.Reason]func() error{
		fault.NotFound: func() error {
			_, err := w.s.GetDelivery(w.tom, &centerv1.GetDeliveryRequest{DeliveryId: d.GetDeliveryId()})
			return err
		},
		fault.InvalidArgument: func() error {
			_, err := w.s.GetDelivery(w.eva, &centerv1.GetDeliveryRequest{DeliveryId: "x"})
			return err
		},
	} {
		wantReason(t, c(), want)
	}
	again, err := w.s.ReplayDelivery(w.eva, &centerv1.ReplayDeliveryRequest{DeliveryId: d.GetDeliveryId()})
	w.Must(err)
	if r := again.GetDelivery(); r.GetState() != centerv1.DeliveryState_DELIVERY_STATE_PENDING || r.GetAttempts() != 0 || r.GetDeliveryId() != d.GetDeliveryId() {
		t.Errorf("%v", r)
	}
	if n := w.Int(`SELECT count(*) FROM lockstep.audit WHERE action = 'delivery.replay' AND actor = 'operator/eva' AND object = $1`,
		"record/svc-hall/7/form-1/"+recordKey); n != 2 {
		t.Errorf("%d audit rows", n)
	}
	before := w.Everything()
	_, err = w.s.ReplayRecord(w.tom, record)
	wantReason(t, err, fault.NotFound)
	_, err = w.s.ReplayDelivery(w.tom, &centerv1.ReplayDeliveryRequest{DeliveryId: d.GetDeliveryId()})
	wantReason(t, err, fault.NotFound)
	_, err = w.s.ReplayRecord(w.eva, &centerv1.ReplayRecordRequest{Key: strings.ToUpper("a" + recordKey[1:]), Consumer: centertest.Consumer, TenantId: 7, CollectionId: "form-1"})
	wantReason(t, err, fault.InvalidArgument)
	_, err = w.s.ReplayRecord(w.eva, &centerv1.ReplayRecordRequest{Key: recordKey, Consumer: centertest.Consumer, TenantId: 7, CollectionId: "form-9"})
	wantReason(t, err, fault.GrantRevoked)
	w.s.Delivering = false
	_, err = w.s.ReplayRecord(w.eva, record)
	wantReason(t, err, fault.Unavailable)
	if w.Everything() != before {
		t.Error("a refusal changed something")
	}
}

func TestExplainRecord(t *testing.T) {
	w, _ := delivering(t)
	w.delivery(1, "FAILED", "UNAVAILABLE")
	before := w.Everything()
	req := &centerv1.ExplainRecordRequest{Key: recordKey, TenantId: 7, CollectionId: "form-1"}
	got, err := w.s.ExplainRecord(w.eva, req)
	w.Must(err)
	if !got.GetFound() || got.GetRevision() != 3 || got.GetSchemaVersion() != 2 || got.GetSequence() != 5 || got.GetCanonical() != `{"a":"é","b":2.5}` ||
		len(got.GetContentHash()) != 64 || got.GetRefused() != "" {
		t.Errorf("%v", got)
	}
	if got, err := w.s.ExplainRecord(w.eva, &centerv1.ExplainRecordRequest{Key: recordKey, TenantId: 7, CollectionId: "form-2"}); err != nil || got.GetFound() || !got.GetElsewhere() {
		t.Errorf("%v, %v", got, err)
	}
	_, err = w.s.ExplainRecord(w.tom, req)
	wantReason(t, err, fault.NotFound)
	_, err = w.s.ExplainRecord(t.Context(), req)
	wantReason(t, err, fault.PermissionDenied)
	_, err = w.s.ListFailedDeliveries(w.eva, &centerv1.ListFailedDeliveriesRequest{})
	w.Must(err)
	if w.Everything() != before {
		t.Error("a read wrote something")
	}
	w.Exec(`UPDATE answers.answer SET "values" = (repeat('[', 70) || repeat(']', 70))::jsonb`)
	if got, err := w.s.ExplainRecord(w.eva, req); err != nil || got.GetRefused() == "" || got.GetCanonical() != "" || got.GetContentHash() != "" {
		t.Errorf("%v, %v", got, err)
	}
}
