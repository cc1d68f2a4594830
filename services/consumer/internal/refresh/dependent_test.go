package refresh

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
)

func sumsDependent() []Dependent {
	return []Dependent{{Projection: "sums", ID: "bill.station", Month: "bill.month", Payload: func(scopes []Scope) ([]byte, error) {
		var p sumsPayload
		for _, s := range scopes {
			p.Scopes = append(p.Scopes, [2]int{int(s.ID), int(s.Month)})
		}
		return json.Marshal(p)
	}}}
}

func TestWhatDependsOnReconciledRecords(t *testing.T) {
	d := &sumsDependent()[0]
	for content, want := range map[string][]Scope{
		`{"bill":{"station":7,"month":"202608"}}`:                {{7, 202608}},
		`{"bill":{"station":"7","month":"2026-08"}}`:             {{7, 202608}},
		`{"bill":{"station":9007199254740993,"month":202608}}`:   {{9007199254740993, 202608}},
		`{"bill":{"station":7,"month":"2026-08-31T00:00:00Z"}}`:  {{7, 202608}},
		`{"bill":{"station":0,"month":"202608"}}`:                nil,
		`{"bill":{"station":7.5,"month":"202608"}}`:              nil,
		`{"bill":{"station":7,"month":"202613"}}`:                nil,
		`{"bill":{"station":7}}`:                                 nil,
		`{"bill":7}`:                                             nil,
		`null`:                                                   nil,
		`{"bill":{"station":7,"month":"202608"}`:                 nil,
		`{"bill":{"station":7,"month":"202608","station":"x"}} `: nil,
	} {
		w := &world{T: t}
		w.equal(d.scopes([][]byte{[]byte(content), nil}), want, content)
	}
	w := &world{T: t}
	w.equal(d.scopes([][]byte{
		[]byte(`{"bill":{"station":9,"month":"202608"}}`), []byte(`{"bill":{"station":7,"month":"202608"}}`), []byte(`{"bill":{"station":9,"month":"202608"}}`),
	}), []Scope{{7, 202608}, {9, 202608}}, "sorted, each once")
}

func TestADependentRefreshIsCommittedWithItsRepair(t *testing.T) {
	w := setup(t)
	contents := [][]byte{[]byte(`{"bill":{"station":1,"month":"202601"}}`), []byte(`{"bill":{"station":2,"month":"202601"}}`), []byte(`{}`)}
	var asked []Submitted
	repair := func(fail error) error {
		return pg.InTx(w.ctx, w.pool, func(tx pgx.Tx) (err error) {
			if _, err := tx.Exec(w.ctx, `INSERT INTO fact VALUES (1, 202601, 5), (2, 202601, 6)`); err != nil {
				return err
			}
			if asked, err = w.RequestDependent(w.ctx, tx, sumsDependent(), contents); err != nil {
				return err
			}
			return fail
		})
	}
	if err := repair(pgx.ErrNoRows); err == nil {
		t.Fatal("the repair was to fail")
	}
	w.equal(one[int](w, `SELECT count(*) FROM lockstep.refresh_task`), 0, "tasks of a repair that was rolled back")
	w.must(repair(nil))
	w.equal(len(asked), 2, "requests, one a scope")
	w.Committed(asked...)
	w.equal(w.run(10).Succeeded, 2, "succeeded")
	w.equal(one[string](w, `SELECT string_agg(scope_id || '=' || total, ' ' ORDER BY scope_id) FROM sum_row`), "1=5 2=6", "rows")
	w.must(repair(nil))
	w.equal(one[int](w, `SELECT count(*) FROM lockstep.refresh_task WHERE request_generation = 2`), 2, "the same scopes again are the same tasks")
}

// A host may submit to a task and then change the very record that is being
// repaired: the repair gives up, so that the host is never the one.
func TestADependentRefreshDoesNotWaitForAHost(t *testing.T) {
	w := setup(t)
	contents := [][]byte{[]byte(`{"bill":{"station":1,"month":"202601"}}`)}
	request := func(ctx context.Context, after func(tx pgx.Tx)) error {
		return pg.InTx(ctx, w.pool, func(tx pgx.Tx) error {
			_, err := w.RequestDependent(ctx, tx, sumsDependent(), contents)
			if err == nil {
				after(tx)
			}
			return err
		})
	}
	w.must(request(w.ctx, func(host pgx.Tx) {
		soon, cancel := context.WithTimeout(w.ctx, 4*time.Second) // the pool's own bound is five
		defer cancel()
		if err := request(soon, func(pgx.Tx) { t.Error("it waited for the host and went on") }); pg.Code(err) != "55P03" {
			t.Errorf("while a host holds the task: %v", err)
		}
		var timeout string
		w.must(host.QueryRow(w.ctx, `SHOW lock_timeout`).Scan(&timeout))
		w.equal(timeout, "5s", "the rest of the transaction waits as ever")
	}))
}
