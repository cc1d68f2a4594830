package e2e

import (
	"maps"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/protocol"
)

// Every query must return no row. They are run after each round, whatever
// happened in it.
var centerChecks = map[string]string{
	"a terminal task has no live claim and no slot": `SELECT task_id FROM lockstep.task
		WHERE state IN ('COMPLETED', 'PARTIAL', 'FAILED', 'CANCELLED') AND (claim_token IS NOT NULL OR lease_until IS NOT NULL OR slot IS NOT NULL)`,
	"RUNNING and DISPATCHED have a lease":     `SELECT task_id FROM lockstep.task WHERE state IN ('RUNNING', 'DISPATCHED') AND lease_until IS NULL`,
	"a result is of an attempt that was made": `SELECT r.task_id FROM lockstep.task_result r JOIN lockstep.task t USING (task_id) WHERE r.attempt > t.attempt`,
	"only a result reaches COMPLETED and PARTIAL": `SELECT task_id FROM lockstep.task t WHERE state IN ('COMPLETED', 'PARTIAL')
		AND NOT EXISTS (SELECT 1 FROM lockstep.task_result r WHERE r.task_id = t.task_id AND r.state = t.state)`,
	"a task has one deciding result": `SELECT task_id FROM lockstep.task_result GROUP BY task_id HAVING count(*) > 1`,
	"an adopted manifest has all its rows": `SELECT t.task_id FROM lockstep.task t
		LEFT JOIN LATERAL (SELECT coalesce(sum(p.row_count), 0) AS n, count(*) AS pages FROM lockstep.manifest_page p
			WHERE p.tenant_id = t.tenant_id AND p.manifest_id = t.manifest_id) p ON true
		WHERE t.manifest_state = 'COMPLETE' AND (p.n <> t.row_count OR p.pages <> t.page_count)`,
	"a task is never open twice": `SELECT consumer FROM lockstep.task WHERE state IN ('QUEUED', 'DISPATCHED', 'RUNNING')
		GROUP BY consumer, tenant_id, collection_id, scope, record_key HAVING count(*) > 1`,
}

var consumerChecks = map[string]string{
	"RUNNING has a token and a lease": `SELECT task_id FROM lockstep.work WHERE state = 'RUNNING' AND (claim_token IS NULL OR lease_until IS NULL)`,
	"an ended row has no claim":       `SELECT task_id FROM lockstep.work WHERE ended_at IS NOT NULL AND claim_token IS NOT NULL`,
	"a retired row has a proof":       `SELECT answer_id FROM hall.answer_projection WHERE retired_at IS NOT NULL AND coalesce(proof_id, '') = ''`,
	"a retired row is in a ledger": `SELECT p.answer_id FROM hall.answer_projection p WHERE p.retired_at IS NOT NULL
		AND NOT EXISTS (SELECT 1 FROM lockstep.outcome o WHERE o.tenant_id = p.tenant_id AND o.record_key = uuid_send(p.answer_id) AND o.outcome = 'RETIRED')`,
	// Of the last repair: one under a raised center epoch may lower what was written before.
	"a repaired row holds no lower revision than was written": `SELECT o.record_key
		FROM (SELECT DISTINCT ON (tenant_id, record_key) * FROM lockstep.outcome WHERE outcome = 'REPAIRED'
			ORDER BY tenant_id, record_key, updated_at DESC) o
		JOIN hall.answer_projection p ON p.tenant_id = o.tenant_id AND p.answer_id = encode(o.record_key, 'hex')::uuid
		WHERE p.retired_at IS NULL AND p.revision < o.wrote_revision`,
	"a completed row left nothing open": `SELECT w.task_id FROM lockstep.work w JOIN lockstep.outcome o USING (tenant_id, task_id)
		WHERE w.state = 'COMPLETED' AND o.outcome NOT IN ('REPAIRED', 'SETTLED', 'RETIRED')`,
}

func (s *stack) fsck() {
	s.t.Helper()
	for center, checks := range map[bool]map[string]string{true: centerChecks, false: consumerChecks} {
		pool := s.consumer
		if center {
			pool = s.center
		}
		for name, sql := range checks {
			var n int
			s.must(pool.QueryRow(s.t.Context(), "SELECT count(*) FROM ("+sql+") AS wrong").Scan(&n))
			if n > 0 {
				s.t.Errorf("fsck: %s: %d rows say otherwise\n%s", name, n, s.states())
			}
		}
	}
	s.resultsCountTheLedger()
}

// resultsCountTheLedger compares what each stored result states with the rows of
// the consumer's ledger, unless they are purged.
func (s *stack) resultsCountTheLedger() {
	s.t.Helper()
	rows, err := s.center.Query(s.t.Context(), `SELECT task_id::text, report FROM lockstep.task_result`)
	s.must(err)
	results := map[string][]byte{}
	var id string
	var report []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &report}, func() error { results[id] = report; return nil })
	s.must(err)
	for id, report := range results {
		var purged bool
		s.must(s.consumer.QueryRow(s.t.Context(), `SELECT coalesce(bool_or(purged_at IS NOT NULL), false) FROM lockstep.work WHERE task_id = $1::uuid`, id).Scan(&purged))
		env, err := document.UnmarshalEnvelope(report)
		s.must(err)
		result, err := document.ParseReport(env.Payload)
		s.must(err)
		if stated, kept := counted(result), s.outcomes(id); !purged && !maps.Equal(stated, kept) {
			s.t.Errorf("fsck: the result of %s states %v, the ledger has %v", id, stated, kept)
		}
	}
}

// counted are a report's counts as CLASS/OUTCOME, without those of nothing.
func counted(r *protocol.Report) map[string]int64 {
	out := map[string]int64{}
	for _, c := range r.Counts {
		for outcome, n := range map[protocol.Outcome]int64{
			protocol.Repaired: c.Repaired, protocol.Settled: c.Settled, protocol.Retired: c.Retired, protocol.Reported: c.Reported,
			protocol.Deferred: c.Deferred, protocol.Exhausted: c.Exhausted, protocol.Quarantined: c.QuarantinedCount,
		} {
			if n != 0 {
				out[string(c.Class)+"/"+string(outcome)] = n
			}
		}
	}
	return out
}
