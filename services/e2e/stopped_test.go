package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"lockstep.dev/pkg/failpoint"
)

// TestStopped stops a consumer in the middle of a transaction, its rows written
// and not committed, until another one has taken its work over. When it goes on,
// it changes nothing. Where the transaction holds the row of the work itself,
// the take-over waits until the database ends it.
func TestStopped(t *testing.T) {
	for _, point := range []failpoint.Name{
		failpoint.ConsumerRepairBeforeCommit, failpoint.ConsumerCheckpointBeforeCommit, failpoint.ConsumerFreezeBeforeCommit,
	} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			s.fill(form, 600)
			// The young worker has to wait for rows that the old one has inserted
			// and not committed; locked ones it would pass over.
			done := damage{missing: 12, extra: 5}
			s.damageAll(form, done)
			before := s.extensions()
			old := s.startConsumer("stop="+string(point), nil)
			// The center does not lose patience, for it could reach the stopped one only.
			s.startCenter("", settings{"lease": "5m"})
			id := s.create(form)
			s.await("the stop", func() bool { return stopped(t, old) })
			holder := s.claimedBy(id)
			if holder == "" {
				t.Fatal("it was stopped without a claim")
			}
			s.startConsumerAt("unix:"+s.file("h2.sock"), "", nil)
			s.await("the take-over", func() bool { now := s.claimedBy(id); return now != "" && now != holder })
			s.must(old.Signal(syscall.SIGCONT))

			s.awaitEnd(id)
			s.mended(id, done, before)
			var twice int
			s.must(s.consumer.QueryRow(t.Context(), `SELECT count(*) FROM hall.answer_projection p JOIN lockstep.outcome o
				ON o.tenant_id = p.tenant_id AND o.record_key = uuid_send(p.answer_id)
				WHERE p.projection_version > 1 AND o.outcome = 'REPAIRED'`).Scan(&twice))
			if twice != 0 {
				t.Errorf("%d rows were repaired twice", twice)
			}
		})
	}
}

// claimedBy is the worker that holds the consumer's row, "" for none.
func (s *stack) claimedBy(id string) (worker string) {
	s.t.Helper()
	s.must(s.consumer.QueryRow(s.t.Context(), `SELECT coalesce(min(claimed_by), '') FROM lockstep.work WHERE task_id = $1::uuid`, id).Scan(&worker))
	return worker
}

// stopped says whether the kernel has stopped the process.
func stopped(t *testing.T, n *node) bool {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, state, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(state, "T")
}
