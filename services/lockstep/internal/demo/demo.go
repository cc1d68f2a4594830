// Package demo shows a whole reconciliation on data whose damage is known, and
// judges it: by every figure the services report, and by comparing the two
// tables itself. Then payments are made, and the pages that show them are held
// to written figures.
package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/lockstep/internal/api"
	"lockstep.dev/services/lockstep/internal/dev"
	"lockstep.dev/services/lockstep/internal/store"
	"lockstep.dev/services/lockstep/internal/world"
)

const (
	rounds       = 2
	pollInterval = 200 * time.Millisecond // one call each, far below what an operator may ask
	// No run on a laptop comes near it; a task that hangs must end the demo.
	roundTimeout = 5 * time.Minute
)

// Demo is one run.
type Demo struct {
	Stack *dev.Stack
	Rows  int
	// Progress hears how far the tasks of a round have come.
	Progress *Progress
	// RoundDone hears each round's figures, nil for nobody.
	RoundDone func(Round) error
	// RefreshDone hears the snapshot refresh's, nil for nobody.
	RefreshDone func(*Refresh) error
	Now         func() time.Time

	center *api.Client
}

// Verdict is what came out.
type Verdict struct {
	Result Result
	// Deviations are the figures that are not the expected ones, one a line.
	Deviations []string
	// Facts are what the comparison of the tables showed, for people.
	Facts []string
}

// Run reconciles twice, refreshes what depends on payments, and judges.
func (d *Demo) Run(ctx context.Context) (*Verdict, error) {
	var err error
	if d.center, err = d.Stack.CenterClient(); err != nil {
		return nil, err
	}
	center, consumer, err := d.Stack.Pools(ctx)
	if err != nil {
		return nil, err
	}
	defer center.Close()
	defer consumer.Close()
	judge := &judge{center: center, consumer: consumer, changes: d.Stack.Changes}
	if err := judge.before(ctx); err != nil {
		return nil, err
	}
	v := &Verdict{Result: Result{Rows: d.Rows}}
	for number := 1; number <= rounds; number++ {
		round, err := d.round(ctx, number)
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", number, err)
		}
		v.Result.Rounds = append(v.Result.Rounds, round)
		v.Deviations = append(v.Deviations, deviations(round)...)
		if d.RoundDone != nil {
			if err := d.RoundDone(round); err != nil {
				return nil, err
			}
		}
		if err := judge.after(ctx, v, number); err != nil {
			return nil, err
		}
	}
	v.Result.Seconds = total(v.Result.Rounds)
	return v, d.payments(ctx, v)
}

// payments shows the second worker: bills that are paid, and the pages after it.
func (d *Demo) payments(ctx context.Context, v *Verdict) error {
	client, err := d.Stack.ConsumerClient()
	if err != nil {
		return err
	}
	r := refresher{client: client, pay: d.Stack.Pay}
	result, bad, err := r.run(ctx)
	if err != nil {
		return fmt.Errorf("snapshot refresh: %w", errors.Join(err, d.Stack.Died()))
	}
	v.Result.Refresh = result
	v.Deviations = append(v.Deviations, bad...)
	if len(bad) == 0 {
		v.Facts = append(v.Facts, "The pages of the bills say what was paid: "+stayMissed()+".")
	}
	if d.RefreshDone == nil {
		return nil
	}
	return d.RefreshDone(result)
}

// stayMissed says what a refresh leaves alone.
func stayMissed() string {
	want := world.ExpectPayments()
	return fmt.Sprintf("%d bills had news, %d had none, %d was never let in by a review", want.Updated, want.Unchanged, want.Missed)
}

// round makes a task for every subscription and waits until all have ended.
func (d *Demo) round(ctx context.Context, number int) (Round, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	begin := d.Now()
	made, _, err := d.center.CreateTask(ctx, &centerv1.CreateTaskRequest{Consumer: dev.ConsumerApp, Scope: evidencev1.Scope_SCOPE_ALL})
	if err != nil {
		return Round{}, err
	}
	if left := made.GetLeftOut(); len(left) > 0 {
		return Round{}, fmt.Errorf("%d subscriptions got no task, the first one tenant %d, %s: %s", len(left), left[0].GetTenantId(), left[0].GetCollectionId(), left[0].GetCode())
	}
	tasks := make([]*centerv1.Task, 0, len(made.GetTasks()))
	for _, created := range made.GetTasks() {
		tasks = append(tasks, created.GetTask())
	}
	slices.SortFunc(tasks, func(a, b *centerv1.Task) int {
		return formOrder(a.GetTenantId(), a.GetCollectionId()) - formOrder(b.GetTenantId(), b.GetCollectionId())
	})
	if err := d.await(ctx, number, tasks); err != nil {
		return Round{}, err
	}
	round := Round{Round: number, Seconds: seconds(d.Now().Sub(begin))}
	for _, task := range tasks {
		round.Tasks = append(round.Tasks, taskResult(task))
	}
	return round, nil
}

// formOrder is the place of a form in the example, so that results come in its order.
func formOrder(tenant int64, collection string) int {
	forms := world.Forms()
	at := slices.IndexFunc(forms, func(f world.Form) bool { return f.TenantID == tenant && f.Collection == collection })
	if at < 0 {
		return len(forms)
	}
	return at
}

// await reads the tasks again and again until all have ended.
func (d *Demo) await(ctx context.Context, round int, tasks []*centerv1.Task) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	defer d.Progress.End()
	for {
		if err := d.refresh(ctx, tasks); err != nil {
			return errors.Join(d.Stack.Died(), err)
		}
		d.Progress.Show(fmt.Sprintf("round %d: ", round), tasks)
		if !slices.ContainsFunc(tasks, func(t *centerv1.Task) bool { return !api.Ended(t.GetState()) }) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not every task has ended: %w", ctx.Err())
		}
		if err := d.Stack.Died(); err != nil {
			return err
		}
	}
}

// refresh reads the newest tasks, in one call, in place of those given.
func (d *Demo) refresh(ctx context.Context, tasks []*centerv1.Task) error {
	newest, _, err := d.center.Tasks(ctx, &centerv1.ListTasksRequest{Consumer: dev.ConsumerApp, PageSize: 2 * int32(len(world.Forms()))}) //nolint:gosec // a handful
	if err != nil {
		return err
	}
	for i, task := range tasks {
		at := slices.IndexFunc(newest.GetTasks(), func(t *centerv1.Task) bool { return t.GetTaskId() == task.GetTaskId() })
		if at < 0 {
			return fmt.Errorf("task %s is not among the newest", task.GetTaskId())
		}
		tasks[i] = newest.GetTasks()[at]
	}
	return nil
}

// deviations compares a round with what was done to the projection.
func deviations(round Round) []string {
	var out []string
	for _, form := range world.Forms() {
		at := slices.IndexFunc(round.Tasks, func(t Task) bool { return t.Tenant == form.TenantID && t.Collection == form.Collection })
		if at < 0 {
			out = append(out, fmt.Sprintf("round %d, tenant %d, %s: expected a task, got none", round.Round, form.TenantID, form.Collection))
			continue
		}
		out = append(out, round.Tasks[at].deviations(round.Round, form.Damage.Expect(round.Round))...)
	}
	if len(round.Tasks) != len(world.Forms()) {
		out = append(out, fmt.Sprintf("round %d: expected %d tasks, got %d", round.Round, len(world.Forms()), len(round.Tasks)))
	}
	return out
}

// judge compares the two tables directly, without the services.
type judge struct {
	center, consumer store.Pool
	changes          *world.Changes
	extensions       string
	extended         int64
}

func (j *judge) before(ctx context.Context) (err error) {
	j.extensions, j.extended, err = j.consumer.Extensions(ctx)
	return err
}

func (j *judge) after(ctx context.Context, v *Verdict, round int) error {
	different, err := store.Differences(ctx, j.center, j.consumer)
	if err != nil {
		return err
	}
	retired, unproven, err := j.consumer.Retired(ctx)
	if err != nil {
		return err
	}
	digest, extended, err := j.consumer.Extensions(ctx)
	if err != nil {
		return err
	}
	bad := slices.Concat(
		unlike(round, "rows that still differ", j.changes.Open, different),
		unlike(round, "retired rows", j.changes.Retired, retired),
		unlike(round, "rows retired without a proof", nil, unproven))
	if digest != j.extensions || extended != j.extended {
		bad = append(bad, fmt.Sprintf("round %d, extension columns: expected %d rows with digest %s, got %d with %s", round, j.extended, j.extensions, extended, digest))
	}
	v.Deviations = append(v.Deviations, bad...)
	if len(bad) == 0 && round == rounds {
		v.Facts = []string{
			fmt.Sprintf("Compared directly, the two tables are equal but for %d rows; %d rows are retired, each with a proof;", len(different), len(retired)),
			fmt.Sprintf("the host's own columns of %d rows have the same bytes as before.", extended),
			stayOpen(),
		}
	}
	return nil
}

// stayOpen says why rows still differ.
func stayOpen() string {
	d := world.TotalDamage()
	return fmt.Sprintf("Open on purpose: %d rows ahead of the center, %d younger than the manifest, %d whose revision was never kept, %d larger than the host stores.",
		d.LocalAhead, d.ExtraNew, d.RevisionZero, d.Unrepairable)
}

// unlike names the rows that are in only one of two lists.
func unlike(round int, what string, expected, got []world.Ref) []string {
	count := map[world.Ref]int{}
	for _, ref := range expected {
		count[ref]++
	}
	for _, ref := range got {
		count[ref]--
	}
	var lines []string
	for ref, n := range count {
		switch {
		case n > 0:
			lines = append(lines, fmt.Sprintf("round %d, %s: expected %s, it is not among them", round, what, ref))
		case n < 0:
			lines = append(lines, fmt.Sprintf("round %d, %s: got %s, which was not expected", round, what, ref))
		}
	}
	slices.Sort(lines)
	return lines
}
