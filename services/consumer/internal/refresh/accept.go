package refresh

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/fault"
)

// batch is requests being accepted. Its slices run in parallel.
type batch struct {
	engine   *Engine
	requests []Request
	ranges   [][]byte // hashes of what each key stands for
	out      []Submitted
}

func (e *Engine) newBatch(requests []Request) (*batch, error) {
	b := &batch{engine: e, requests: requests}
	seen := make(map[string]bool, len(requests))
	for _, req := range requests {
		if err := e.check(req); err != nil {
			return nil, err
		}
		code := TaskCode(req.Projection, req.BusinessKey)
		if seen[code] {
			return nil, fault.New(fault.InvalidArgument, "two requests have one business key").WithField("business_key", "is given twice")
		}
		seen[code] = true
		sum := sha256.Sum256(req.Range)
		b.ranges = append(b.ranges, sum[:])
		b.out = append(b.out, Submitted{
			TaskID: e.newID(), TaskCode: code, Projection: req.Projection, BusinessKey: req.BusinessKey, Generation: 1, Outcome: Created,
		})
	}
	return b, nil
}

// accept makes the tasks whose keys are new and advances the generation of the others.
func (b *batch) accept(ctx context.Context, tx pgx.Tx) error {
	known, err := b.create(ctx, tx)
	if err != nil {
		return err
	}
	if len(known) > 0 {
		if err := b.advance(ctx, tx, known); err != nil {
			return err
		}
	}
	return b.noteEvents(ctx, tx)
}

// inOrder gives the places of the requests by their tasks' codes: everybody who
// locks several tasks does so in this order.
func (b *batch) inOrder() []int {
	order := make([]int, len(b.out))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return strings.Compare(b.out[x].TaskCode, b.out[y].TaskCode) })
	return order
}

// create makes what is new and returns the places of what was there already.
func (b *batch) create(ctx context.Context, tx pgx.Tx) (known []int, err error) {
	var c columns
	order := b.inOrder()
	for _, i := range order {
		c.add(b, i)
		c.codes, c.keys = append(c.codes, b.out[i].TaskCode), append(c.keys, b.requests[i].BusinessKey)
		c.projections, c.custom = append(c.projections, b.requests[i].Projection), append(c.custom, b.requests[i].CustomKey)
		c.modes = append(c.modes, string(b.requests[i].Mode))
	}
	rows, err := tx.Query(ctx, `INSERT INTO lockstep.refresh_task
		(task_id, projection, task_code, business_key, custom_key, mode, payload, range_hash, requested_by, max_retry)
		SELECT n.*, $10 FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bool[], $6::text[], $7::json[], $8::bytea[], $9::text[]) n
		ON CONFLICT (task_code) DO NOTHING RETURNING task_code`,
		c.ids, c.projections, c.codes, c.keys, c.custom, c.modes, c.payloads, c.ranges, c.triggers, b.engine.set.Retries)
	if err != nil {
		return nil, fmt.Errorf("make the tasks: %w", err)
	}
	made, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("make the tasks: %w", err)
	}
	for _, i := range order {
		if !slices.Contains(made, b.out[i].TaskCode) {
			known = append(known, i)
		}
	}
	return known, nil
}

// columns are rows for unnest.
type columns struct {
	ids                                       []uuid.UUID
	projections, codes, keys, modes, triggers []string
	payloads, ranges                          [][]byte
	custom                                    []bool
	states                                    []string
}

func (c *columns) add(b *batch, i int) {
	c.ids = append(c.ids, b.out[i].TaskID)
	c.payloads, c.ranges = append(c.payloads, b.requests[i].Payload), append(c.ranges, b.ranges[i])
	c.triggers = append(c.triggers, b.requests[i].Trigger)
}

// held is a known task as it stands under its lock.
type held struct {
	ID         uuid.UUID
	Code       string
	State      State
	Mode       Mode
	Generation int64
	RangeHash  []byte
}

// advance is further requests under known keys.
func (b *batch) advance(ctx context.Context, tx pgx.Tx, known []int) error {
	tasks, err := b.lock(ctx, tx, known)
	if err != nil {
		return err
	}
	again, err := b.again(ctx, tx, known, tasks)
	if err != nil {
		return err
	}
	var c columns
	for _, i := range known {
		t := tasks[b.out[i].TaskCode]
		b.judge(i, t, again[t.ID])
		if b.out[i].Outcome == Advanced {
			c.add(b, i)
			c.states = append(c.states, string(must(t.State, Requested)))
		}
	}
	if len(c.ids) == 0 {
		return nil
	}
	_, err = tx.Exec(ctx, `UPDATE lockstep.refresh_task t SET payload = n.payload, range_hash = n.range_hash, requested_by = n.trigger,
		max_retry = $6, state = n.state, request_generation = t.request_generation + 1, updated_at = now(),
		retry_count = CASE t.state WHEN 'RUNNING' THEN t.retry_count ELSE 0 END, due_at = CASE t.state WHEN 'RUNNING' THEN t.due_at ELSE now() END,
		code = CASE t.state WHEN 'RUNNING' THEN t.code ELSE '' END, error = CASE t.state WHEN 'RUNNING' THEN t.error ELSE '' END
		FROM unnest($1::uuid[], $2::json[], $3::bytea[], $4::text[], $5::text[]) n (task_id, payload, range_hash, trigger, state)
		WHERE t.task_id = n.task_id`, c.ids, c.payloads, c.ranges, c.triggers, c.states, b.engine.set.Retries)
	if err != nil {
		return fmt.Errorf("advance the tasks: %w", err)
	}
	return nil
}

// lock locks the tasks of known keys and reads them, by code.
func (b *batch) lock(ctx context.Context, tx pgx.Tx, known []int) (map[string]held, error) {
	codes := make([]string, 0, len(known))
	for _, i := range known {
		codes = append(codes, b.out[i].TaskCode)
	}
	rows, err := tx.Query(ctx, `SELECT task_id, task_code, state, mode, request_generation, range_hash FROM lockstep.refresh_task
		WHERE task_code = ANY ($1) ORDER BY task_code FOR NO KEY UPDATE`, codes)
	if err != nil {
		return nil, fmt.Errorf("lock the tasks: %w", err)
	}
	tasks := make(map[string]held, len(known))
	var t held
	_, err = pgx.ForEachRow(rows, []any{&t.ID, &t.Code, &t.State, &t.Mode, &t.Generation, &t.RangeHash}, func() error {
		tasks[t.Code] = t
		t.RangeHash = nil // the next row's bytes are not to be written into this one's
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lock the tasks: %w", err)
	}
	for _, code := range codes {
		if _, ok := tasks[code]; !ok {
			return nil, fmt.Errorf("lock the tasks: %s is gone", code)
		}
	}
	return tasks, nil
}

// again says which tasks know their request's source event already. It is a
// statement of its own: the locks may have been waited for, and the wait may
// have been for the very event.
func (b *batch) again(ctx context.Context, tx pgx.Tx, known []int, tasks map[string]held) (map[uuid.UUID]bool, error) {
	var ids []uuid.UUID
	var events []string
	for _, i := range known {
		if event := b.requests[i].SourceEventID; event != "" {
			ids, events = append(ids, tasks[b.out[i].TaskCode].ID), append(events, event)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `SELECT task_id FROM unnest($1::uuid[], $2::text[]) n (task_id, source_event_id)
		JOIN lockstep.refresh_event USING (task_id, source_event_id)`, ids, events)
	if err != nil {
		return nil, fmt.Errorf("look for the source events: %w", err)
	}
	seen, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("look for the source events: %w", err)
	}
	out := make(map[uuid.UUID]bool, len(seen))
	for _, id := range seen {
		out[id] = true
	}
	return out, nil
}

// judge decides what becomes of a request under a known key.
func (b *batch) judge(i int, t held, again bool) {
	req, out := &b.requests[i], &b.out[i]
	out.TaskID, out.Generation = t.ID, t.Generation
	switch {
	case again:
		out.Outcome = Unchanged
	case t.State == Cancelled:
		*out = out.refused(fault.CancelledByOperator, "the task was cancelled; an operator can reopen it")
	case t.Mode != req.Mode, string(t.RangeHash) != string(b.ranges[i]) && (req.Mode == ReviewCreate || !req.Replace):
		*out = out.refused(fault.KeyRangeMismatch, "the business key stands for another range")
	default:
		out.Outcome, out.Generation = Advanced, t.Generation+1
	}
}

// noteEvents remembers the source events of what was accepted.
func (b *batch) noteEvents(ctx context.Context, tx pgx.Tx) error {
	var ids []uuid.UUID
	var events []string
	var generations []int64
	for i, out := range b.out {
		if b.requests[i].SourceEventID != "" && out.wakes() {
			ids, events, generations = append(ids, out.TaskID), append(events, b.requests[i].SourceEventID), append(generations, out.Generation)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `INSERT INTO lockstep.refresh_event (task_id, source_event_id, generation)
		SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[])`, ids, events, generations)
	if err != nil {
		return fmt.Errorf("note the source events: %w", err)
	}
	return nil
}
