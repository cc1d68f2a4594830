package e2e

import (
	"maps"
	"strings"
	"testing"
	"time"

	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
)

// withOutbox maps the example's outbox too.
func withOutbox() settings {
	mapped := settings{"outbox": settings{
		"table": "answers.answer_outbox", "id": "id", "xid": "xid", "tenant": "tenant_id", "collection": "form_id", "key": "answer_id",
	}}
	maps.Copy(mapped, answersCenter)
	return settings{
		"dataset":  mapped,
		"delivery": settings{"enabled": true, "timeout": "1s", "max_attempts": 100, "backoff": settings{"base": "100ms", "cap": "500ms"}},
	}
}

var receiving = settings{"delivery": settings{"enabled": true}}

// update changes rows [from, to) of the form as the host does, each in a
// transaction of its own.
func (s *stack) update(from, to int) {
	s.t.Helper()
	for i := from; i < to; i++ {
		s.exec(true, `UPDATE answers.answer SET revision = revision + 1, "values" = $3::text::jsonb WHERE tenant_id = $1 AND answer_id = $2`,
			tenant, key(form, i), content(1000+i))
	}
}

func (s *stack) awaitEqual() {
	s.t.Helper()
	s.await("the projection equals the records", func() bool { return s.differences(form) == 0 })
}

// nothingButDelivery wants no task, no ledger row, and the host's columns as they were.
func (s *stack) nothingButDelivery(extensions string) {
	s.t.Helper()
	var tasks, outcomes int
	s.must(s.center.QueryRow(s.t.Context(), `SELECT count(*) FROM lockstep.task`).Scan(&tasks))
	s.must(s.consumer.QueryRow(s.t.Context(), `SELECT count(*) FROM lockstep.outcome`).Scan(&outcomes))
	if tasks != 0 || outcomes != 0 {
		s.t.Errorf("%d tasks, %d ledger rows", tasks, outcomes)
	}
	if s.extensions() != extensions {
		s.t.Error("the host's own columns changed")
	}
}

// TestDelivery: what the host changes at the center appears in the projection
// without any task.
func TestDelivery(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.fill(form, 40)
	before := s.extensions()
	s.startConsumer("", receiving)
	s.startCenter("", withOutbox())

	s.update(0, 20)
	s.exec(true, `UPDATE answers.answer SET deleted = true, revision = revision + 1 WHERE answer_id = $1`, key(form, 30))
	s.exec(true, `INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values") VALUES ($1, $2, $3, 1, 99, 1, '{"new": 1.0}')`,
		tenant, key(form, 999), form)
	s.awaitEqual()
	s.nothingButDelivery(before)

	// A revoked grant ends it, an operator's replay is refused, and a new grant with a replay mends it.
	s.exec(true, `UPDATE lockstep.consumer_grant SET enabled = false, grant_epoch = grant_epoch + 1`)
	s.update(5, 6)
	replay := &centerv1.ReplayRecordRequest{Consumer: consumerApp, TenantId: tenant, CollectionId: form, Key: protocol.FormatID(key(form, 5)), Reason: "test"}
	if _, err := s.centerAdmin().ReplayRecord(s.operator(), replay); err == nil {
		t.Error("a record was replayed without a grant")
	}
	var xid string
	s.await("the outbox is read to its end", func() bool {
		s.must(s.center.QueryRow(t.Context(), `SELECT coalesce(max(xid::text), '') FROM lockstep.delivery_position
			WHERE (xid, id) = (SELECT xid, id FROM answers.answer_outbox ORDER BY xid DESC, id DESC LIMIT 1)`).Scan(&xid))
		return xid != ""
	})
	if n := s.differences(form); n != 1 {
		t.Errorf("%d differences without a grant, want 1", n)
	}
	s.exec(true, `UPDATE lockstep.consumer_grant SET enabled = true`)
	_, err := s.centerAdmin().ReplayRecord(s.operator(), replay)
	s.must(err)
	s.awaitEqual()
	s.nothingButDelivery(before)
}

// TestDeliveryKilled ends the center by SIGKILL at every place of a delivery,
// and once more in the middle of many; nothing is lost.
func TestDeliveryKilled(t *testing.T) {
	t.Parallel()
	for _, point := range failpoint.Delivery() {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			s.fill(form, 12)
			before := s.extensions()
			centerDies := strings.HasPrefix(string(point), "center.")
			var victim *node
			if centerDies {
				s.startConsumer("", receiving)
				victim = s.startCenter(string(point), withOutbox())
			} else {
				victim = s.startConsumer(string(point), receiving)
				s.startCenter("", withOutbox())
			}
			s.update(0, 12)
			select {
			case <-victim.Ended():
			case <-time.After(patience):
				t.Fatalf("the service was not killed at %s", point)
			}
			if !killed(victim) {
				t.Fatalf("the service ended by itself: %v", victim.Death())
			}
			s.update(0, 3) // while it is away
			if centerDies {
				s.startCenter("", withOutbox())
			} else {
				s.startConsumer("", receiving)
			}
			s.awaitEqual()
			s.nothingButDelivery(before)
			s.await("nothing is left to be sent", func() bool { return s.queued() == "" })
		})
	}
	t.Run("in the middle of many", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		s.fill(form, 300)
		before := s.extensions()
		s.startConsumer("", receiving)
		victim := s.startCenter("", withOutbox())
		s.update(0, 100)
		s.must(victim.Kill())
		s.update(100, 200)
		s.startCenter("", withOutbox())
		s.update(200, 300)
		s.awaitEqual()
		s.nothingButDelivery(before)
		s.await("nothing is left to be sent", func() bool { return s.queued() == "" })
	})
}

// queued counts the deliveries that have not ended well, by state.
func (s *stack) queued() string {
	s.t.Helper()
	var text string
	s.must(s.center.QueryRow(s.t.Context(), `SELECT coalesce(string_agg(format('%s %s %s', state, code, n), ', '), '') FROM (
		SELECT state, code, count(*) AS n FROM lockstep.delivery WHERE state <> 'DONE' GROUP BY state, code) q`).Scan(&text))
	return text
}
