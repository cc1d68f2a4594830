package store_test

import (
	"crypto/ed25519"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/centertest"
	"lockstep.dev/services/center/internal/report"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// machine runs the store's operations on a real database and the same on the
// twin.
type machine struct {
	*centertest.World
	handler *report.Handler
	signer  *evidence.Signer
	scopes  [2]store.Scope

	twin   twin
	claims []held // every one ever made, the superseded ones too
	met    map[string]int
}

type held struct {
	claim.Claim
	site  claim.Site
	token int // its number in the twin
	task  *twinTask
}

// TestMachine does random things in random order, and after each wants the
// database to be what the twin is.
func TestMachine(t *testing.T) {
	modest(t)
	m := &machine{World: centertest.New(t), met: map[string]int{}}
	private := ed25519.NewKeyFromSeed([]byte(strings.Repeat("k", ed25519.SeedSize)))
	public, _ := private.Public().(ed25519.PublicKey)
	m.signer = evidence.NewSigner("hall-1", private)
	m.handler = &report.Handler{
		Store: m.Store, Source: centertest.Center, Policy: centertest.Policy, Limits: report.Limits{MaxItems: 2, MaxChars: 200},
		Keys: func(string) []evidence.Key { return []evidence.Key{{ID: "hall-1", Public: public}} }, Wake: func() {},
	}
	m.scopes = [2]store.Scope{centertest.Scope, {Consumer: centertest.Consumer, TenantID: centertest.Tenant, CollectionID: "form-2"}}
	m.Grant(m.scopes[1])

	rapid.Check(t, func(t *rapid.T) {
		m.Exec(`DELETE FROM lockstep.task`)
		m.Exec(`UPDATE lockstep.consumer_grant SET enabled = true, grant_epoch = 1`)
		m.twin, m.claims = twin{grants: [2]twinGrant{{true, 1}, {true, 1}}}, nil
		t.Repeat(map[string]func(*rapid.T){
			// Rapid prefers what comes first in the order of names.
			"1 dispatch": m.dispatch, "2 report": m.report, "3 lapse": m.lapse, "4 create": m.create, "5 end a claim": m.endClaim,
			"6 take a manifest": m.takeManifest, "6 take a dispatch": m.takeDispatch, "6 time passes": m.timePasses, "6 sweep": m.sweep,
			"7 authorize": m.authorize, "7 change a grant": seldom(m.changeGrant), "7 finish revocations": m.finishRevocations,
			"7 cancel": seldom(m.cancel),
			"":         m.compare,
		})
	})
	t.Logf("met %v", m.met)
	for _, what := range []string{
		"fenced", "CURRENT_ACCEPTED", "CURRENT_DUPLICATE", "CENTER_TERMINAL", "STALE_RETRY", "ATTEMPT_UNKNOWN", "RESULT_INCONSISTENT",
		"COMPLETED", "PARTIAL", "FAILED", "CANCELLED", "RUNNING", "DISPATCHED", "QUEUED", "swept",
	} {
		if m.met[what] == 0 {
			t.Errorf("%s was never met", what)
		}
	}
}

// modest lowers the number of runs unless one was asked for: they are against a
// real database.
func modest(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{"rapid.checks": "120", "rapid.steps": "60"} {
		f := flag.Lookup(name)
		if f.Value.String() != f.DefValue {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
	}
}

// seldom does what ends tasks one time in eight.
func seldom(do func(*rapid.T)) func(*rapid.T) {
	return func(t *rapid.T) {
		if rapid.IntRange(1, 4).Draw(t, "seldom") == 4 {
			do(t)
		}
	}
}

// dispatch is what mostly happens: the manifest is made, the consumer accepts.
func (m *machine) dispatch(t *rapid.T) {
	n := len(m.claims)
	if m.takeManifest(t); len(m.claims) > n {
		m.end(t, m.claims[n], 0)
	}
	n = len(m.claims)
	if m.takeDispatch(t); len(m.claims) > n {
		m.end(t, m.claims[n], 0)
	}
}

// compare is done after every step.
func (m *machine) compare(t *rapid.T) {
	rows, err := m.Pool.Query(m.T.Context(), `SELECT t.task_id, format('%s %s %s attempt %s tries %s claimed %s over %s slot %s waiting %s %s result %s %s',
			t.state, manifest_state, CASE WHEN ended_at IS NOT NULL THEN t.code END, t.attempt, materialise_tries,
			(claim_token IS NOT NULL)::text, coalesce(lease_until < now(), false)::text, (slot IS NOT NULL)::text,
			(waiting_since IS NOT NULL)::text, coalesce(waiting_since < now() - interval '12 hours', false)::text, r.state, coalesce(r.attempt, 0))
		FROM lockstep.task t LEFT JOIN lockstep.task_result r USING (task_id)`)
	m.Must(err)
	got := map[uuid.UUID]string{}
	var id uuid.UUID
	var row string
	_, err = pgx.ForEachRow(rows, []any{&id, &row}, func() error { got[id] = row; return nil })
	m.Must(err)
	if len(got) != len(m.twin.tasks) {
		t.Fatalf("%d tasks, want %d", len(got), len(m.twin.tasks))
	}
	for _, tk := range m.twin.tasks {
		m.met[tk.state]++
		if got[tk.id] != tk.String() {
			t.Fatalf("task %s\nis   %s\nwant %s", tk.id, got[tk.id], tk)
		}
	}
}

func (m *machine) pick(t *rapid.T) *twinTask {
	if len(m.twin.tasks) == 0 {
		t.Skip("no task")
	}
	tk := m.twin.tasks[rapid.IntRange(0, len(m.twin.tasks)-1).Draw(t, "task")]
	if open := m.twin.open(tk.collection); open != nil && rapid.IntRange(0, 3).Draw(t, "ended too") > 0 {
		return open
	}
	return tk
}

func (m *machine) create(t *rapid.T) {
	n := rapid.IntRange(0, 1).Draw(t, "collection")
	g := m.twin.grants[n]
	if !g.on || len(m.twin.tasks) == 6 {
		t.Skip("no grant, or enough tasks")
	}
	id, made := uuid.New(), false
	m.Must(m.Store.InTx(m.T.Context(), func(tx *store.Tx) (err error) {
		_, made, err = tx.InsertTask(m.T.Context(), store.NewTask{
			ID: id, Scope: m.scopes[n], What: protocol.Collection, Mode: protocol.Repair, GrantEpoch: g.epoch, CreatedBy: "test",
		})
		return err
	}))
	if made != (m.twin.open(n) == nil) {
		t.Fatalf("created %t, although the open task is %v", made, m.twin.open(n))
	}
	if made {
		m.twin.tasks = append(m.twin.tasks, &twinTask{id: id, collection: n, epoch: g.epoch, state: "QUEUED", manifest: "PENDING"})
	}
}

func (m *machine) takeManifest(t *rapid.T) {
	m.Exec(`UPDATE lockstep.task SET due_at = now() WHERE state = 'QUEUED'`)
	c, _, ok, err := m.Store.ClaimMaterialise(m.T.Context(), "w", centertest.Policy.ClaimLease)
	m.Must(err)
	m.took(t, c, ok, store.MaterialiseSite, m.twin.takeManifest(len(m.claims)+1))
}

func (m *machine) takeDispatch(t *rapid.T) {
	m.Exec(`UPDATE lockstep.task SET due_at = now() WHERE state = 'QUEUED'`)
	c, _, ok, err := m.Store.ClaimDispatch(m.T.Context(), "w", centertest.Policy)
	m.Must(err)
	m.took(t, c, ok, store.DispatchSite, m.twin.takeDispatch(len(m.claims)+1))
}

func (m *machine) took(t *rapid.T, c claim.Claim, ok bool, site claim.Site, want *twinTask) {
	switch {
	case ok != (want != nil):
		t.Fatalf("took one: %t; want %v", ok, want)
	case ok && c.ID != want.id:
		t.Fatalf("took %s, want %s", c.ID, want.id)
	case ok:
		m.claims = append(m.claims, held{c, site, len(m.claims) + 1, want})
	}
}

// endClaim ends any claim ever made; the superseded ones must be powerless.
func (m *machine) endClaim(t *rapid.T) {
	if len(m.claims) == 0 {
		t.Skip("no claim")
	}
	m.end(t, m.claims[rapid.IntRange(0, len(m.claims)-1).Draw(t, "claim")], rapid.IntRange(0, 2).Draw(t, "how"))
}

func (m *machine) end(t *rapid.T, h held, how int) {
	ctx, tk := m.T.Context(), h.task
	owns := tk.token == h.token
	var err error
	switch {
	case h.site.Name == store.MaterialiseSite.Name && how == 0:
		err = store.MaterialiseSite.Leave(ctx, m.Pool, h.Claim, `manifest_state = 'COMPLETE', manifest_id = gen_random_uuid(), manifest_root = $3,
			row_count = 3, page_rows = 128, page_count = 1, window_start = now(), header = 'header'`, centertest.Root[:])
		if owns {
			tk.token, tk.over, tk.manifest = 0, false, "COMPLETE"
		}
	case h.site.Name == store.MaterialiseSite.Name && how == 1:
		err = m.Store.RefuseMaterialise(ctx, h.Claim, fault.ResourceLimit, "too many rows")
		if owns {
			tk.goTo("FAILED", "RESOURCE_LIMIT")
			tk.manifest = "FAILED"
		}
	case h.site.Name == store.MaterialiseSite.Name:
		err = m.Store.RetryMaterialise(ctx, h.Claim, centertest.Policy, fault.Unavailable)
		if owns {
			tk.fails()
		}
	case how == 0:
		err = concluded(m.World, task.Accepted)(ctx, h.Claim)
		if owns {
			tk.goTo("DISPATCHED", "")
		}
	case how == 1:
		err = concluded(m.World, task.NotAccepted)(ctx, h.Claim)
		if owns {
			tk.again("DISPATCH_FAILED")
		}
	default:
		err = store.DispatchSite.Renew(ctx, m.Pool, h.Claim, time.Minute)
		if owns {
			tk.over = false
		}
	}
	if !owns {
		m.met["fenced"]++
	}
	if fenced := errors.Is(err, claim.ErrFenced); fenced == owns || !fenced && err != nil {
		t.Fatalf("claim %d, owner %t: %v", h.token, owns, err)
	}
}

func (m *machine) report(t *rapid.T) {
	tk := m.pick(t)
	attempt := max(1, tk.attempt+rapid.SampledFrom([]int{0, 0, 0, -1, 1}).Draw(t, "of attempt"))
	kind := rapid.SampledFrom([]string{"RUNNING", "RUNNING", "RUNNING", "WAITING", "WAITING", "COMPLETED", "COMPLETED, half", "PARTIAL", "FAILED", "CANCELLED"}).Draw(t, "says")
	ack, err := m.handler.Report(m.T.Context(), centertest.Consumer, m.sealed(tk, attempt, kind))
	got := string(fault.ReasonOf(err))
	if err == nil {
		got = string(ack.Decision)
	}
	want := m.twin.report(tk, attempt, kind)
	m.met[want]++
	if got != want {
		t.Fatalf("a report %s of attempt %d got %s (%v), want %s", kind, attempt, got, err, want)
	}
	if err == nil && (ack.ReportAttempt != attempt || ack.Attempt != tk.attempt || string(ack.TaskState) != tk.state ||
		got == "CURRENT_DUPLICATE" && string(ack.ResultState) != tk.result) {
		t.Fatalf("the answer is %+v of %s", ack, tk)
	}
}

func (m *machine) sealed(tk *twinTask, attempt int, kind string) evidence.Envelope {
	now := m.Read(tk.id)
	r := &protocol.Report{
		At: now.Coordinates(centertest.Center), Attempt: attempt, State: protocol.State(kind),
		ManifestID: protocol.FormatID(now.ManifestID), ManifestRoot: now.ManifestRoot, Verified: protocol.Hashes,
	}
	switch kind {
	case "RUNNING":
		r.Phase = protocol.Scanning
	case "WAITING":
		r.State, r.Phase = protocol.Running, protocol.Waiting
	case "COMPLETED":
		r.CenterComplete, r.LocalComplete = true, true
	case "COMPLETED, half":
		r.State, r.CenterComplete = protocol.Completed, true
	case "FAILED":
		r.Code = "ORDER_VIOLATION"
	}
	env, err := document.SealReport(m.signer, r)
	m.Must(err)
	return env
}

// lapse is a worker or a consumer that was not heard of again.
func (m *machine) lapse(t *rapid.T) {
	m.timePasses(t)
	m.sweep(t)
}

func (m *machine) timePasses(t *rapid.T) {
	tk := m.pick(t)
	if rapid.IntRange(0, 3).Draw(t, "it waits") == 3 {
		if m.Exec(`UPDATE lockstep.task SET waiting_since = now() - interval '13 hours' WHERE task_id = $1 AND waiting_since IS NOT NULL`, tk.id) == 1 {
			tk.tooLong = true
		}
		return
	}
	if m.Exec(`UPDATE lockstep.task SET lease_until = now() - interval '1 second' WHERE task_id = $1 AND lease_until IS NOT NULL`, tk.id) == 1 {
		tk.over = true
	}
}

func (m *machine) sweep(t *rapid.T) {
	for _, site := range rapid.SampledFrom([][]string{{"materialise", "dispatch", "lease"}, {"lease"}, {"dispatch"}, {"materialise"}}).Draw(t, "sites") {
		want := 0
		for _, tk := range m.twin.tasks {
			if tk.over && tk.sweep(site) {
				want++
			}
		}
		got := m.sweepSite(site)
		m.met["swept"] += got
		if got != want {
			t.Fatalf("swept %d %s, want %d", got, site, want)
		}
	}
}

func (m *machine) sweepSite(site string) (n int) {
	var err error
	switch site {
	case "materialise":
		n, err = m.Store.SweepClaims(m.T.Context(), store.MaterialiseSite, task.MaterialiseTrouble, centertest.Policy, 10)
	case "dispatch":
		n, err = m.Store.SweepClaims(m.T.Context(), store.DispatchSite, task.ClaimLapsed, centertest.Policy, 10)
	default:
		for ok := true; ok; n++ {
			ok, err = m.Store.SweepLease(m.T.Context(), centertest.Policy)
			m.Must(err)
		}
		n--
	}
	m.Must(err)
	return n
}

func (m *machine) changeGrant(t *rapid.T) {
	n := rapid.IntRange(0, 1).Draw(t, "collection")
	g := &m.twin.grants[n]
	if g.on {
		g.epoch++
	}
	g.on = !g.on
	got, narrowed, err := m.Store.SetGrant(m.T.Context(), store.Grant{Scope: m.scopes[n], Enabled: g.on, ReadAllowed: true, SubscribeAllowed: true}, "test")
	m.Must(err)
	if got.Epoch != g.epoch || narrowed == g.on {
		t.Fatalf("the grant is %+v (narrowed %t), want %+v", got, narrowed, *g)
	}
}

func (m *machine) finishRevocations(t *rapid.T) {
	lost, err := m.Store.LostTasks(m.T.Context(), 10)
	m.Must(err)
	for _, id := range lost {
		_, _, err := m.Store.CancelLost(m.T.Context(), id)
		m.Must(err)
	}
	want := 0
	for _, tk := range m.twin.tasks {
		if code := m.twin.lost(tk); code != "" && !tk.ended() {
			tk.goTo("CANCELLED", code)
			want++
		}
	}
	if len(lost) != want {
		t.Fatalf("%d tasks have lost their grant, want %d", len(lost), want)
	}
}

func (m *machine) cancel(t *rapid.T) {
	tk := m.pick(t)
	err := m.Store.Cancel(m.T.Context(), tk.id, "no longer wanted", "operator/eva")
	want := fault.None
	switch {
	case !tk.ended():
		tk.goTo("CANCELLED", "CANCELLED_BY_OPERATOR")
	case tk.state != "CANCELLED":
		want = fault.TaskTerminal
	}
	if got := fault.ReasonOf(err); got != want {
		t.Fatalf("cancel: %v, want %q", err, want)
	}
}

func (m *machine) authorize(t *rapid.T) {
	tk := m.pick(t)
	_, err := m.Store.Authorize(m.T.Context(), centertest.Consumer, tk.id)
	want := m.twin.lost(tk)
	switch {
	case tk.ended():
		want = string(fault.TaskTerminal)
	case want != "":
		tk.goTo("CANCELLED", want)
	}
	if got := string(fault.ReasonOf(err)); got != want {
		t.Fatalf("authorize %s: %v, want %q", fmt.Sprint(tk), err, want)
	}
}
