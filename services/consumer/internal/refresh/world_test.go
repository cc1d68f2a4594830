package refresh

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
)

// sums is the smallest projection: a scope's row is the sum of its facts.
type sums struct {
	// hook, if set, runs within Refresh, after the facts were read and written.
	hook func(ctx context.Context, payload []byte, s Scope) error
	// check is Check.
	check func() error
	// resolves counts calls of Resolve.
	mu       sync.Mutex
	resolves int
	inside   map[Scope]int
	doubled  []Scope // scopes that two wrote at once
	// guarded asks the database for that instead: what a killed connection held
	// is free before its worker knows.
	guarded bool
}

type sumsPayload struct {
	Mode   Mode     `json:"mode,omitempty"`
	Scopes [][2]int `json:"scopes"`
	Note   string   `json:"note,omitempty"`
}

func (*sums) Name() string { return "sums" }

func (*sums) Parse(raw []byte, trigger string) (Request, error) {
	var p sumsPayload
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return Request{}, fault.Wrap(err, fault.InvalidArgument, "the payload does not parse").WithField("payload", "does not parse")
	}
	if p.Mode == "" {
		p.Mode = ExistingOnly
	}
	normal, err := json.Marshal(p)
	if err != nil {
		return Request{}, err
	}
	within := fmt.Sprint(p.Mode, p.Scopes)
	return Request{Projection: "sums", Mode: p.Mode, BusinessKey: within, Payload: normal, Range: []byte(within), Trigger: trigger}, nil
}

func (p *sums) Resolve(_ context.Context, _ pgx.Tx, payload []byte, yield func(Scope) error) error {
	p.mu.Lock()
	p.resolves++
	p.mu.Unlock()
	var parsed sumsPayload
	if err := json.Unmarshal(payload, &parsed); err != nil {
		return err
	}
	for _, s := range parsed.Scopes {
		if err := yield(Scope{ID: int64(s[0]), Month: int32(s[1])}); err != nil {
			return err
		}
	}
	return nil
}

func (p *sums) Check(context.Context, pgx.Tx, []byte) error {
	if p.check != nil {
		return p.check()
	}
	return nil
}

func (p *sums) Refresh(ctx context.Context, tx pgx.Tx, payload []byte, s Scope) (Counts, error) {
	if p.guarded {
		if err := p.alone(ctx, tx, s); err != nil {
			return Counts{}, err
		}
	} else {
		p.enter(s, 1)
		defer p.enter(s, -1)
	}
	_, err := tx.Exec(ctx, `INSERT INTO sum_row (scope_id, month, total, writes)
		SELECT $1, $2, COALESCE(sum(amount), 0), 1 FROM fact WHERE scope_id = $1 AND month = $2
		ON CONFLICT (scope_id, month) DO UPDATE SET total = excluded.total, writes = sum_row.writes + 1`, s.ID, s.Month)
	if err != nil {
		return Counts{}, err
	}
	if p.hook != nil {
		if err := p.hook(ctx, payload, s); err != nil {
			return Counts{}, err
		}
	}
	return Counts{Differences: 1, Updated: 1}, nil
}

func (p *sums) enter(s Scope, by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inside == nil {
		p.inside = map[Scope]int{}
	}
	p.inside[s] += by
	if p.inside[s] > 1 {
		p.doubled = append(p.doubled, s)
	}
}

// alone notes a scope that another live transaction is writing.
func (p *sums) alone(ctx context.Context, tx pgx.Tx, s Scope) error {
	// Locked as the guard is: free once the transaction that held it has ended.
	tag, err := tx.Exec(ctx, `SELECT FROM busy WHERE scope_id = $1 FOR UPDATE SKIP LOCKED`, s.ID)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.doubled = append(p.doubled, s)
	}
	return nil
}

type world struct {
	*Engine
	*testing.T
	sums *sums
	pool *pgxpool.Pool
	dsn  string
	ctx  context.Context
}

// setup makes an engine on a database of its own, with settings changed by change.
func setup(t *testing.T, change ...func(*Settings)) *world {
	t.Helper()
	w := &world{T: t, dsn: pgtest.Consumer(t), sums: &sums{}, ctx: t.Context()}
	w.pool = w.open(pg.PoolConfig{MaxConns: 16})
	w.exec(`CREATE TABLE fact (scope_id bigint NOT NULL, month int NOT NULL, amount bigint NOT NULL);
		CREATE INDEX ON fact (scope_id, month);
		CREATE TABLE sum_row (scope_id bigint, month int, total bigint NOT NULL, writes int NOT NULL, PRIMARY KEY (scope_id, month))`)
	w.Engine = w.engine("w", change...)
	return w
}

func (w *world) open(c pg.PoolConfig) *pgxpool.Pool {
	w.Helper()
	c.DSN = w.dsn
	pool, err := pg.Open(w.ctx, c)
	w.must(err)
	w.Cleanup(pool.Close)
	return pool
}

func (w *world) engine(worker string, change ...func(*Settings)) *Engine {
	w.Helper()
	set := Defaults()
	for _, c := range change {
		c(&set)
	}
	e, err := New(Options{
		Pool: w.pool, Leases: w.open(pg.PoolConfig{MaxConns: 2}), Worker: worker, Settings: set, Projections: []Projection{w.sums}, Log: zap.NewNop(),
	})
	w.must(err)
	return e
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	_, err := w.pool.Exec(w.ctx, sql, args...)
	w.must(err)
}

func one[T any](w *world, sql string, args ...any) (value T) {
	w.Helper()
	w.must(w.pool.QueryRow(w.ctx, sql, args...).Scan(&value))
	return value
}

// payload names the scopes (id, 202601) for the ids.
func payload(ids ...int) []byte { return payloadOf(sumsPayload{}, ids...) }

func payloadOf(p sumsPayload, ids ...int) []byte {
	for _, id := range ids {
		p.Scopes = append(p.Scopes, [2]int{id, 202601})
	}
	raw, _ := json.Marshal(p)
	return raw
}

func upTo(n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = i + 1
	}
	return ids
}

func (w *world) parse(in Input) Request {
	w.Helper()
	in.Projection = "sums"
	req, err := w.Parse(in)
	w.must(err)
	return req
}

func (w *world) submit(in Input) Submitted {
	w.Helper()
	out, err := w.SubmitNow(w.ctx, w.parse(in))
	w.must(err)
	return out
}

// task reads a task as people see it.
func (w *world) task(id uuid.UUID) *Detail {
	w.Helper()
	d, err := w.Task(w.ctx, id)
	w.must(err)
	return d
}

func (w *world) run(limit int) RunResult {
	w.Helper()
	r, err := w.RunDue(w.ctx, limit)
	w.must(err)
	return r
}

func (w *world) claim(e *Engine) *job {
	w.Helper()
	j, err := e.claimDue(w.ctx)
	w.must(err)
	if j == nil {
		w.Fatal("nothing could be claimed")
	}
	return j
}

// due makes every task due now.
func (w *world) due() {
	w.exec(`UPDATE lockstep.refresh_task SET due_at = now() - interval '1 second'`)
}

// lapse ends every lease.
func (w *world) lapse() {
	w.exec(`UPDATE lockstep.refresh_progress SET lease_until = now() - interval '1 hour' WHERE claim_token IS NOT NULL`)
}

func (w *world) equal(got, want any, what string) {
	w.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// order lists the scope ids of the running generation in their order.
func (w *world) order(id uuid.UUID) []int64 {
	w.Helper()
	rows, err := w.Scopes(w.ctx, id, nil, 0, 10_000)
	w.must(err)
	var ids []int64
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

// arrivals lets scopes wait inside Refresh until they are let go.
type arrivals struct {
	in  chan Scope
	out chan struct{}
}

func newArrivals() *arrivals { return &arrivals{in: make(chan Scope, 1000), out: make(chan struct{})} }

func (a *arrivals) hook(ctx context.Context, _ []byte, s Scope) error {
	a.in <- s
	select {
	case <-a.out:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait returns the next scopes that are inside.
func (a *arrivals) wait(t *testing.T, n int) []Scope {
	t.Helper()
	var got []Scope
	for range n {
		select {
		case s := <-a.in:
			got = append(got, s)
		case <-time.After(30 * time.Second):
			t.Fatalf("only %d of %d scopes arrived", len(got), n)
		}
	}
	slices.SortFunc(got, func(x, y Scope) int { return int(x.ID - y.ID) })
	return got
}

// until asks the database again and again; each question waits for its answer.
func (w *world) until(sql string, want int) {
	w.Helper()
	for start := time.Now(); one[int](w, sql) != want; {
		if time.Since(start) > 30*time.Second {
			w.Fatalf("%s never gave %d", sql, want)
		}
	}
}
