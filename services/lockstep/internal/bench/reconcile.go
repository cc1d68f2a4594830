package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/lockstep/internal/api"
	"lockstep.dev/services/lockstep/internal/dev"
	"lockstep.dev/services/lockstep/internal/store"
	"lockstep.dev/services/lockstep/internal/world"
)

// Reconcile is what a reconciliation took. Materialising is measured from the
// creation of a task to the event that froze its manifest; all else from that
// event to the acceptance of the report that ended the task, by the clock of the
// center's database. Bytes are those of the consumer's calls to the center.
type Reconcile struct {
	Rows int `json:"rows"`
	Diff int `json:"diff"`

	MaterialiseSeconds float64 `json:"materialise_seconds"`
	EqualSeconds       float64 `json:"equal_seconds"`
	EqualWireBytes     int64   `json:"equal_wire_bytes"`
	// ContentSeconds is a whole round of equal sets, from the creation of the task
	// to its end, in which both sides hash the content.
	ContentSeconds   float64 `json:"content_seconds"`
	ContentWireBytes int64   `json:"content_wire_bytes"`
	// ScatteredSeconds is EqualSeconds after scattered writes to 2 % of the
	// projection's rows, which no VACUUM followed.
	ScatteredSeconds float64 `json:"scattered_seconds"`
	ScatteredRows    int64   `json:"scattered_rows"`
	FindSeconds      float64 `json:"find_seconds"`
	FindWireBytes    int64   `json:"find_wire_bytes"`
	RepairSeconds    float64 `json:"repair_seconds"`
	RepairWireBytes  int64   `json:"repair_wire_bytes"`
	// The most each process ever had resident; 0 where the system does not tell.
	CenterRSSBytes   int64 `json:"center_rss_bytes"`
	ConsumerRSSBytes int64 `json:"consumer_rss_bytes"`

	Found    map[string]int64 `json:"found"` // by the repairing task, by class
	Repaired int64            `json:"repaired"`
	Retired  int64            `json:"retired"`
	// Reported are the extra rows where they are too many to be retired in one transaction.
	Reported int64 `json:"reported"`
	Repeat   int   `json:"repeat"`
}

const (
	seed = 20261130
	// A row on both sides with its indexes, and the peers' copies of it.
	rowBytes     = 2600
	peerRowBytes = 1400
	pollInterval = 100 * time.Millisecond // half of what an operator may ask
	// maxRetired is what the consumer retires in one transaction at most.
	maxRetired = 500
)

// reconciler measures over one stack.
type reconciler struct {
	*sides

	options *Options
	stack   *dev.Stack
	client  *api.Client
	result  *Result

	materialise []float64
	memory      dev.Memory // of processes that have ended
}

func measureReconcile(ctx context.Context, o *Options, r *Result) (err error) {
	m := &reconciler{options: o, result: r}
	example := &dev.Example{
		Fill: m.fill, Grants: []dev.Grant{{TenantID: world.UniformTenant, Collection: world.UniformCollection}},
		Center:   map[string]any{"max_rows": 2 * o.Rows, "max_pages": 2*o.Rows/200 + 1},
		Consumer: map[string]any{"max_pending_extras": maxRetired},
	}
	bytes := int64(o.Rows) * rowBytes
	if len(o.Peers) > 0 {
		bytes += int64(o.Rows) * peerRowBytes
	}
	if m.stack, m.sides, err = start(ctx, o, WhatReconcile, example, params(bytes)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.stack.Stop()) }()
	defer m.close()
	if m.client, err = m.stack.CenterClient(); err != nil {
		return err
	}
	if r.On.Postgres, err = m.center.Setup(ctx); err != nil {
		return err
	}
	if err := m.run(ctx); err != nil {
		return errors.Join(err, m.stack.Died())
	}
	return nil
}

func (m *reconciler) fill(ctx context.Context, center, consumer store.Pool) error {
	m.options.Note("data: %d answers of one collection, and their projection", m.options.Rows)
	return store.FillUniform(ctx, center, consumer, m.options.Rows, seed, m.options.Now())
}

// run measures equal sets, damages the projection, finds the differences without
// touching them, and repairs them; the peers have their turns at the same states.
func (m *reconciler) run(ctx context.Context) error {
	out := &Reconcile{Rows: m.options.Rows, Diff: m.options.Diff, Repeat: m.options.Repeat}
	m.result.Reconcile = out
	peers, err := m.preparePeers(ctx)
	if err != nil {
		return err
	}
	if err := m.warm(ctx); err != nil {
		return err
	}
	if err := m.rehearse(ctx); err != nil {
		return err
	}
	equal, err := m.repeat(ctx, "equal", evidencev1.Mode_MODE_REPAIR, store.Classes{})
	if err != nil {
		return err
	}
	out.EqualSeconds, out.EqualWireBytes = equal.seconds, equal.wire
	if err := peers.find(ctx, 0); err != nil {
		return err
	}

	if err := m.content(ctx); err != nil {
		return err
	}
	if err := peers.content(ctx); err != nil {
		return err
	}
	if err := m.scattered(ctx); err != nil {
		return err
	}

	damage := store.SplitDamage(m.options.Diff)
	m.options.Note("damage: %d missing, %d stale, %d hash conflicts, %d tombstones, %d extra", damage.Missing, damage.Stale, damage.Conflict, damage.Tombstone, damage.Extra)
	if err := m.consumer.DamageEvenly(ctx, m.options.Rows, damage, m.options.Now()); err != nil {
		return err
	}
	if err := peers.damaged(ctx); err != nil {
		return err
	}
	find, err := m.repeat(ctx, "find", evidencev1.Mode_MODE_DRY_RUN, damage)
	if err != nil {
		return err
	}
	out.FindSeconds, out.FindWireBytes = find.seconds, find.wire
	if err := peers.find(ctx, m.options.Diff); err != nil {
		return err
	}
	repair, err := m.task(ctx, "repair", evidencev1.Mode_MODE_REPAIR, damage)
	if err != nil {
		return err
	}
	out.RepairSeconds, out.RepairWireBytes = repair.seconds, repair.wire
	out.Found, out.Repaired, out.Retired, out.Reported = repair.found, repair.repaired, repair.retired, repair.reported
	if err := peers.repair(ctx); err != nil {
		return err
	}

	out.MaterialiseSeconds = median(m.materialise)
	memory, err := m.stack.Memory()
	out.CenterRSSBytes, out.ConsumerRSSBytes = max(m.memory.Center, memory.Center), max(m.memory.Consumer, memory.Consumer)
	return err
}

// content measures whole rounds of equal sets, content hashed on both sides.
func (m *reconciler) content(ctx context.Context) error {
	memory, err := m.stack.Memory()
	if err != nil {
		return err
	}
	m.memory = memory // of the process that is about to be stopped
	if err := m.stack.RestartConsumer(ctx, map[string]any{"verify_content": true}); err != nil {
		return err
	}
	if err := m.rehearse(ctx); err != nil {
		return err
	}
	var times []float64
	for range m.options.Repeat {
		t, err := m.task(ctx, "content", evidencev1.Mode_MODE_REPAIR, store.Classes{})
		if err != nil {
			return err
		}
		m.result.expect("content, verified", evidencev1.Verified_VERIFIED_CONTENT, t.verified)
		times = append(times, t.materialise+t.seconds)
		m.result.Reconcile.ContentWireBytes = t.wire
	}
	m.result.Reconcile.ContentSeconds = median(times)
	if memory, err = m.stack.Memory(); err != nil {
		return err
	}
	m.memory.Consumer = max(m.memory.Consumer, memory.Consumer)
	if err := m.stack.RestartConsumer(ctx, map[string]any{"verify_content": false}); err != nil {
		return err
	}
	return m.rehearse(ctx)
}

// rehearse runs a task that does not count, after which the services' sessions
// are as those that have run for a while: one that is new maps the server's
// memory page by page as it first looks at it.
func (m *reconciler) rehearse(ctx context.Context) error {
	timed := m.materialise
	_, err := m.task(ctx, "rehearsal", evidencev1.Mode_MODE_DRY_RUN, store.Classes{})
	m.materialise = timed
	return err
}

// scattered measures equal sets once the visibility map is stale, and mends that.
func (m *reconciler) scattered(ctx context.Context) (err error) {
	out := m.result.Reconcile
	if out.ScatteredRows, err = m.consumer.ScatterWrites(ctx); err != nil {
		return err
	}
	m.options.Note("writes: %d rows of the projection, no VACUUM", out.ScatteredRows)
	t, err := m.repeat(ctx, "scattered", evidencev1.Mode_MODE_REPAIR, store.Classes{})
	if err != nil {
		return err
	}
	out.ScatteredSeconds = t.seconds
	return m.consumer.Analyze(ctx, store.ProjectionTable())
}

// took is what one task came to.
type took struct {
	seconds, materialise        float64
	wire                        int64
	verified                    evidencev1.Verified
	found                       map[string]int64
	repaired, retired, reported int64
}

// repeat runs equal tasks, and gives the one with the median time.
func (m *reconciler) repeat(ctx context.Context, name string, mode evidencev1.Mode, damage store.Classes) (took, error) {
	var runs []took
	var times []float64
	for range m.options.Repeat {
		t, err := m.task(ctx, name, mode, damage)
		if err != nil {
			return took{}, err
		}
		runs, times = append(runs, t), append(times, t.seconds)
	}
	middle := median(times)
	for _, t := range runs {
		if t.seconds == middle {
			return t, nil
		}
	}
	return took{}, errors.New("no run has the median time")
}

// task runs one task to its end and holds its figures to the damage.
func (m *reconciler) task(ctx context.Context, name string, mode evidencev1.Mode, damage store.Classes) (took, error) {
	made, _, err := m.client.CreateTask(ctx, &centerv1.CreateTaskRequest{
		Consumer: dev.ConsumerApp, TenantId: world.UniformTenant, CollectionId: world.UniformCollection,
		Scope: evidencev1.Scope_SCOPE_COLLECTION, Mode: mode,
	})
	if err != nil {
		return took{}, err
	}
	if len(made.GetTasks()) != 1 {
		return took{}, fmt.Errorf("%s: %d tasks were made, not one", name, len(made.GetTasks()))
	}
	ended, err := m.await(ctx, made.GetTasks()[0].GetTask().GetTaskId())
	if err != nil {
		return took{}, fmt.Errorf("%s: %w", name, err)
	}
	times, err := m.center.TaskTimes(ctx, ended.GetTaskId())
	if err != nil {
		return took{}, err
	}
	t := figures(ended)
	t.materialise, t.seconds = seconds(times.Materialised.Sub(times.Created)), seconds(times.Ended.Sub(times.Materialised))
	m.materialise = append(m.materialise, t.materialise)
	m.judge(name, mode, damage, ended, t)
	m.options.Note("%s: manifest %.2f s, task %.2f s, %d bytes, %s", name, t.materialise, t.seconds, t.wire, api.Word(ended.GetState()))
	return t, nil
}

func (m *reconciler) await(ctx context.Context, id string) (*centerv1.Task, error) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		task, _, err := m.client.Task(ctx, id)
		if err != nil {
			return nil, err
		}
		if api.Ended(task.GetState()) {
			return task, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if err := m.stack.Died(); err != nil {
			return nil, err
		}
	}
}

func figures(t *centerv1.Task) took {
	out := took{wire: t.GetProgress().GetWireBytes(), verified: t.GetProgress().GetVerified(), found: map[string]int64{}}
	for _, c := range t.GetProgress().GetCounts() {
		if c.GetFound() > 0 {
			out.found[c.GetClass()] = c.GetFound()
		}
		out.repaired += c.GetRepaired()
		out.retired += c.GetRetired()
		out.reported += c.GetReported()
	}
	return out
}

// judge holds a task to the damage.
func (m *reconciler) judge(name string, mode evidencev1.Mode, damage store.Classes, task *centerv1.Task, t took) {
	want := took{repaired: int64(damage.Missing + damage.Stale + damage.Conflict + damage.Tombstone), retired: int64(damage.Extra)}
	state := protocol.Completed
	switch {
	case mode == evidencev1.Mode_MODE_DRY_RUN:
		want.reported, want.repaired, want.retired = want.repaired+want.retired, 0, 0
	case damage.Extra > maxRetired:
		want.reported, want.retired = want.retired, 0
	}
	if want.reported > 0 {
		state = protocol.Partial
	}
	expect := func(what string, want, got any) { m.result.expect(name+", "+what, want, got) }
	expect("state", string(state), api.Word(task.GetState()))
	for class, n := range map[protocol.Class]int{
		protocol.Missing: damage.Missing, protocol.Stale: damage.Stale, protocol.HashConflict: damage.Conflict,
		protocol.Tombstone: damage.Tombstone, protocol.ExtraRow: damage.Extra,
	} {
		expect("found "+string(class), int64(n), t.found[string(class)])
	}
	expect("rows of the manifest", int64(m.options.Rows), task.GetRowCount())
	expect("repaired", want.repaired, t.repaired)
	expect("retired", want.retired, t.retired)
	expect("reported", want.reported, t.reported)
}
