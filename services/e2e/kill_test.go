package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep.dev/pkg/failpoint"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// few is enough of each class to fill more than one page and one batch.
var few = damage{missing: 12, stale: 12, conflict: 8, tombstone: 6, extra: 5}

// TestKill ends a service by SIGKILL at every named place, starts it again, and
// wants exactly what an uninterrupted run gives.
func TestKill(t *testing.T) {
	for _, point := range failpoint.All() {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			s.fill(form, 600)
			s.damageAll(form, few)
			before := s.extensions()

			var victim *node
			inCenter := strings.HasPrefix(string(point), "center.")
			change := s.provoke(point)
			if inCenter {
				s.startConsumer("", nil)
				victim = s.startCenter(string(point), change)
			} else {
				victim = s.startConsumer(string(point), nil)
				s.startCenter("", nil)
			}
			id := s.createOnce(point)
			select {
			case <-victim.Ended():
			case <-time.After(patience):
				t.Fatalf("the service was not killed at %s; %s", point, s.states())
			}
			if !killed(victim) {
				t.Fatalf("the service ended by itself, not by the kill: %v", victim.Death())
			}
			if inCenter {
				s.startCenter("", change)
			} else {
				s.startConsumer("", nil)
			}
			if id == "" {
				id = s.openOrEnded()
			}
			s.awaitEnd(id)
			s.mended(id, few, before)
			var tasks int
			s.must(s.center.QueryRow(t.Context(), `SELECT count(*) FROM lockstep.task`).Scan(&tasks))
			if tasks != 1 {
				t.Errorf("%d tasks were made, want 1", tasks)
			}
		})
	}
}

// provoke gives the settings under which the place is reached, and makes the
// state it needs.
func (s *stack) provoke(point failpoint.Name) settings {
	switch point {
	case failpoint.CenterScheduleBeforeCommit, failpoint.CenterScheduleAfterCommit:
		// Due a second ago and once a day.
		due := time.Now().UTC().Add(-time.Second)
		return settings{"schedule": settings{"enabled": true, "cron": due.Format("5 4 15 * * *"), "zone": "UTC"}}
	case failpoint.CenterSweepBeforeCommit, failpoint.CenterSweepAfterCommit:
		// A task whose consumer died long ago.
		s.exec(true, `INSERT INTO lockstep.task (task_id, consumer, tenant_id, collection_id, scope, mode, state, grant_epoch, center_epoch, created_by,
				claim_token, claimed_by, claimed_at, lease_until)
			VALUES (gen_random_uuid(), $1, $2, $3, 'COLLECTION', 'REPAIR', 'QUEUED', 1, 1, 'tester',
				gen_random_uuid(), 'a materialiser that died', now() - interval '1 hour', now() - interval '1 hour')`, consumerApp, tenant, form)
	default:
	}
	return nil
}

// createOnce asks for the task unless something else makes it. A create whose
// answer was cut by the kill may or may not have happened: "".
func (s *stack) createOnce(point failpoint.Name) string {
	s.t.Helper()
	switch point {
	case failpoint.CenterScheduleBeforeCommit, failpoint.CenterScheduleAfterCommit,
		failpoint.CenterSweepBeforeCommit, failpoint.CenterSweepAfterCommit:
		return ""
	case failpoint.CenterCreateBeforeCommit, failpoint.CenterCreateAfterCommit:
		_, err := s.centerAdmin().CreateTask(s.operator(), &centerv1.CreateTaskRequest{
			Consumer: consumerApp, TenantId: tenant, CollectionId: form, Scope: evidencev1.Scope_SCOPE_COLLECTION,
		})
		if err == nil {
			s.t.Fatal("the create was answered, although its service was killed in it")
		}
		return ""
	default:
		return s.create(form)
	}
}

// openOrEnded gives the one task there is, asking for it again where the kill
// came before its commit.
func (s *stack) openOrEnded() string {
	s.t.Helper()
	var id string
	s.await("a task", func() bool {
		s.must(s.center.QueryRow(s.t.Context(), `SELECT coalesce(min(task_id::text), '') FROM lockstep.task`).Scan(&id))
		if id == "" {
			id = s.create(form)
		}
		return id != ""
	})
	return strings.ReplaceAll(id, "-", "")
}

func killed(n *node) bool {
	var exit *exec.ExitError
	if !errors.As(n.ExitError(), &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signal() == syscall.SIGKILL
}
