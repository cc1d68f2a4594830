package e2e

import (
	"fmt"
	"testing"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// TestReplicas lets 2 centers and 3 consumers share 200 tasks: every one ends
// once, none twice, none is lost.
func TestReplicas(t *testing.T) {
	t.Parallel()
	s := setup(t)
	const forms, rows = 200, 20
	for i := range forms {
		collection := fmt.Sprintf("form-%d", i)
		s.fill(collection, rows)
		s.damageAll(collection, damage{missing: 1, stale: 1, conflict: 1})
	}
	several := settings{"max_in_flight_per_consumer": 6, "max_tasks_per_run": forms}
	for i := range 3 {
		address := s.consumerAddr
		if i > 0 {
			address = fmt.Sprintf("unix:%s", s.file(fmt.Sprintf("h%d.sock", i)))
		}
		s.startConsumerAt(address, "", nil)
	}
	s.startCenter("", several)
	s.startCenterAt("unix:"+s.file("c2.sock"), "", several)

	out, err := s.centerAdmin().CreateTask(s.operator(), &centerv1.CreateTaskRequest{Consumer: consumerApp, Scope: evidencev1.Scope_SCOPE_ALL})
	s.must(err)
	if len(out.GetTasks()) != forms || len(out.GetLeftOut()) != 0 {
		t.Fatalf("ALL made %d tasks and left out %d, want %d and 0", len(out.GetTasks()), len(out.GetLeftOut()), forms)
	}
	count := func(center bool, sql string) (n int) {
		pool := s.consumer
		if center {
			pool = s.center
		}
		s.must(pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	s.await("the end of every task", func() bool {
		return count(true, `SELECT count(*) FROM lockstep.task WHERE ended_at IS NULL`) == 0 &&
			count(false, `SELECT count(*) FROM lockstep.work WHERE ended_at IS NULL`) == 0
	})
	for what, c := range map[string]struct{ got, want int }{
		"completed tasks":        {count(true, `SELECT count(*) FROM lockstep.task WHERE state = 'COMPLETED'`), forms},
		"results":                {count(true, `SELECT count(*) FROM lockstep.task_result`), forms},
		"rows of work":           {count(false, `SELECT count(*) FROM lockstep.work WHERE state = 'COMPLETED'`), forms},
		"repairs in the ledger":  {count(false, `SELECT count(*) FROM lockstep.outcome WHERE outcome = 'REPAIRED'`), 3 * forms},
		"all rows of the ledger": {count(false, `SELECT count(*) FROM lockstep.outcome`), 3 * forms},
		// Each repair raised the version of its row by one, and a new row has 1.
		"repairs done": {count(false, `SELECT sum(projection_version) - count(*) FROM hall.answer_projection`), 2 * forms},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", what, c.got, c.want)
		}
	}
	for i := range forms {
		if n := s.differences(fmt.Sprintf("form-%d", i)); n != 0 {
			t.Errorf("form-%d: %d rows still differ", i, n)
		}
	}
	if n := count(true, `SELECT count(DISTINCT claimed) FROM (SELECT attempt AS claimed FROM lockstep.task) AS a`); n != 1 {
		t.Errorf("tasks ended under %d different attempts, want one each", n)
	}
	s.fsck()
}
