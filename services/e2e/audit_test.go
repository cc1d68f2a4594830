package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// TestAuditLog does one of each thing that must leave a row, and has the command
// line verify both logs from outside, before and after they were tampered with.
func TestAuditLog(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.fill(form, 300)
	s.damageAll(form, damage{stale: 3, extra: 2})
	center := s.startCenter("", nil)
	admin := s.centerAdmin()
	ctx := s.operator()
	other := &centerv1.CreateTaskRequest{Consumer: consumerApp, TenantId: tenant, CollectionId: "form-2", Scope: evidencev1.Scope_SCOPE_COLLECTION}
	_, err := admin.AddTenant(ctx, &centerv1.AddTenantRequest{Consumer: consumerApp, TenantId: 8})
	s.must(err)
	_, err = admin.RemoveTenant(ctx, &centerv1.RemoveTenantRequest{Consumer: consumerApp, TenantId: 8})
	s.must(err)
	grant := &centerv1.SetGrantRequest{Consumer: consumerApp, TenantId: tenant, CollectionId: "form-2", Enabled: true, ReadAllowed: true, SubscribeAllowed: true}
	_, err = admin.SetGrant(ctx, grant)
	s.must(err)
	made, err := admin.CreateTask(ctx, other)
	s.must(err)
	_, err = admin.CancelTask(ctx, &centerv1.CancelTaskRequest{TaskId: made.GetTasks()[0].GetTask().GetTaskId(), Reason: "by hand"})
	s.must(err)

	// Accepted while nothing is executed, so that it can be paused.
	waiting := s.startConsumer("", settings{"execution": settings{"enabled": false}})
	id := s.create(form)
	s.await("the acceptance", func() bool {
		return len(s.strings(s.consumer, `SELECT task_id::text FROM lockstep.work`)) == 1
	})
	work := s.consumerAdmin()
	_, err = work.PauseWork(ctx, &consumerv1.PauseWorkRequest{TaskId: id, Reason: "night"})
	s.must(err)
	_, err = work.ResumeWork(ctx, &consumerv1.ResumeWorkRequest{TaskId: id})
	s.must(err)
	s.must(waiting.Stop())
	consumer := s.startConsumer("", nil)
	s.awaitEnd(id)

	const rows = `SELECT actor || ' ' || action || ' ' || decision FROM lockstep.audit ORDER BY audit_id`
	for pool, want := range map[*pgxpool.Pool][]string{
		s.center: {
			"records keys.use records-1", "operator/tester tenant.add ADDED", "operator/tester tenant.remove REMOVED", "operator/tester grant.set SET",
			"operator/tester task.create QUEUED", "operator/tester task.end CANCELLED", "consumer/hall task.end COMPLETED",
		},
		s.consumer: {"hall keys.use hall-1", "operator/tester pause done", "operator/tester resume done", "records retire retired 2 of 2"},
	} {
		got := s.strings(pool, rows)
		for _, row := range want {
			if !slices.Contains(got, row) {
				t.Errorf("the log has no %q; it has %q", row, got)
			}
		}
		// A second start with the same keys is no news.
		if n := len(slices.DeleteFunc(got, func(row string) bool { return !strings.Contains(row, "keys.use") })); n != 1 {
			t.Errorf("%d rows of the keys in use, want 1", n)
		}
	}

	verify := func(side, app string, n *node) (int, string) {
		t.Helper()
		return s.lockstep(s.token, "audit", "verify", "--side", side, "--"+side, "http://"+n.at.HTTP, "--app-key", app, "--trust", s.file("trust.json"))
	}
	const tail = `SELECT audit_id::text FROM lockstep.audit WHERE audit_id > (SELECT coalesce(max(last_id), 0) FROM lockstep.audit_seal)`
	for _, side := range []struct {
		name, app string
		node      *node
		pool      *pgxpool.Pool
	}{{"center", centerApp, center, s.center}, {"consumer", consumerApp, consumer, s.consumer}} {
		s.await("the seals of the "+side.name, func() bool { return len(s.strings(side.pool, tail)) == 0 })
		if code, out := verify(side.name, side.app, side.node); code != 0 || !strings.Contains(out, "unsealed tail: none") {
			t.Errorf("verify of the %s: exit code %d, %s", side.name, code, out)
		}
		_, err := side.pool.Exec(t.Context(), `ALTER TABLE lockstep.audit DISABLE TRIGGER USER;
			UPDATE lockstep.audit SET reason = 'nothing to see' WHERE audit_id = (SELECT max(last_id) FROM lockstep.audit_seal);
			ALTER TABLE lockstep.audit ENABLE TRIGGER USER`)
		s.must(err)
		last := s.strings(side.pool, `SELECT max(seal_id)::text FROM lockstep.audit_seal`)[0]
		if code, out := verify(side.name, side.app, side.node); code != 1 || !strings.Contains(out, "BROKEN: seal "+last+": the rows ") {
			t.Errorf("verify of the tampered %s: exit code %d, %s", side.name, code, out)
		}
	}
}
