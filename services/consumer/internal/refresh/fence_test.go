package refresh

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/claim/claimtest"
)

func TestFence(t *testing.T) {
	t.Run("a_request_comes_during_the_claim", func(t *testing.T) { fence(t, true) })
	t.Run("the_same_generation_is_taken_over", func(t *testing.T) { fence(t, false) })
}

func fence(t *testing.T, requests bool) {
	w := setup(t)
	next := 0
	held := map[claim.Claim]*job{}
	end := func(event Event) func(context.Context, claim.Claim) error {
		return func(ctx context.Context, c claim.Claim) error {
			_, err := w.conclude(ctx, held[c], ending{event: event, code: "INTERNAL"})
			return err
		}
	}
	site := claimtest.Site{
		Site: Site, Pool: w.pool,
		NewRow: func(context.Context) (uuid.UUID, error) {
			next++
			out := w.submit(Input{Payload: payload(next)})
			w.exec(`INSERT INTO fact VALUES ($1, 202601, 7)`, next)
			return out.TaskID, nil
		},
		Take: func(ctx context.Context, worker string) (claim.Claim, bool, error) {
			j, err := w.engine1(worker).claimDue(ctx)
			if err != nil || j == nil {
				return claim.Claim{}, false, err
			}
			held[j.claim] = j
			return j.claim, true, w.prepare(ctx, j)
		},
		Stale: map[string]func(context.Context, claim.Claim) error{
			"conclusion": end(AllDone), "failure": end(Broken), "give-back": end(GivenBack), "page": end(PageDone),
			"renewal": w.renew,
			"effect": func(ctx context.Context, c claim.Claim) error {
				_, err := w.refreshScope(ctx, held[c], Scope{ID: int64(next), Month: 202601})
				return err
			},
			"failed scope": func(ctx context.Context, c claim.Claim) error {
				return w.markFailed(ctx, held[c], Scope{ID: int64(next), Month: 202601}, "INTERNAL", "")
			},
			"resolution": func(ctx context.Context, c claim.Claim) error { return w.resolve(ctx, held[c]) },
		},
		Effects: func(ctx context.Context, id uuid.UUID) (n int, err error) {
			err = w.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM sum_row) + (SELECT count(*) FROM lockstep.refresh_scope WHERE task_id = $1 AND state <> 'PENDING')`, id).Scan(&n)
			return n, err
		},
		// The request that comes during the claim is taken by the younger claim,
		// as its generation; one more comes before its conclusion.
		Request: func(context.Context, uuid.UUID) error {
			w.submit(Input{Payload: payload(next)})
			return nil
		},
		Conclude: func(ctx context.Context, c claim.Claim) error {
			w.submit(Input{Payload: payload(next)})
			event, err := w.conclude(ctx, held[c], ending{event: AllDone})
			if err == nil && event != Superseded {
				return errors.New("concluded as " + string(event) + " over a newer request")
			}
			return err
		},
		Pending: func(ctx context.Context, id uuid.UUID) (bool, error) {
			var pending bool
			err := w.pool.QueryRow(ctx, `SELECT state = 'PENDING' AND request_generation = 3 FROM lockstep.refresh_task WHERE task_id = $1`, id).Scan(&pending)
			if err != nil || !pending {
				return pending, err
			}
			result, err := w.RunDue(ctx, 1) // and it is served
			return result.Succeeded == 1, err
		},
	}
	if !requests {
		site.Request, site.Pending = nil, nil
		site.Conclude = func(ctx context.Context, c claim.Claim) error {
			if _, err := w.refreshScope(ctx, held[c], Scope{ID: int64(next), Month: 202601}); err != nil {
				return err
			}
			_, err := w.conclude(ctx, held[c], ending{event: AllDone})
			return err
		}
	}
	claimtest.Run(t, site)
	w.equal(one[int](w, `SELECT count(*) FROM sum_row WHERE total = 7 AND writes = 1`), strconv.Itoa(claimtest.Rounds), "rows written once, by the last owner")
}

// engine1 is the engine under another worker's name.
func (w *world) engine1(worker string) *Engine {
	e := *w.Engine
	e.worker = worker
	return &e
}
