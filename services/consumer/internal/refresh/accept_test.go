package refresh

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
)

func TestManyRequestsAtOnceAreAnsweredEachForItself(t *testing.T) {
	w := setup(t)
	all := func(requests ...Request) (out []Submitted, err error) {
		err = pg.InTx(w.ctx, w.pool, func(tx pgx.Tx) error {
			out, err = w.SubmitAll(w.ctx, tx, requests)
			return err
		})
		return out, err
	}
	w.submit(Input{Payload: payload(1)})
	cancelled := w.submit(Input{Payload: payload(2)})
	w.must(w.Cancel(w.ctx, "anna", cancelled.TaskID, "no"))
	w.submit(Input{Payload: payload(3), SourceEventID: "e3"})
	w.submit(Input{Payload: payload(4), BusinessKey: "mine"})
	requests := []Request{
		w.parse(Input{Payload: payload(5), SourceEventID: "e5", Trigger: "import"}), w.parse(Input{Payload: payload(4), SourceEventID: "e4"}),
		w.parse(Input{Payload: payload(3), SourceEventID: "e3"}), w.parse(Input{Payload: payload(2)}), w.parse(Input{Payload: payload(1)}),
		w.parse(Input{Payload: payload(6), BusinessKey: "mine"}),
	}
	out, err := all(requests...)
	w.must(err)
	var got []any
	for _, s := range out {
		got = append(got, s.Outcome, s.Generation, s.Code)
	}
	w.equal(got, []any{
		Created, 1, fault.None, Created, 1, fault.None, Unchanged, 1, fault.None, Refused, 1, fault.CancelledByOperator,
		Advanced, 2, fault.None, Refused, 1, fault.KeyRangeMismatch,
	}, "answers, in the order of the requests")
	w.equal(one[string](w, `SELECT string_agg(source_event_id || ':' || generation, ' ' ORDER BY source_event_id) FROM lockstep.refresh_event`),
		"e3:1 e4:1 e5:1", "events")
	w.equal(one[string](w, `SELECT requested_by FROM lockstep.refresh_task WHERE task_id = $1`, out[0].TaskID), "import", "trigger")
	w.equal(one[int64](w, `SELECT request_generation FROM lockstep.refresh_task WHERE business_key = 'EXISTING_ONLY[[1 202601]]'`), 2, "stored generation")

	if _, err := all(requests[0], requests[0]); fault.ReasonOf(err) != fault.InvalidArgument {
		t.Errorf("one key twice: %v", err)
	}
}

// Two repairs that ask for the same scopes, each in an order of its own, wait
// for each other and don't deadlock.
func TestRequestsInAnyOrderDoNotDeadlock(t *testing.T) {
	w := setup(t)
	requests := make([]Request, 0, 40)
	for i := range 40 {
		requests = append(requests, w.parse(Input{Payload: payload(i + 1)}))
	}
	backwards := slices.Clone(requests)
	slices.Reverse(backwards)
	const rounds = 25
	var group sync.WaitGroup
	for _, list := range [][]Request{requests, backwards} {
		group.Go(func() {
			for range rounds {
				err := pgx.BeginFunc(w.ctx, w.pool, func(tx pgx.Tx) error { // no retry: a deadlock would show
					_, err := w.SubmitAll(context.WithoutCancel(w.ctx), tx, list)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	w.equal(one[string](w, `SELECT min(request_generation) || ' ' || max(request_generation) FROM lockstep.refresh_task`), "50 50", "generations")
}
