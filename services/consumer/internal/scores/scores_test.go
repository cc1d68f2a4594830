package scores_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/services/consumer/internal/refresh"
	"lockstep.dev/services/consumer/internal/scores"
)

type world struct {
	*testing.T
	pool   *pgxpool.Pool
	engine *refresh.Engine
}

func setup(t *testing.T) *world {
	t.Helper()
	pool, err := pg.Open(t.Context(), pg.PoolConfig{DSN: pgtest.Consumer(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	engine, err := refresh.New(refresh.Options{
		Pool: pool, Leases: pool, Worker: "w", Settings: refresh.Defaults(), Projections: []refresh.Projection{scores.Projection{}}, Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return &world{T: t, pool: pool, engine: engine}
}

func (w *world) exec(sql string) {
	w.Helper()
	if _, err := w.pool.Exec(w.Context(), sql); err != nil {
		w.Fatal(err)
	}
}

// refresh runs a request to its end and returns what it did.
func (w *world) refresh(payload string) refresh.Counts {
	w.Helper()
	req, err := w.engine.Parse(refresh.Input{Projection: scores.Name, Payload: []byte(payload)})
	if err != nil {
		w.Fatal(err)
	}
	out, err := w.engine.RefreshNow(w.Context(), req)
	if err != nil || out.State != refresh.NowDone {
		w.Fatalf("refresh: %s, %v", out.State, err)
	}
	d, err := w.engine.Task(w.Context(), out.TaskID)
	if err != nil {
		w.Fatal(err)
	}
	return d.Counts
}

func (w *world) score(candidate int64) scores.Score {
	w.Helper()
	s, err := scores.NewReader(w.pool).Score(context.Background(), candidate, 202607)
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *world) equal(got, want any, what string) {
	w.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("%s: got %v, want %v", what, got, want)
	}
}

const creating = `{"mode":"REVIEW_CREATE","scopes":[{"candidate_id":1,"period":202607}]}`

func TestScores(t *testing.T) {
	w := setup(t)
	w.exec(`INSERT INTO scores.candidate_fact (candidate_id, id, period, dimension, value, weight) VALUES
		(1, 1, 202607, 1, 80, 1), (1, 2, 202607, 1, 50, 2), (1, 3, 202607, 4, 71.25, 1), (1, 4, 202606, 2, 10, 1), (2, 1, 202607, 3, 33, 1)`)

	existing := w.refresh(`{"scopes":[{"candidate_id":1,"period":202607}]}`)
	w.equal([]any{existing.Missed, existing.MissedIDs, existing.Created}, []any{1, []int64{1}, 0}, "EXISTING_ONLY without a row: missed, and listed")

	w.equal(w.refresh(creating).Created, 1, "created")
	s := w.score(1)
	w.equal(s.Dimensions, map[string]string{"skills": "60.00", "interview": "71.25"}, "dimensions: (80 + 2 x 50) / 3, and the one fact")
	w.equal([]any{s.Total, s.RefreshVersion, s.Found}, []any{"65.63", 1, true}, "total, version")

	again := w.refresh(creating)
	w.equal([]any{again.Unchanged, again.Updated}, []any{1, 0}, "the same facts again")
	w.equal(w.score(1).RefreshVersion, 1, "version of a row that was not rewritten")

	w.exec(`UPDATE scores.candidate_fact SET value = 60 WHERE candidate_id = 1 AND id = 1`)
	w.equal(w.refresh(creating).Updated, 1, "updated")
	s = w.score(1)
	w.equal([]any{s.Dimensions["skills"], s.RefreshVersion}, []any{"53.33", 2}, "after a fact changed")

	w.exec(`DELETE FROM scores.candidate_fact WHERE candidate_id = 1`)
	w.equal(w.refresh(creating).Updated, 1, "updated")
	s = w.score(1)
	w.equal([]any{len(s.Dimensions), s.Total, s.Found}, []any{0, "", true}, "after the facts are gone")

	unknown := w.refresh(`{"mode":"REVIEW_CREATE","scopes":[{"candidate_id":77,"period":202607}]}`)
	w.equal([]any{unknown.Warnings, unknown.Created, unknown.Missed}, []any{1, 0, 0}, "a candidate nobody knows")
	w.equal(w.score(77), scores.Score{CandidateID: 77, Period: 202607, Dimensions: map[string]string{}}, "the score of a candidate without a row")
}

func TestRanges(t *testing.T) {
	w := setup(t)
	w.exec(`INSERT INTO scores.candidate_fact (candidate_id, id, period, dimension, value)
		SELECT c, p, 202600 + p, 1, 10 FROM generate_series(1, 3) c, generate_series(1, 6) p`)
	for payload, want := range map[string]int64{
		`{"mode":"REVIEW_CREATE","candidate_ids":[2]}`:                                                                    6,
		`{"mode":"REVIEW_CREATE","candidate_ids":[2,3],"first_period":202603,"last_period":202604}`:                       4,
		`{"mode":"REVIEW_CREATE","first_period":202606}`:                                                                  3,
		`{"mode":"REVIEW_CREATE","scopes":[{"candidate_id":1,"period":202601}],"candidate_ids":[1],"last_period":202602}`: 2,
		`{"mode":"REVIEW_CREATE","scopes":[{"candidate_id":1,"period":202601},{"candidate_id":1,"period":202601}]}`:       1,
		`{"mode":"REVIEW_CREATE","candidate_ids":[9]}`:                                                                    0,
	} {
		c := w.refresh(payload)
		w.equal(c.Created+c.Unchanged, want, payload)
	}
}

func TestParse(t *testing.T) {
	parse := scores.Projection{}.Parse
	a, err := parse([]byte(`{"scopes":[{"candidate_id":2,"period":202601},{"candidate_id":1,"period":202602},{"candidate_id":2,"period":202601}]}`), "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := parse([]byte(`{"mode":"EXISTING_ONLY","scopes":[{"candidate_id":1,"period":202602},{"candidate_id":2,"period":202601}]}`), "")
	if err != nil || a.BusinessKey != b.BusinessKey {
		t.Errorf("equal ranges have the keys %s and %s (%v)", a.BusinessKey, b.BusinessKey, err)
	}
	if c, err := parse(a.Payload, ""); err != nil || c.BusinessKey != a.BusinessKey || string(c.Payload) != string(a.Payload) {
		t.Errorf("the normal form of the normal form is %s (%v)", c.Payload, err)
	}
	for _, raw := range []string{
		``, `{`, `[]`, `{}`, `{"scopes":[]}`, `{"scope":[]}`, `{"mode":"ALL","candidate_ids":[1]}`, `{"candidate_ids":[0]}`, `{"candidate_ids":[1]} {}`,
		`{"scopes":[{"candidate_id":1,"period":202613}]}`, `{"scopes":[{"candidate_id":-1,"period":202601}]}`, `{"first_period":1}`,
		`{"first_period":202602,"last_period":202601}`, `{"candidate_ids":[1.5]}`,
	} {
		if _, err := parse([]byte(raw), ""); fault.ReasonOf(err) != fault.InvalidArgument || len(fault.FieldsOf(err)) == 0 {
			t.Errorf("%s gave %v, want INVALID_ARGUMENT with fields", raw, err)
		}
	}
}
