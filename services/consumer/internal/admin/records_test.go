package admin_test

import (
	"context"
	"fmt"
	"testing"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/projection"
)

var answers = dataset.Config{
	Name: "answers", Table: "hall.answer_projection", KeyKind: protocol.KeyKindUUID,
	Columns: dataset.Columns{
		Key: "answer_id", Tenant: "tenant_id", Collection: "form_id", Revision: "revision", Deleted: "deleted",
		SchemaVersion: "form_version", Sequence: "seq_no", Content: "values", ContentHash: "content_hash",
		ProjectionVersion: "projection_version", CreateTime: "created_at", Retired: "retired_at",
		RetireHold: "retire_hold", LastEventID: "last_event_id", ConflictDetail: "conflict_detail", ProofID: "proof_id",
	},
}

func key(n int) string { return fmt.Sprintf("%032x", n) }

// records is a world with rows 1 and 2 live and rows 3 to 7 retired at a floor.
func records(t *testing.T) *world {
	t.Helper()
	w := setup(t)
	table, err := dataset.Resolve(t.Context(), w.pool, answers, dataset.Consumer)
	w.must(err)
	w.server.Projection = projection.New(w.pool, w.pool, table)
	w.exec(`INSERT INTO hall.answer_projection (tenant_id, answer_id, form_id, revision, content_hash, "values", retired_at, proof_id, biz_ext)
		SELECT 7, lpad(to_hex(n), 32, '0')::uuid, 'form-1', n, sha256(n::text::bytea), '{"b": 2.50, "a": 1}', CASE WHEN n > 2 THEN now() END, 'proof-' || n, '{"mine": 1}'
		FROM generate_series(1, 7) n`)
	w.exec(`INSERT INTO lockstep.high_water SELECT 7, 'form-1', decode(lpad(to_hex(n), 32, '0'), 'hex'), 1, n + 10, true FROM generate_series(3, 7) n`)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), sql, args...)
	w.must(err)
}

func (w *world) text(sql string, args ...any) (out string) {
	w.t.Helper()
	w.must(w.pool.QueryRow(w.t.Context(), sql, args...).Scan(&out))
	return out
}

// everything digests every row of Lockstep's tables and of the host's.
func (w *world) everything() (out string) {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables
		WHERE table_schema IN ('lockstep', 'hall') ORDER BY 1`)
	w.must(err)
	var tables []string
	for rows.Next() {
		var name string
		w.must(rows.Scan(&name))
		tables = append(tables, name)
	}
	w.must(rows.Err())
	for _, table := range tables {
		out += table + w.text(`SELECT coalesce(md5(string_agg(t::text, '' ORDER BY t::text)), '') FROM `+table+` t`) + "\n"
	}
	return out
}

func wantReason(t *testing.T, err error, want fault.Reason) {
	t.Helper()
	if got := fault.ReasonOf(err); got != want {
		t.Errorf("refused with %q (%v), want %s", got, err, want)
	}
}

func TestRetired(t *testing.T) {
	w := records(t)
	ann := w.as(identity.RoleOperator)
	var got []string
	token, pages := "", 0
	for pages == 0 || token != "" {
		list, err := w.server.ListRetired(ann, &consumerv1.ListRetiredRequest{TenantId: 7, CollectionId: "form-1", PageSize: 3, PageToken: token})
		w.must(err)
		for _, row := range list.GetRows() {
			got = append(got, fmt.Sprintf("%s %d %s %d", row.GetKey()[31:], row.GetRevision(), row.GetProofId(), row.GetFloor().GetRevision()))
		}
		token = list.GetNextPageToken()
		pages++
	}
	if want := "[3 3 proof-3 13 4 4 proof-4 14 5 5 proof-5 15 6 6 proof-6 16 7 7 proof-7 17]"; fmt.Sprint(got) != want || pages != 2 {
		t.Errorf("%d pages: %v", pages, got)
	}
	restore := func(ctx context.Context, n int, collection string) error {
		_, err := w.server.RestoreRetired(ctx, &consumerv1.RestoreRetiredRequest{Key: key(n), TenantId: 7, CollectionId: collection, Reason: "wrong form emptied"})
		return err
	}
	w.must(restore(ann, 4, "form-1"))
	if row := w.text(`SELECT format('%s %s %s', retired_at IS NULL, retire_hold, biz_ext) FROM hall.answer_projection WHERE answer_id = $1::text::uuid`, key(4)); row != `t t {"mine": 1}` {
		t.Error(row)
	}
	if note := w.text(`SELECT string_agg(concat_ws(' ', actor, action, object, reason), ';') FROM lockstep.audit`); note != "operator/ann restore record "+key(4)+" of form-1 wrong form emptied" {
		t.Error(note)
	}
	before := w.everything()
	wantReason(t, restore(ann, 4, "form-1"), fault.NotFound)
	wantReason(t, restore(ann, 5, "form-2"), fault.NotFound)
	wantReason(t, restore(w.as(identity.RoleAdmin, 9), 5, "form-1"), fault.NotFound)
	wantReason(t, restore(ann, 5, ""), fault.InvalidArgument)
	for code, want := range map[string]fault.Reason{"P0001": fault.Quarantined, "23514": fault.Quarantined, "55P03": fault.Unavailable} {
		w.exec(`CREATE OR REPLACE FUNCTION hall.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '` + code + `'; END$$`)
		w.exec(`CREATE OR REPLACE TRIGGER refuse BEFORE UPDATE ON hall.answer_projection FOR EACH ROW EXECUTE FUNCTION hall.refuse()`)
		wantReason(t, restore(ann, 5, "form-1"), want)
	}
	if w.everything() != before {
		t.Error("a refusal changed something")
	}
}

func TestQuarantined(t *testing.T) {
	w := records(t)
	ann := w.as(identity.RoleOperator)
	first := w.task(7)
	quarantine := func(task string, n int, outcome string) {
		w.exec(`INSERT INTO lockstep.outcome (tenant_id, task_id, record_key, class, outcome, code, op_id)
			VALUES (7, $1::text::uuid, decode($2, 'hex'), 'STALE', $3, 'QUARANTINED', gen_random_uuid())`, task, key(n), outcome)
	}
	for n := 1; n <= 3; n++ {
		quarantine(first, n, "QUARANTINED")
	}
	list := func(ctx context.Context) (got string) {
		t.Helper()
		token := ""
		for pages := 0; pages == 0 || token != ""; pages++ {
			list, err := w.server.ListQuarantined(ctx, &consumerv1.ListQuarantinedRequest{TenantId: 7, CollectionId: "form-1", PageSize: 2, PageToken: token})
			w.must(err)
			for _, r := range list.GetRecords() {
				got += r.GetOutcome().GetKey()[31:] + " "
			}
			token = list.GetNextPageToken()
		}
		return got
	}
	if got := list(ann); got != "1 2 3 " {
		t.Errorf("listed %q", got)
	}
	ledger := w.text(`SELECT string_agg(format('%s %s', outcome, updated_at), ';' ORDER BY record_key) FROM lockstep.outcome`)
	retry := &consumerv1.RetryQuarantinedRequest{Key: key(2), TenantId: 7, CollectionId: "form-1", Reason: "column widened"}
	answer, err := w.server.RetryQuarantined(ann, retry)
	w.must(err)
	if answer.GetReopened() != 1 || list(ann) != "1 3 " {
		t.Errorf("%d reopened, listed %q", answer.GetReopened(), list(ann))
	}
	if w.text(`SELECT string_agg(format('%s %s', outcome, updated_at), ';' ORDER BY record_key) FROM lockstep.outcome`) != ledger {
		t.Error("the ledger does not add up to the report any more")
	}
	_, err = w.server.RetryQuarantined(ann, retry)
	wantReason(t, err, fault.NotFound)
	_, err = w.server.RetryQuarantined(w.as(identity.RoleAdmin, 9), retry)
	wantReason(t, err, fault.NotFound)
	// A later task that found the record otherwise takes it off the list, one that found it so again puts it back.
	second := w.task(7)
	w.exec(`UPDATE lockstep.work SET created_at = now() + interval '1 hour' WHERE task_id = $1::text::uuid`, second)
	quarantine(second, 1, "REPAIRED")
	quarantine(second, 2, "QUARANTINED")
	if got := list(ann); got != "2 3 " {
		t.Errorf("listed %q", got)
	}
	if n := w.text(`SELECT count(*)::text FROM lockstep.audit WHERE action = 'reopen' AND actor = 'operator/ann' AND reason = 'column widened'`); n != "1" {
		t.Errorf("%s audit rows", n)
	}
}

func TestExplainRecord(t *testing.T) {
	w := records(t)
	ann := w.as(identity.RoleOperator)
	w.exec(`INSERT INTO lockstep.delivery_receipt VALUES (7, 'form-1', decode($1, 'hex'), 'RETIRED', 'event', 1, 12, sha256('x'), false)`, key(3))
	w.exec(`UPDATE hall.answer_projection SET conflict_detail = '{"revision":3}' WHERE answer_id = $1::text::uuid`, key(3))
	before := w.everything()
	explain := func(ctx context.Context, n int, collection string) (*consumerv1.ExplainRecordResponse, error) {
		return w.server.ExplainRecord(ctx, &consumerv1.ExplainRecordRequest{Key: key(n), TenantId: 7, CollectionId: collection})
	}
	got, err := explain(ann, 3, "form-1")
	w.must(err)
	if !got.GetFound() || got.GetRevision() != 3 || got.GetCanonical() != `{"a":1,"b":2.5}` || got.GetContentHash() == got.GetStoredHash() || got.GetRetiredAt() == nil ||
		got.GetHighWater().GetRevision() != 13 || !got.GetHighWater().GetRetired() || got.GetLastDelivery().GetOutcome() != "RETIRED" ||
		got.GetConflictDetail() != `{"revision":3}` || got.GetRetireHold() {
		t.Errorf("%v", got)
	}
	if got, err := explain(ann, 99, "form-1"); err != nil || got.GetFound() {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := explain(ann, 1, "form-2"); err != nil || !got.GetFound() || got.GetCollectionId() != "form-1" {
		t.Errorf("%v, %v", got, err)
	}
	_, err = explain(w.as(identity.RoleAdmin, 9), 3, "form-1")
	wantReason(t, err, fault.NotFound)
	_, err = explain(t.Context(), 3, "form-1")
	wantReason(t, err, fault.PermissionDenied)
	_, err = w.server.ListRetired(ann, &consumerv1.ListRetiredRequest{TenantId: 7, CollectionId: "form-1"})
	w.must(err)
	_, err = w.server.ListQuarantined(ann, &consumerv1.ListQuarantinedRequest{TenantId: 7})
	w.must(err)
	if w.everything() != before {
		t.Error("a read wrote something")
	}
}
