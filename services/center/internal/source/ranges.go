package source

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/fault"
)

// Plan says how a snapshot's rows are read: part by part, each by whoever is
// free, or as one ordered stream.
type Plan struct {
	// Rows of the snapshot; the parts' rows add up to it. One above the limit
	// where there are more, and then there are no parts.
	Rows  int64
	Parts []Part
	// Ordered: no index gives the keys in order, so that a part of them could
	// only be found by reading all. The one part is a stream in key order.
	Ordered bool
}

// Part is a range of keys, (After, UpTo], and the number of rows in it. Raw
// keys; an empty one leaves the range open.
type Part struct {
	After, UpTo string
	Rows        int64
}

// tooLong stands for a content that is longer than any that can be hashed: it
// is no JSON, so it can't be hashed either, and what is too long stays where it is.
const tooLong = "!"

// rangeStatements are those of a snapshot.
type rangeStatements struct {
	firstStep, step, rest, nullKey string
	whole, record, ordered         string
	first, middle, last            string // parts by their open ends
}

// reading gives the statement for the rows that a condition names.
func reading(t *dataset.Table, numbers string) func(where string) string {
	return func(where string) string {
		// The subquery writes a content as text once, to look at its length.
		return fmt.Sprintf(`SELECT key, revision, deleted, schema_version, sequence,
			CASE WHEN octet_length(content) > %d THEN '%s' ELSE content END
			FROM (SELECT t.%s, %s, (%s)::text FROM %s AS t WHERE %s OFFSET 0)
			AS r (key, revision, deleted, schema_version, sequence, content)`,
			canon.MaxBytes, tooLong, t.Key, numbers, t.Content, t.Ident, where)
	}
}

func buildRanges(t *dataset.Table, in, one string, read func(where string) string) rangeStatements {
	bound := func(operator string, n int) string {
		return fmt.Sprintf(" AND %s %s $%d::%s", t.KeyOrder, operator, n, t.KeyType())
	}
	step := func(where string, n int) string {
		return fmt.Sprintf("SELECT t.%s FROM %s AS t WHERE %s ORDER BY %s OFFSET $%d LIMIT 1", t.Key, t.Ident, where, t.KeyOrder, n)
	}
	return rangeStatements{
		firstStep: step(in, 3), step: step(in+bound(">", 3), 4),
		rest:    fmt.Sprintf("SELECT count(*) FROM (SELECT FROM %s AS t WHERE %s LIMIT $4) AS bounded", t.Ident, in+bound(">", 3)),
		nullKey: fmt.Sprintf("SELECT EXISTS (SELECT FROM %s AS t WHERE %s AND t.%s IS NULL)", t.Ident, in, t.Key),
		whole:   read(in), record: read(one), ordered: read(in + " ORDER BY " + t.KeyOrder),
		first: read(in + bound("<=", 3)), middle: read(in + bound(">", 3) + bound("<=", 4)), last: read(in + bound(">", 3)),
	}
}

// Plan counts the snapshot's rows, at most limit of them, and parts them so
// that each part but the last has exactly partRows. It walks the keys by their
// index, which costs as much as counting them, and reads no content.
func (p *Snapshot) Plan(ctx context.Context, limit int64, partRows int) (Plan, error) {
	// What one part holds needs no walk.
	few := min(limit, int64(partRows))
	n, err := p.count(ctx, few+1)
	if err == nil {
		err = p.notReplaced(ctx)
	}
	if err != nil || n > limit {
		return Plan{Rows: n}, err
	}
	if n <= few {
		return Plan{Rows: n, Parts: []Part{{Rows: n}}}, nil
	}
	walkable, err := p.walkable(ctx, partRows)
	if err != nil {
		return Plan{}, err
	}
	if !walkable {
		if n, err = p.count(ctx, limit+1); err != nil || n > limit {
			return Plan{Rows: n}, err
		}
		return Plan{Rows: n, Parts: []Part{{Rows: n}}, Ordered: true}, nil
	}
	return p.walk(ctx, limit, partRows)
}

// walkable says whether an index gives the keys in order: without one every
// step would sort them all.
func (p *Snapshot) walkable(ctx context.Context, partRows int) (bool, error) {
	rows, err := p.tx.Query(ctx, "EXPLAIN "+p.source.sql.ranges.firstStep, p.rng.TenantID, p.rng.CollectionID, partRows-1)
	if err != nil {
		return false, fmt.Errorf("plan the read of the source: %w", err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return false, fmt.Errorf("plan the read of the source: %w", err)
	}
	return !strings.Contains(strings.Join(lines, "\n"), "Sort"), nil
}

// walk steps from the last key of a part to that of the next.
func (p *Snapshot) walk(ctx context.Context, limit int64, partRows int) (Plan, error) {
	// A comparison never holds for NULL, so no part would have such a row.
	var nullKey bool
	if err := p.tx.QueryRow(ctx, p.source.sql.ranges.nullKey, p.rng.TenantID, p.rng.CollectionID).Scan(&nullKey); err != nil {
		return Plan{}, fmt.Errorf("look for rows without a key: %w", err)
	}
	if nullKey {
		return Plan{}, fault.New(fault.OrderViolation, "the source holds a row without a key")
	}
	var plan Plan
	for after := ""; ; {
		upTo, err := p.step(ctx, after, partRows)
		if err != nil {
			return Plan{}, err
		}
		if upTo == "" {
			return p.end(ctx, plan, after, limit)
		}
		if upTo <= after {
			return Plan{}, errOrder()
		}
		plan.Rows += int64(partRows)
		if plan.Rows > limit {
			return Plan{Rows: limit + 1}, nil
		}
		plan.Parts = append(plan.Parts, Part{After: after, UpTo: upTo, Rows: int64(partRows)})
		after = upTo
	}
}

// step gives the last key of the part behind after; "" where fewer rows are left.
func (p *Snapshot) step(ctx context.Context, after string, partRows int) (upTo string, err error) {
	sql, args := p.source.sql.ranges.firstStep, []any{p.rng.TenantID, p.rng.CollectionID}
	if after != "" {
		sql, args = p.source.sql.ranges.step, append(args, p.source.table.KeyArg(after))
	}
	rows, err := p.tx.Query(ctx, sql, append(args, partRows-1)...)
	if err != nil {
		return "", fmt.Errorf("walk the keys of the source: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if upTo, err = p.source.decodeKey(rows.RawValues()[0]); err != nil {
			return "", err
		}
	}
	if err := rows.Err(); err != nil {
		return "", fmt.Errorf("walk the keys of the source: %w", err)
	}
	return upTo, nil
}

// end counts the rows behind the last step and opens the last part upwards.
func (p *Snapshot) end(ctx context.Context, plan Plan, after string, limit int64) (Plan, error) {
	if after == "" {
		return Plan{}, fmt.Errorf("the source gave fewer rows than it counted in the same snapshot")
	}
	var n int64
	err := p.tx.QueryRow(ctx, p.source.sql.ranges.rest, p.rng.TenantID, p.rng.CollectionID, p.source.table.KeyArg(after), limit-plan.Rows+1).Scan(&n)
	if err != nil {
		return Plan{}, fmt.Errorf("count the last rows of the source: %w", err)
	}
	if plan.Rows += n; plan.Rows > limit {
		return Plan{Rows: limit + 1}, nil
	}
	if n == 0 { // the last key ended a part
		plan.Parts[len(plan.Parts)-1].UpTo = ""
		return plan, nil
	}
	plan.Parts = append(plan.Parts, Part{After: after, Rows: n})
	return plan, nil
}

// part chooses the statement that reads a part, and its parameters.
func (p *Snapshot) part(part Part, ordered bool) (sql string, args []any) {
	s, key := p.source.sql.ranges, p.source.table.KeyArg
	args = []any{p.rng.TenantID, p.rng.CollectionID}
	switch {
	case p.rng.Key != "":
		return s.record, append(args, key(p.rng.Key))
	case ordered:
		return s.ordered, args
	case part.After == "" && part.UpTo == "":
		return s.whole, args
	case part.After == "":
		return s.first, append(args, key(part.UpTo))
	case part.UpTo == "":
		return s.last, append(args, key(part.After))
	}
	return s.middle, append(args, key(part.After), key(part.UpTo))
}

func errOrder() error {
	return fault.New(fault.OrderViolation, "the source gave its keys out of order, or one key twice")
}
