package bills

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"lockstep.dev/services/consumer/internal/refresh"
)

// engine runs this projection as the consumer does.
func (w *world) engine(t testing.TB) *refresh.Engine {
	t.Helper()
	leases, err := pgxpool.NewWithConfig(t.Context(), w.pool.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(leases.Close)
	engine, err := refresh.New(refresh.Options{
		Pool: w.pool, Leases: leases, Worker: "test", Settings: refresh.Defaults(), Projections: []refresh.Projection{w.Projection}, Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

// submit makes a task or its next generation.
func submit(t testing.TB, engine *refresh.Engine, payload string) refresh.Submitted {
	t.Helper()
	request, err := engine.Parse(refresh.Input{Projection: Name, Payload: []byte(payload)})
	if err != nil {
		t.Fatal(err)
	}
	out, err := engine.SubmitNow(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// 250 scopes are three claims of at most 100; after the first two the task has
// scopes left, after the third it has succeeded.
func TestAGenerationOf250ScopesTakesThreeClaims(t *testing.T) {
	w := setup(t, Options{})
	w.load(t, 250, 2)
	engine := w.engine(t)
	out := submit(t, engine, `{"month_from":"202608","month_to":"202608"}`)
	for i, want := range []struct {
		state  string
		scopes int64
	}{{"PENDING", 100}, {"PENDING", 100}, {"SUCCESS", 50}} {
		result, err := engine.RunDue(t.Context(), 1)
		if err != nil || result.Err() != nil {
			t.Fatal(err, result.Err())
		}
		var state string
		if err := w.pool.QueryRow(t.Context(), `SELECT state FROM lockstep.refresh_task WHERE task_id = $1`, out.TaskID).Scan(&state); err != nil {
			t.Fatal(err)
		}
		if state != want.state || result.Scopes != want.scopes || result.Counts.Differences != 2*want.scopes {
			t.Errorf("claim %d: %s, %+v; want %s after %d scopes", i+1, state, result, want.state, want.scopes)
		}
	}
	again, err := engine.RunDue(t.Context(), 1)
	if err != nil || again.Claims != 0 {
		t.Errorf("a fourth claim: %+v (%v)", again, err)
	}
}

// A review whose facts turn out untrue fails its task, with the code, and writes nothing.
func TestAReviewThatIsNotBorneOutFailsItsTask(t *testing.T) {
	w := setup(t, Options{})
	w.reviewed(t)
	w.insert(t, difference{ID: 1, PartnerBillID: ptr(int64(900))}, payable(nil))
	engine := w.engine(t)
	out := submit(t, engine, reviewText)
	w.exec(t, `UPDATE bills.order_approval SET approval_status = 'REJECTED'`)
	if _, err := engine.RunDue(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := w.pool.QueryRow(t.Context(), `SELECT state || ' ' || code FROM lockstep.refresh_task WHERE task_id = $1`, out.TaskID).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if got != "FAILED IDENTITY_MISMATCH" {
		t.Errorf("the task is %s", got)
	}
	if rows := w.everything(t, "bill_snapshot"); rows != "" {
		t.Errorf("there is a snapshot: %s", rows)
	}
}

// BenchmarkWholeRefresh is a request of 1 000 scopes with 100 differences each,
// through the engine, on facts that changed.
func BenchmarkWholeRefresh(b *testing.B) {
	const stations, each = 1000, 100
	w := setup(b, Options{})
	w.load(b, stations, each)
	engine := w.engine(b)
	for b.Loop() {
		b.StopTimer()
		w.exec(b, `UPDATE bills.payment_result SET paid_amount = paid_amount + 1`)
		w.exec(b, `VACUUM ANALYZE`)
		submit(b, engine, `{"month_from":"202608"}`)
		b.StartTimer()
		result, err := engine.RunDue(b.Context(), 100)
		if err == nil {
			err = result.Err()
		}
		if err == nil && result.Counts.Updated != stations*each {
			err = fmt.Errorf("counts %+v", result.Counts)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(stations*each*b.N)/b.Elapsed().Seconds(), "differences/s")
}
