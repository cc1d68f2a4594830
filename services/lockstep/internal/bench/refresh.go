package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/lockstep/internal/api"
	"lockstep.dev/services/lockstep/internal/dev"
	"lockstep.dev/services/lockstep/internal/store"
)

// Refresh is what a snapshot refresh took in which every row had news. Seconds
// are from the request's commit to the task's end, by the database's clock.
type Refresh struct {
	Scopes               int64   `json:"scopes"`
	Differences          int64   `json:"differences"` // of all scopes together
	Seconds              float64 `json:"seconds"`
	DifferencesPerSecond float64 `json:"differences_per_second"`
	// StatementsPerScope is all that PostgreSQL ran in the consumer's database
	// meanwhile, begins, commits, the service's other loops and this program's
	// looks included, divided by the scopes; null where nobody counts.
	StatementsPerScope *float64 `json:"statements_per_scope"`
	StatementsBy       string   `json:"statements_counted_by"`
	// RSSBytes is the most the consumer ever had resident; 0 where the system does not tell.
	RSSBytes int64 `json:"rss_bytes"`
	Repeat   int   `json:"repeat"`

	LargeScope *LargeScope `json:"large_scope,omitempty"`
}

// LargeScope is one scope that is refreshed in one transaction.
type LargeScope struct {
	Differences  int64   `json:"differences"`
	Seconds      float64 `json:"seconds"`
	LeaseSeconds float64 `json:"lease_seconds"` // the shortest that may be set
	// LeastLeaseSeconds is the least that was ever left of it, by looks ten times a second.
	LeastLeaseSeconds float64 `json:"least_lease_seconds"`
	LeaseKept         bool    `json:"lease_kept"` // one claim, and never over
	RSSBytes          int64   `json:"rss_bytes"`
}

const (
	month      = 202608
	largeMonth = 202609
	// largeStation is none of the others, however many they are.
	largeStation = 20_000_000
	// A difference with its lines, results, pushes and snapshot, and what an
	// update of all of them leaves behind.
	differenceBytes = 6000
	shortestLease   = 10 * time.Second
)

type refresher struct {
	*sides

	options *Options
	stack   *dev.Stack
	client  *api.Client
	result  *Result
	serial  int
}

func measureRefresh(ctx context.Context, o *Options, r *Result) (err error) {
	m := &refresher{options: o, result: r}
	example := &dev.Example{Fill: m.fill, Consumer: map[string]any{"refresh": map[string]any{
		"projections": []string{"bills"}, "lease": shortestLease.String(),
		"kick": map[string]any{"stages": map[string]any{"bills": map[string]any{"enabled": true, "grey": 100}}},
	}}}
	if m.stack, m.sides, err = start(ctx, o, WhatRefresh, example, params(int64(o.Scopes*o.Differences+o.Large)*differenceBytes)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.stack.Stop()) }()
	defer m.close()
	if m.client, err = m.stack.ConsumerClient(); err != nil {
		return err
	}
	if r.On.Postgres, err = m.consumer.Setup(ctx); err != nil {
		return err
	}
	if err := m.run(ctx); err != nil {
		return errors.Join(err, m.stack.Died())
	}
	return nil
}

func (m *refresher) fill(ctx context.Context, _, consumer store.Pool) error {
	o := m.options
	o.Note("data: %d scopes of %d differences", o.Scopes, o.Differences)
	if err := consumer.FillBills(ctx, month, 1, o.Scopes, o.Differences); err != nil || o.Large == 0 {
		return err
	}
	o.Note("data: one scope of %d differences", o.Large)
	return consumer.FillBills(ctx, largeMonth, largeStation, 1, o.Large)
}

// run refreshes all once to count statements, which costs time, then again
// without counting, after everything has changed.
func (m *refresher) run(ctx context.Context) error {
	out := &Refresh{Scopes: int64(m.options.Scopes), Differences: int64(m.options.Scopes * m.options.Differences), Repeat: m.options.Repeat}
	m.result.Refresh = out
	if err := m.warm(ctx); err != nil {
		return err
	}
	if err := m.count(ctx, out); err != nil {
		return err
	}
	var times []float64
	for range m.options.Repeat {
		if err := m.consumer.ChangePayments(ctx, month); err != nil {
			return err
		}
		task, err := m.refresh(ctx, months(), out.Scopes, out.Differences, nil)
		if err != nil {
			return err
		}
		times = append(times, task)
		m.options.Note("refresh: %d differences in %.2f s", out.Differences, task)
	}
	out.Seconds = median(times)
	if out.Seconds > 0 {
		out.DifferencesPerSecond = float64(int64(float64(out.Differences) / out.Seconds))
	}
	memory, err := m.stack.Memory()
	if err != nil || m.options.Large == 0 {
		out.RSSBytes = memory.Consumer
		return err
	}
	out.RSSBytes = memory.Consumer
	out.LargeScope, err = m.large(ctx)
	return err
}

func (m *refresher) count(ctx context.Context, out *Refresh) error {
	counted, err := m.consumer.CountStatements(ctx, true)
	if err != nil {
		return err
	}
	before := int64(0)
	if counted {
		if before, err = m.consumer.Statements(ctx); err != nil {
			return err
		}
	}
	took, err := m.refresh(ctx, months(), out.Scopes, out.Differences, nil)
	if err != nil {
		return err
	}
	m.options.Note("first refresh: %.2f s", took)
	if !counted {
		out.StatementsBy = "nobody: this PostgreSQL has no pg_stat_statements"
		return nil
	}
	after, err := m.consumer.Statements(ctx)
	if err != nil {
		return err
	}
	perScope := float64(int64(float64(after-before)/float64(out.Scopes)*100)) / 100
	out.StatementsPerScope, out.StatementsBy = &perScope, "pg_stat_statements"
	_, err = m.consumer.CountStatements(ctx, false)
	return err
}

func months() string { return fmt.Sprintf(`{"month_from":"%d","month_to":"%d"}`, month, month) }

// large refreshes the one large scope, and looks at its lease all the while.
func (m *refresher) large(ctx context.Context) (*LargeScope, error) {
	out := &LargeScope{Differences: int64(m.options.Large), LeaseSeconds: shortestLease.Seconds()}
	least, attempts := shortestLease, int64(0)
	look := func(id string) error {
		lease, err := m.consumer.RefreshLease(ctx, id)
		if lease.Held {
			least = min(least, lease.Left)
		}
		attempts = lease.Attempt
		return err
	}
	payload := fmt.Sprintf(`{"scopes":[{"station_id":%d,"bill_month":"%d"}]}`, largeStation, largeMonth)
	var err error
	if out.Seconds, err = m.refresh(ctx, payload, 1, out.Differences, look); err != nil {
		return nil, err
	}
	out.LeastLeaseSeconds, out.LeaseKept = seconds(least), least > 0 && attempts == 1
	m.result.expect("large scope, its lease kept", true, out.LeaseKept)
	memory, err := m.stack.Memory()
	out.RSSBytes = memory.Consumer
	return out, err
}

// refresh submits a request of its own key, waits for its end and holds its
// counts to what must be: every difference has news.
func (m *refresher) refresh(ctx context.Context, payload string, scopes, differences int64, look func(id string) error) (float64, error) {
	m.serial++
	submission, _, err := m.client.SubmitRefresh(ctx, &consumerv1.RefreshRequest{
		Projection: "bills", Payload: payload, BusinessKey: fmt.Sprintf("bench-%d", m.serial), Trigger: "bench",
	})
	if err != nil {
		return 0, err
	}
	if submission.GetCode() != "" {
		return 0, fmt.Errorf("refused: %s: %s", submission.GetCode(), submission.GetMessage())
	}
	id := submission.GetTaskId()
	if err := m.await(ctx, id, look); err != nil {
		return 0, err
	}
	task, _, err := m.client.RefreshTask(ctx, id)
	if err != nil {
		return 0, err
	}
	expect := func(what string, want, got any) { m.result.expect("refresh "+payload+", "+what, want, got) }
	expect("state", "SUCCESS", api.Word(task.GetTask().GetState()))
	expect("scopes done", scopes, task.GetScopesDone())
	expect("differences", differences, task.GetCounts().GetDifferences())
	expect("updated", differences, task.GetCounts().GetUpdated())
	return seconds(task.GetTask().GetUpdatedAt().AsTime().Sub(task.GetTask().GetCreatedAt().AsTime())), nil
}

// await looks at the task in the database, which takes nothing from an operator's calls.
func (m *refresher) await(ctx context.Context, id string, look func(id string) error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if look != nil {
			if err := look(id); err != nil {
				return err
			}
		}
		lease, err := m.consumer.RefreshLease(ctx, id)
		if err != nil || lease.Ended {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := m.stack.Died(); err != nil {
			return err
		}
	}
}
