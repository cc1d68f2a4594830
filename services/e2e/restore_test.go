package e2e

import (
	"maps"
	"os/exec"
	"path/filepath"
	"testing"

	"lockstep.dev/pkg/pglocal"
	"lockstep.dev/pkg/pgtest"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// backup is a dump of a database, as docs/operating/backup.md makes it.
func (s *stack) backup(dsn string) (file string) {
	s.t.Helper()
	s.serial++
	file = filepath.Join(s.t.TempDir(), "dump")
	s.postgres("pg_dump", "-Fc", "-d", dsn, "-f", file)
	return file
}

// restore makes a database of a backup.
func (s *stack) restore(file string) (dsn string) {
	s.t.Helper()
	dsn = pgtest.Empty(s.t)
	s.postgres("pg_restore", "--exit-on-error", "-d", dsn, file)
	return dsn
}

func (s *stack) postgres(program string, args ...string) {
	s.t.Helper()
	bin, err := pglocal.Find(s.t.Context())
	s.must(err)
	if out, err := exec.CommandContext(s.t.Context(), filepath.Join(bin, program), args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

// restoreConsumer goes on with the consumer of a backup.
func (s *stack) restoreConsumer(file string, change settings) {
	s.t.Helper()
	s.consumDSN = s.restore(file)
	s.consumer = s.pool(s.consumDSN)
	s.startConsumer("", change)
}

// change writes rows [from, to) at the center, as its host would.
func (s *stack) change(collection string, from, to int) {
	s.t.Helper()
	for i := from; i < to; i++ {
		s.exec(true, `UPDATE answers.answer SET revision = revision + 1, "values" = jsonb_build_object('changed', revision)
			WHERE tenant_id = $1 AND answer_id = $2`, tenant, key(collection, i))
	}
}

// add makes rows [from, to) of a form at the center.
func (s *stack) add(collection string, from, to int) {
	s.t.Helper()
	for i := from; i < to; i++ {
		s.exec(true, `INSERT INTO answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, "values")
			VALUES ($1, $2, $3, 1, $4, 1, $5)`, tenant, key(collection, i), collection, i, content(i))
	}
}

// ends wants a task's state and its ledger, as CLASS/OUTCOME.
func (s *stack) ends(id, state string, ledger map[string]int64) {
	s.t.Helper()
	if got := s.awaitEnd(id); got != state {
		s.t.Errorf("the task ended %s, want %s; %s", got, state, s.states())
	}
	if got := s.outcomes(id); !maps.Equal(got, ledger) {
		s.t.Errorf("the ledger has %v, want %v", got, ledger)
	}
}

// TestConsumerRestored goes on with an older backup of the consumer: what it has
// forgotten is mended, work of then whose task has ended since has no effect.
func TestConsumerRestored(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.fill(form, 400)
	s.fill("form-2", 100)
	s.startCenter("", settings{"max_in_flight_per_consumer": 4})
	accepting := s.startConsumer("", settings{"execution": settings{"enabled": false}})

	// A task that the consumer has accepted and not begun when it is backed up.
	s.damageAll("form-2", damage{stale: 3})
	open := s.create("form-2")
	s.await("the acceptance of the task", func() bool {
		var n int
		s.must(s.consumer.QueryRow(t.Context(), `SELECT count(*) FROM lockstep.work`).Scan(&n))
		return n == 1
	})
	file := s.backup(s.consumDSN)
	s.must(accepting.Stop())

	working := s.startConsumer("", nil)
	s.ends(open, "COMPLETED", map[string]int64{"STALE/REPAIRED": 3})
	s.change(form, 0, 10)
	s.add(form, 400, 405)
	s.exec(false, `INSERT INTO hall.answer_projection (tenant_id, answer_id, form_id, revision, content_hash, created_at)
		VALUES ($1, $2, $3, 1, sha256('x'), now() - interval '1 day')`, tenant, key("extra", 1), form)
	s.ends(s.create(form), "COMPLETED", map[string]int64{"STALE/REPAIRED": 10, "MISSING/REPAIRED": 5, "EXTRA_ROW/RETIRED": 1})
	s.fsck()
	s.must(working.Stop())

	s.restoreConsumer(file, nil)
	s.await("the end of work whose task has ended", func() bool {
		var ended bool
		s.must(s.consumer.QueryRow(t.Context(), `SELECT bool_and(ended_at IS NOT NULL) FROM lockstep.work`).Scan(&ended))
		return ended
	})
	if got := s.outcomes(open); len(got) != 0 {
		t.Errorf("work of a task that has ended left %v in the ledger", got)
	}
	s.ends(s.create(form), "COMPLETED", map[string]int64{"STALE/REPAIRED": 10, "MISSING/REPAIRED": 5})
	s.ends(s.create("form-2"), "COMPLETED", map[string]int64{"STALE/REPAIRED": 3})
	for _, collection := range []string{form, "form-2"} {
		if n := s.differences(collection); n != 0 {
			t.Errorf("%s: %d rows differ", collection, n)
		}
	}
}

// TestCenterRestored goes on with an older backup of the center. Until an
// operator raises the epoch its older words change nothing; after that they are
// true.
func TestCenterRestored(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.fill(form, 400)
	s.startConsumer("", nil)
	center := s.startCenter("", nil)
	s.ends(s.create(form), "COMPLETED", map[string]int64{})
	file := s.backup(s.centerDSN)

	s.change(form, 0, 10)
	s.add(form, 400, 405)
	s.ends(s.create(form), "COMPLETED", map[string]int64{"STALE/REPAIRED": 10, "MISSING/REPAIRED": 5})
	s.must(center.Stop())
	// A row that the consumer's host changed by itself.
	const host = ` WHERE tenant_id = $1 AND answer_id = $2`
	s.exec(false, `UPDATE hall.answer_projection SET revision = 9`+host, tenant, key(form, 20))

	s.centerDSN = s.restore(file)
	s.center = s.pool(s.centerDSN)
	center = s.startCenter("", nil)
	before := s.image()
	id := s.create(form)
	s.ends(id, "PARTIAL", map[string]int64{"LOCAL_AHEAD/REPORTED": 11, "EXTRA_ROW/REPORTED": 5})
	var refused int
	s.must(s.consumer.QueryRow(t.Context(), `SELECT count(*) FROM lockstep.outcome WHERE task_id = $1::uuid AND code = 'ROLLBACK_DETECTED'`, id).Scan(&refused))
	if refused != 10 {
		t.Errorf("%d older words were refused as ROLLBACK_DETECTED, want 10; %s", refused, s.codes(id))
	}
	if after := s.image(); after != before {
		t.Error("older words changed the projection")
	}
	s.must(center.Stop())

	s.centerVerb("-reason", "restored from the backup of Sunday", "raise-epoch")
	s.startCenter("", nil)
	s.ends(s.dryRun(form), "PARTIAL", map[string]int64{"LOCAL_AHEAD/REPORTED": 11, "EXTRA_ROW/REPORTED": 5})
	if after := s.image(); after != before {
		t.Error("a dry run changed the projection")
	}
	s.ends(s.create(form), "PARTIAL", map[string]int64{"LOCAL_AHEAD/REPAIRED": 10, "LOCAL_AHEAD/REPORTED": 1, "EXTRA_ROW/RETIRED": 5})
	s.exec(false, `UPDATE hall.answer_projection SET revision = 0`+host, tenant, key(form, 20))
	s.ends(s.create(form), "COMPLETED", map[string]int64{"STALE/REPAIRED": 1})
	if n := s.differences(form); n != 0 {
		t.Errorf("%d rows differ", n)
	}
	s.ends(s.create(form), "COMPLETED", map[string]int64{})
	s.fsck()
}

// TestTaskOfALostTimeline restores a center whose backup holds an open task that
// has ended since: under the raised epoch neither it nor what the consumer
// remembers of it says anything about the sets.
func TestTaskOfALostTimeline(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.fill(form, 100)
	center := s.startCenter("", nil)
	accepting := s.startConsumer("", settings{"execution": settings{"enabled": false}})
	old := s.create(form)
	s.await("the dispatch of the task", func() bool { return s.taskState(old) == "DISPATCHED" })
	file := s.backup(s.centerDSN)
	s.must(accepting.Stop())
	s.startConsumer("", nil)
	s.ends(old, "COMPLETED", map[string]int64{})
	s.must(center.Stop())

	s.centerDSN = s.restore(file)
	s.center = s.pool(s.centerDSN)
	s.change(form, 0, 4)
	s.centerVerb("-reason", "restored from the backup of Sunday", "raise-epoch")
	s.startCenter("", nil)
	fresh := s.create(form)
	if fresh == old {
		t.Error("the task of the old epoch was given for a new one")
	}
	s.ends(fresh, "COMPLETED", map[string]int64{"STALE/REPAIRED": 4})
	var end string
	s.must(s.center.QueryRow(t.Context(), `SELECT state || ' ' || code FROM lockstep.task WHERE task_id = $1::uuid`, old).Scan(&end))
	if end != "CANCELLED EPOCH_MOVED" {
		t.Errorf("the task of the old epoch ended %s", end)
	}
	if n := s.differences(form); n != 0 {
		t.Errorf("%d rows differ", n)
	}
}

func (s *stack) codes(id string) (codes string) {
	s.t.Helper()
	s.must(s.consumer.QueryRow(s.t.Context(), `SELECT string_agg(DISTINCT class || ' ' || outcome || ' ' || code, ', ') FROM lockstep.outcome WHERE task_id = $1::uuid`, id).Scan(&codes))
	return codes
}

// image digests the projection.
func (s *stack) image() (digest string) {
	s.t.Helper()
	s.must(s.consumer.QueryRow(s.t.Context(), `SELECT encode(sha256(string_agg(p::text, '|' ORDER BY answer_id)::bytea), 'hex') FROM hall.answer_projection p`).Scan(&digest))
	return digest
}

// centerVerb runs the center's program with a verb.
func (s *stack) centerVerb(args ...string) {
	s.t.Helper()
	_, config, _ := s.configure("center", s.centerAddr, s.centerSettings(), nil)
	out, err := exec.CommandContext(s.t.Context(), filepath.Join(s.bin, "center"), append([]string{"-config", config}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("center %v: %v\n%s", args, err, out)
	}
}

func (s *stack) dryRun(collection string) string {
	s.t.Helper()
	out, err := s.centerAdmin().CreateTask(s.operator(), &centerv1.CreateTaskRequest{
		Consumer: consumerApp, TenantId: tenant, CollectionId: collection, Scope: evidencev1.Scope_SCOPE_COLLECTION, Mode: evidencev1.Mode_MODE_DRY_RUN,
	})
	s.must(err)
	return out.GetTasks()[0].GetTask().GetTaskId()
}
