package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"lockstep.dev/pkg/pglocal"
	"lockstep.dev/pkg/pgtest"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/internal/process"
)

const (
	arenaForms = 5
	arenaRows  = 250
	// lossRate is the share of COMMITs whose answer is lost while answers are lost.
	lossRate = 0.2
	// standstill is longer than any lease that a stopped process may hold.
	standstill = 4 * time.Second
)

// arena is two services, two replicas each, over databases of their own, with
// something between all of them that can break.
type arena struct {
	*stack
	rand    *rand.Rand // chooses what breaks, where and for how long
	cluster *pglocal.Cluster
	wires   map[string]*toxiproxy.Proxy
	nodes   []*replica
	round   int

	happens map[string]int
	losing  atomic.Bool
	lost    atomic.Int64
}

// replica is a process that is started again whenever it was killed.
type replica struct {
	start func() (*process.Process, string)
	*process.Process
	ready string
}

// The wires of an arena.
const (
	wireCalls      = "consumer to center"
	wireDispatch   = "center to consumer"
	wireCenterDB   = "center to its database"
	wireConsumerDB = "consumer to its database"
)

func newArena(t *testing.T, seed uint64) *arena {
	t.Helper()
	t.Logf("seed %d: LOCKSTEP_SEED=%d breaks the same things in the same order", seed, seed)
	dir, err := pgtest.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := pgtest.Start(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cluster.StopImmediate()
		_ = os.RemoveAll(dir)
	})
	if err := pgtest.Pair(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	a := &arena{
		stack: setupOn(t, cluster.DSN("center"), cluster.DSN("consumer")), cluster: cluster, wires: map[string]*toxiproxy.Proxy{},
		rand: rand.New(rand.NewPCG(seed, 0)), happens: map[string]int{},
	}
	for i := range arenaForms {
		a.fill(arenaForm(i), arenaRows)
	}
	a.wire()
	for i := range 4 {
		a.launchReplica(i)
	}
	a.heal()
	return a
}

func arenaForm(i int) string { return fmt.Sprintf("form-%d", i) }

// freeAddress is one that nobody listens at.
func (s *stack) freeAddress() string {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	s.must(err)
	defer listener.Close() //nolint:errcheck // nothing was sent
	return listener.Addr().String()
}

// wire puts a proxy on every way, and a relay that loses answers to COMMIT
// before the databases.
func (a *arena) wire() {
	a.t.Helper()
	a.centerAddr, a.consumerAddr = a.freeAddress(), a.freeAddress()
	database := func() string { return pgtest.Relay(a.t, a.cluster.SocketFile(), a.onCommit) }
	zerolog.SetGlobalLevel(zerolog.Disabled) // its toxics have a logger of their own
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	for name, upstream := range map[string]string{
		wireCalls: a.centerAddr, wireDispatch: a.consumerAddr, wireCenterDB: database(), wireConsumerDB: database(),
	} {
		proxy := toxiproxy.NewProxy(server, name, "127.0.0.1:0", upstream)
		a.must(proxy.Start())
		a.t.Cleanup(proxy.Stop)
		a.wires[name] = proxy
	}
}

func (a *arena) onCommit() pgtest.Cut {
	if !a.losing.Load() {
		return pgtest.Carry
	}
	if rand.Float64() > lossRate {
		return pgtest.Carry
	}
	a.lost.Add(1)
	return pgtest.AfterCommit
}

// through gives a database's DSN by way of a wire.
func (a *arena) through(wire, dsn string) string {
	a.t.Helper()
	parsed, err := url.Parse(dsn)
	a.must(err)
	parsed.Host, parsed.RawQuery = a.wires[wire].Listen, "sslmode=disable"
	return parsed.String()
}

// launchReplica starts centers (0, 1) and consumers (2, 3).
func (a *arena) launchReplica(i int) {
	a.t.Helper()
	r := &replica{}
	switch i {
	case 0, 1:
		cfg, address := a.centerSettings(), a.centerAddr
		if i == 1 {
			address = a.freeAddress()
		}
		dsn := a.through(wireCenterDB, a.centerDSN)
		change := settings{
			"store": settings{"dsn": dsn, "max_conns": 8}, "source": settings{"dsn": dsn, "max_conns": 4},
			"targets": settings{consumerApp: a.wires[wireDispatch].Listen}, "max_in_flight_per_consumer": 4, "max_tasks_per_run": arenaForms,
		}
		r.start = func() (*process.Process, string) { return a.launch("center", address, "", cfg, change) }
	default:
		cfg, address := a.consumerSettings(), a.consumerAddr
		if i == 3 {
			address = a.freeAddress()
		}
		change := settings{
			"store":  settings{"dsn": a.through(wireConsumerDB, a.consumDSN), "max_conns": 8},
			"center": settings{"address": a.wires[wireCalls].Listen},
		}
		r.start = func() (*process.Process, string) { return a.launch("consumer", address, "", cfg, change) }
	}
	r.Process, r.ready = r.start()
	a.nodes = append(a.nodes, r)
}

// wait lets a while pass, up to most: faults have a duration.
func (a *arena) wait(most time.Duration) { pause(time.Duration(a.rand.Int64N(int64(most)))) }

func pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// toxics are all that toxiproxy knows, each strong enough to be felt.
var toxics = map[string]map[string]any{
	"latency":    {"latency": 150, "jitter": 150},
	"bandwidth":  {"rate": 30}, // KB/s
	"slow_close": {"delay": 400},
	"timeout":    {"timeout": 250}, // swallows, then hangs up
	"reset_peer": {"timeout": 100},
	"slicer":     {"average_size": 40, "size_variation": 20, "delay": 100},
	"limit_data": {"bytes": 3000}, // then hangs up
}

// breakage is one thing that goes wrong for a while.
type breakage struct {
	name string
	do   func(a *arena)
}

// allFaults is every kind at least once.
func allFaults() (all []breakage) {
	for kind, attributes := range toxics {
		for _, stream := range []string{"upstream", "downstream"} {
			all = append(all, breakage{kind + " " + stream, func(a *arena) { a.poison(kind, stream, attributes) }})
		}
	}
	for f, times := range map[*breakage]int{
		{"kill", (*arena).kill}: 4, {"stop", (*arena).stop}: 1, {"restart PostgreSQL", (*arena).restartPostgres}: 4, {"lose commits", (*arena).loseCommits}: 5,
	} {
		for range times {
			all = append(all, *f)
		}
	}
	// Maps have no order; a seed is to find the same one.
	slices.SortFunc(all, func(x, y breakage) int { return strings.Compare(x.name, y.name) })
	return all
}

func (a *arena) poison(kind, stream string, attributes map[string]any) {
	a.t.Helper()
	names := []string{wireCalls, wireDispatch, wireCenterDB, wireConsumerDB}
	proxy := a.wires[names[a.rand.IntN(len(names))]]
	text, err := json.Marshal(map[string]any{"type": kind, "stream": stream, "toxicity": 1, "attributes": attributes})
	a.must(err)
	_, err = proxy.Toxics.AddToxicJson(strings.NewReader(string(text)))
	a.must(err)
	a.wait(1200 * time.Millisecond)
	proxy.Toxics.ResetToxics(a.t.Context())
}

// kill kills a replica, and starts it again, not waiting until it is ready.
func (a *arena) kill() {
	a.t.Helper()
	r := a.nodes[a.rand.IntN(len(a.nodes))]
	a.must(r.Kill())
	a.wait(300 * time.Millisecond)
	r.Process, r.ready = r.start()
	a.wait(500 * time.Millisecond)
}

// stop lets a replica stand still past its leases; then it goes on with what it held.
func (a *arena) stop() {
	a.t.Helper()
	r := a.nodes[a.rand.IntN(len(a.nodes))]
	a.must(r.Signal(syscall.SIGSTOP))
	pause(standstill)
	a.must(r.Signal(syscall.SIGCONT))
}

func (a *arena) restartPostgres() {
	a.t.Helper()
	a.must(a.cluster.Restart(a.t.Context(), true))
	a.stack.center.Reset()
	a.consumer.Reset()
}

func (a *arena) loseCommits() {
	a.losing.Store(true)
	a.wait(1500 * time.Millisecond)
	a.losing.Store(false)
}

// heal ends every fault and waits until all replicas are up.
func (a *arena) heal() {
	a.t.Helper()
	a.losing.Store(false)
	for _, proxy := range a.wires {
		proxy.Toxics.ResetToxics(a.t.Context())
	}
	for _, r := range a.nodes {
		select {
		case <-r.Ended():
			a.t.Errorf("a service ended by itself: %v", r.Death())
			r.Process, r.ready = r.start()
		default:
		}
		_, err := r.AwaitReady(a.t.Context(), r.ready)
		a.must(err)
	}
}

// damage breaks some rows of every form, other ones each round, and returns the
// digest of the host's own columns afterwards.
func (a *arena) damage() string {
	a.t.Helper()
	a.round++
	const where = ` WHERE tenant_id = $1 AND answer_id = ANY($2)`
	for i := range arenaForms {
		rows := func(n int) (keys [][16]byte) {
			for range n {
				keys = append(keys, key(arenaForm(i), a.rand.IntN(arenaRows)))
			}
			return keys
		}
		a.exec(false, `DELETE FROM hall.answer_projection`+where, tenant, rows(3))
		a.exec(false, `UPDATE hall.answer_projection SET revision = 2, content_hash = sha256('old'), "values" = '{"old": 1}'`+where, tenant, rows(3))
		a.exec(false, `UPDATE hall.answer_projection SET content_hash = sha256('other'), "values" = '{"other": 1}'`+where, tenant, rows(3))
		a.exec(false, `INSERT INTO hall.answer_projection (tenant_id, answer_id, form_id, revision, content_hash, created_at)
			VALUES ($1, $2, $3, 1, sha256('x'), now() - interval '1 day')`, tenant, key(fmt.Sprintf("extra-%d", a.round), i), arenaForm(i))
	}
	return a.extensions()
}

// write changes records at the center until ctx ends, as its host would; a
// database that is away refuses it, as it would the host.
func (a *arena) write(ctx context.Context) {
	for ctx.Err() == nil {
		_, _ = a.stack.center.Exec(ctx, `UPDATE answers.answer SET revision = revision + 1, "values" = jsonb_build_object('written', revision)
			WHERE tenant_id = $1 AND answer_id = $2`, tenant, key(arenaForm(rand.IntN(arenaForms)), rand.IntN(arenaRows)))
		pause(rand.N(40 * time.Millisecond))
	}
}

// reconcileAll makes a task of every form.
func (a *arena) reconcileAll() {
	a.t.Helper()
	out, err := a.centerAdmin().CreateTask(a.operator(), &centerv1.CreateTaskRequest{Consumer: consumerApp, Scope: evidencev1.Scope_SCOPE_ALL})
	a.must(err)
	if len(out.GetTasks()) != arenaForms {
		a.t.Fatalf("ALL made %d tasks, want %d", len(out.GetTasks()), arenaForms)
	}
}

func (a *arena) count(center bool, sql string) (n int) {
	a.t.Helper()
	pool := a.consumer
	if center {
		pool = a.stack.center
	}
	a.must(pool.QueryRow(a.t.Context(), sql).Scan(&n))
	return n
}

func (a *arena) awaitAll() {
	a.t.Helper()
	a.await("the end of every task", func() bool {
		return a.count(true, `SELECT count(*) FROM lockstep.task WHERE ended_at IS NULL`) == 0 &&
			a.count(false, `SELECT count(*) FROM lockstep.work WHERE ended_at IS NULL AND state <> 'PARKED'`) == 0
	})
}

// run is one round: safety while things break, then liveness once they don't.
func (a *arena) run(faults []breakage) {
	a.t.Helper()
	digest := a.damage()
	writing, done := context.WithCancel(a.t.Context())
	var writer sync.WaitGroup
	writer.Go(func() { a.write(writing) })
	a.reconcileAll()
	for _, f := range faults {
		a.happens[f.name]++
		f.do(a)
		a.wait(200 * time.Millisecond)
	}
	done()
	writer.Wait()
	a.heal()
	a.awaitAll()
	a.safe(digest)

	// Both sides are quiet now: what is left is mended, and nothing after that.
	a.reconcileAll()
	a.awaitAll()
	a.safe(digest)
	if n := a.count(true, `SELECT count(*) FROM (SELECT DISTINCT ON (collection_id) state FROM lockstep.task
		ORDER BY collection_id, created_at DESC) newest WHERE state <> 'COMPLETED'`); n != 0 {
		a.t.Errorf("%d forms are not proven equal after the faults ended: %s", n, a.states())
	}
	for i := range arenaForms {
		if n := a.differences(arenaForm(i)); n != 0 {
			a.t.Errorf("%s: %d rows still differ", arenaForm(i), n)
		}
	}
	if n := a.count(false, `SELECT count(*) FROM hall.answer_projection WHERE retired_at IS NOT NULL`); n != a.round*arenaForms {
		a.t.Errorf("%d rows are retired, want the %d that only the consumer had", n, a.round*arenaForms)
	}
}

// safe is what holds at any time.
func (a *arena) safe(digest string) {
	a.t.Helper()
	a.fsck()
	if now := a.extensions(); now != digest {
		a.t.Error("the host's own columns changed")
	}
	var wrong int
	a.must(a.consumer.QueryRow(a.t.Context(), `SELECT count(*) FROM hall.answer_projection WHERE retired_at IS NOT NULL AND content_hash <> sha256('x')`).Scan(&wrong))
	if wrong != 0 {
		a.t.Errorf("%d rows were retired that the center has", wrong)
	}
}

func seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("LOCKSTEP_SEED")
	if text == "" {
		return rand.Uint64()
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("LOCKSTEP_SEED: %v", err)
	}
	return n
}

// TestFaults breaks everything between the services, their databases and the
// processes themselves, each way at least once, while tasks run. With
// LOCKSTEP_SOAK it goes on with random faults for as many minutes.
func TestFaults(t *testing.T) {
	t.Parallel()
	minutes, err := strconv.Atoi(cmp.Or(os.Getenv("LOCKSTEP_SOAK"), "0"))
	if err != nil {
		t.Fatalf("LOCKSTEP_SOAK is a number of minutes: %v", err)
	}
	end := time.Now().Add(time.Duration(minutes) * time.Minute)
	a := newArena(t, seed(t))
	faults := allFaults()
	a.rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	const rounds = 2
	for i := range rounds {
		a.run(faults[i*len(faults)/rounds : (i+1)*len(faults)/rounds])
	}
	for time.Now().Before(end) && !t.Failed() {
		some := make([]breakage, 8)
		for i := range some {
			some[i] = faults[a.rand.IntN(len(faults))]
		}
		a.run(some)
	}
	total := 0
	for _, n := range a.happens {
		total += n
	}
	t.Logf("faults=%d rounds=%d lost_commits=%d %v", total, a.round, a.lost.Load(), a.happens)
	if a.lost.Load() == 0 {
		t.Error("no answer to COMMIT was lost")
	}
}
