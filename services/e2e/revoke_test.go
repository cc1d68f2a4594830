package e2e

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// inHand is what a consumer may still write after a task was ended: the one
// batch whose records it was given before.
const inHand = 200

// long is a damage of several batches, with rows to retire after them.
var long = damage{missing: 250, stale: 500, conflict: 250, extra: 5}

// TestEndedInMidRun takes a running task away from its consumer between two
// batches, at the moment before the center answers the third one or after it.
func TestEndedInMidRun(t *testing.T) {
	for name, c := range map[string]struct {
		end      func(s *stack, id string)
		answered bool // the batch was answered before
		code     string
	}{
		"the grant is revoked": {code: "GRANT_REVOKED", end: func(s *stack, _ string) {
			_, err := s.centerAdmin().SetGrant(s.operator(), &centerv1.SetGrantRequest{
				Consumer: consumerApp, TenantId: tenant, CollectionId: form, Enabled: true, SubscribeAllowed: true,
			})
			if err != nil {
				s.t.Errorf("revoking: %v", err)
			}
		}},
		"the grant is revoked while a batch is on its way": {code: "GRANT_REVOKED", answered: true, end: func(s *stack, _ string) {
			_, err := s.centerAdmin().SetGrant(s.operator(), &centerv1.SetGrantRequest{
				Consumer: consumerApp, TenantId: tenant, CollectionId: form, ReadAllowed: true, SubscribeAllowed: true,
			})
			if err != nil {
				s.t.Errorf("revoking: %v", err)
			}
		}},
		"the tenant is taken away": {code: "GRANT_REVOKED", end: func(s *stack, _ string) {
			_, err := s.centerAdmin().RemoveTenant(s.operator(), &centerv1.RemoveTenantRequest{Consumer: consumerApp, TenantId: tenant})
			if err != nil {
				s.t.Errorf("removing the tenant: %v", err)
			}
		}},
		// As an operator's narrowing and widening leave it, whose center died
		// before it cancelled anything: the next check finds it.
		"the epoch moved and nobody cancelled": {code: "EPOCH_MOVED", end: func(s *stack, _ string) {
			s.exec(true, `UPDATE lockstep.consumer_grant SET grant_epoch = grant_epoch + 1`)
		}},
		"the epoch moved while a batch is on its way": {code: "EPOCH_MOVED", answered: true, end: func(s *stack, _ string) {
			s.exec(true, `UPDATE lockstep.consumer_grant SET grant_epoch = grant_epoch + 1`)
		}},
		"an operator cancels": {code: "CANCELLED_BY_OPERATOR", end: func(s *stack, id string) {
			_, err := s.centerAdmin().CancelTask(s.operator(), &centerv1.CancelTaskRequest{TaskId: id, Reason: "no longer wanted"})
			if err != nil {
				s.t.Errorf("cancelling: %v", err)
			}
		}},
		"an operator cancels while a batch is on its way": {code: "CANCELLED_BY_OPERATOR", answered: true, end: func(s *stack, id string) {
			_, err := s.centerAdmin().CancelTask(s.operator(), &centerv1.CancelTaskRequest{TaskId: id, Reason: "no longer wanted"})
			if err != nil {
				s.t.Errorf("cancelling: %v", err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			s.fill(form, 4000)
			s.damageAll(form, long)
			before := s.extensions()
			b, address := s.between(s.centerAddr)
			var batches, at atomic.Int64 // at: the effects at the end's commit
			var id atomic.Pointer[string]
			ended := make(chan struct{})
			b.meddleWith(func(_ context.Context, method string, _ []byte, carry func() ([]byte, error)) ([]byte, error) {
				if method != "GetRecords" || batches.Add(1) != 3 {
					return carry()
				}
				end := func() {
					s.await("the task's id", func() bool { return id.Load() != nil })
					c := c.end
					c(s, *id.Load())
					at.Store(s.effects(*id.Load()))
					close(ended)
				}
				if !c.answered {
					end()
					return carry()
				}
				out, err := carry()
				end()
				return out, err
			})
			s.startCenter("", nil)
			s.startConsumer("", settings{"center": settings{"address": address}})
			task := s.create(form)
			id.Store(&task)
			if state := s.awaitEnd(task); state != "CANCELLED" {
				t.Errorf("the task ended %s", state)
			}
			if got, want := s.work(task), "CANCELLED "+c.code+" 1/1"; got != want {
				t.Errorf("the consumer's row is %q, want %q", got, want)
			}
			// The consumer hears of it before the call that ended the task has its answer.
			select {
			case <-ended:
			case <-time.After(patience):
				t.Fatal("the task ended by itself")
			}
			then, now := at.Load(), s.effects(task)
			if then < 1 || now < then || now > then+inHand {
				t.Errorf("%d effects before the end, %d after it; want at most %d more", then, now, inHand)
			}
			if now == long.repaired() {
				t.Error("everything was repaired: the end came too late to show anything")
			}
			t.Logf("%d effects before the end, %d after it", then, now-then)
			s.nothingRetired()
			if s.extensions() != before {
				t.Error("extension columns of the host changed")
			}
			s.fsck()
			s.quiet(task)
		})
	}
}

// effects counts the rows that a task has written.
func (s *stack) effects(id string) (n int64) {
	s.t.Helper()
	s.must(s.consumer.QueryRow(s.t.Context(), `SELECT count(*) FROM lockstep.outcome WHERE task_id = $1::uuid AND outcome = 'REPAIRED'`, id).Scan(&n))
	return n
}

func (s *stack) nothingRetired() {
	s.t.Helper()
	var n int
	s.must(s.consumer.QueryRow(s.t.Context(), `SELECT count(*) FROM hall.answer_projection WHERE retired_at IS NOT NULL`).Scan(&n))
	if n != 0 {
		s.t.Errorf("%d rows were retired", n)
	}
}

// quiet checks that an ended task stays as it is while both services run on: a
// task of another form goes its whole way after it.
func (s *stack) quiet(id string) {
	s.t.Helper()
	read := func() string {
		var row, rest string
		s.must(s.consumer.QueryRow(s.t.Context(), `SELECT format('%s %s', updated_at, (SELECT md5(string_agg(p::text, '' ORDER BY answer_id)) FROM hall.answer_projection p WHERE form_id = $2))
			FROM lockstep.work WHERE task_id = $1::uuid`, id, form).Scan(&row))
		s.must(s.center.QueryRow(s.t.Context(), `SELECT updated_at::text FROM lockstep.task WHERE task_id = $1::uuid`, id).Scan(&rest))
		return row + rest
	}
	before := read()
	_, err := s.center.Exec(s.t.Context(), `INSERT INTO lockstep.consumer_tenant (consumer, tenant_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`, consumerApp, tenant)
	s.must(err)
	s.fill("form-2", 20)
	if state := s.awaitEnd(s.create("form-2")); state != "COMPLETED" {
		s.t.Errorf("the next task ended %s", state)
	}
	if read() != before {
		s.t.Error("the ended task or its rows changed afterwards")
	}
}

// TestRevokedBeforeDispatch: what was revoked never reaches the consumer.
func TestRevokedBeforeDispatch(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.fill(form, 50)
	s.startConsumer("", nil)
	s.startCenter("", settings{"dispatch": settings{"enabled": false, "timeout": "1s"}})
	id := s.create(form)
	s.exec(true, `UPDATE lockstep.consumer_grant SET enabled = false, grant_epoch = grant_epoch + 1`)
	s.startCenterAt("unix:"+s.file("c2.sock"), "", nil)
	s.await("the cancellation", func() bool { return s.taskState(id) == "CANCELLED" })
	var code string
	var attempt int
	s.must(s.center.QueryRow(t.Context(), `SELECT code, attempt FROM lockstep.task`).Scan(&code, &attempt))
	if code != "GRANT_REVOKED" || attempt != 0 {
		t.Errorf("it ended with %s in attempt %d", code, attempt)
	}
	if err := s.consumer.QueryRow(t.Context(), `SELECT state FROM lockstep.work`).Scan(new(string)); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("the consumer got it: %v", err)
	}
	// Asking again is refused, and the refusal is a fact.
	_, _ = s.centerAdmin().CreateTask(s.operator(), &centerv1.CreateTaskRequest{
		Consumer: consumerApp, TenantId: tenant, CollectionId: form, Scope: evidencev1.Scope_SCOPE_COLLECTION,
	})
	var refused int
	s.must(s.center.QueryRow(t.Context(), `SELECT count(*) FROM lockstep.task WHERE state = 'FAILED' AND code = 'GRANT_REVOKED' AND manifest_state = 'FAILED'`).Scan(&refused))
	if refused != 1 {
		t.Errorf("%d refusals are kept, want 1", refused)
	}
	s.fsck()
}
