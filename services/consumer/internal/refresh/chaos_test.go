package refresh

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
)

// The world of TestManyWorkersEqualOne.
const (
	chaosScopes  = 1000
	chaosTasks   = 16
	chaosWorkers = 8
	chaosRounds  = 60
)

// TestManyWorkersEqualOne runs eight workers over tasks that overlap, while
// facts change, requests come again, leases lapse and connections are killed;
// then the faults end, and every row must be what one pass over the facts gives.
func TestManyWorkersEqualOne(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	w := setup(t, func(s *Settings) {
		s.PageScopes, s.ScopesAtOnce = 25, 2
		s.Retries, s.RetryDelays = 100, []time.Duration{time.Millisecond}
	})
	victims := w.open(pg.PoolConfig{MaxConns: 20, AppName: "victim"})
	w.sums.hook = nil
	facts := map[int]int{} // the twin's world: scope to sum
	for id := 1; id <= chaosScopes; id++ {
		facts[id] = random.IntN(1000)
	}
	w.exec(`CREATE TABLE busy AS SELECT generate_series(1, $1::bigint) AS scope_id`, chaosScopes)
	w.exec(`CREATE INDEX ON busy (scope_id)`)
	for id, amount := range facts {
		w.exec(`INSERT INTO fact VALUES ($1, 202601, $2)`, id, amount)
	}
	w.sums.guarded = true

	ranges := make([][]int, chaosTasks)
	for id := 1; id <= chaosScopes; id++ { // each scope in two or three tasks
		for range 2 + random.IntN(2) {
			n := random.IntN(chaosTasks)
			if r := ranges[n]; len(r) == 0 || r[len(r)-1] != id {
				ranges[n] = append(r, id)
			}
		}
	}
	request := func(n int) Request {
		return w.parse(Input{Payload: payload(ranges[n]...), BusinessKey: fmt.Sprintf("range-%d", n)})
	}
	for n := range ranges {
		_, err := w.SubmitNow(w.ctx, request(n))
		w.must(err)
	}

	ctx, stop := context.WithCancel(w.ctx)
	var workers sync.WaitGroup
	for i := range chaosWorkers {
		e := w.engine1(fmt.Sprintf("worker-%d", i))
		e.pool = victims
		workers.Go(func() {
			for ctx.Err() == nil {
				if r, err := e.RunDue(ctx, 1); err != nil || r.Claims == 0 {
					select { // killed, or idle: look again soon
					case <-ctx.Done():
					case <-time.After(5 * time.Millisecond):
					}
				}
			}
		})
	}
	for range chaosRounds {
		n := random.IntN(chaosTasks)
		switch random.IntN(4) {
		case 0: // a fact changes, and its refresh is asked for in the same transaction
			id, by := ranges[n][random.IntN(len(ranges[n]))], random.IntN(100)
			facts[id] += by
			w.must(pg.InTx(w.ctx, w.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(w.ctx, `INSERT INTO fact VALUES ($1, 202601, $2)`, id, by); err != nil {
					return err
				}
				_, err := w.Submit(w.ctx, tx, request(n))
				return err
			}))
		case 1:
			w.lapse()
		case 2:
			w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim' AND datname = current_database()
				AND state <> 'idle' ORDER BY random() LIMIT 2`)
		default: // let them work
			w.until(`SELECT (pg_sleep(0.05) IS NOT NULL)::int`, 1)
		}
	}

	// The faults are over: it ends by itself, but for leases that would take minutes.
	for start := time.Now(); one[int](w, `SELECT count(*) FROM lockstep.refresh_task WHERE state <> 'SUCCESS'`) > 0; w.lapseDead() {
		if time.Since(start) > 2*time.Minute {
			t.Fatal("some task never succeeded")
		}
	}
	stop()
	workers.Wait()
	if len(w.sums.doubled) > 0 {
		t.Errorf("scopes written by two at once: %v", w.sums.doubled)
	}
	rows, err := w.pool.Query(w.ctx, `SELECT scope_id, total FROM sum_row`)
	w.must(err)
	got := map[int]int{}
	var id, total int
	_, err = pgx.ForEachRow(rows, []any{&id, &total}, func() error { got[id] = total; return nil })
	w.must(err)
	for id, want := range facts {
		if got[id] != want {
			t.Errorf("scope %d is %d, want %d", id, got[id], want)
		}
	}
	w.equal(one[int](w, `SELECT count(*) FROM lockstep.refresh_progress WHERE claim_token IS NOT NULL`), 0, "claims left")
	w.equal(one[int](w, `SELECT count(*) FROM lockstep.refresh_scope WHERE state <> 'DONE'`), 0, "scopes left")
}

// lapseDead ends the leases of tasks that no connection works on: their worker was killed.
func (w *world) lapseDead() {
	var held []uuid.UUID
	rows, err := w.pool.Query(w.ctx, `SELECT task_id FROM lockstep.refresh_progress WHERE claim_token IS NOT NULL AND claimed_at < now() - interval '3 seconds'`)
	w.must(err)
	held, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	w.must(err)
	w.exec(`UPDATE lockstep.refresh_progress SET lease_until = now() - interval '1 second' WHERE task_id = ANY($1) AND claim_token IS NOT NULL`, held)
}
