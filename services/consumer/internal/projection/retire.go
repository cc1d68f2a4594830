package projection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/evidence"
)

// ErrNoHold: the mapping has no retire_hold column, so a row that is brought
// back would be retired again by the next task.
var ErrNoHold = errors.New("the mapping has no retire_hold column")

// Conflict is a row whose hash contradicts the center's at the same revision.
type Conflict struct {
	Key      string // raw
	Expected Expected
	Center   evidence.Row
}

// MarkConflict records, in each row that is still as expected, the revision and
// both hashes, and returns the raw keys of the rows marked. Nothing but
// conflict_detail changes; without that column nothing is done.
func (p *Projection) MarkConflict(ctx context.Context, tx pgx.Tx, at Scope, conflicts []Conflict) ([]string, error) {
	t := p.table
	if len(conflicts) == 0 || t.ConflictDetail == "" {
		return nil, nil
	}
	var was triples
	details := make([]string, len(conflicts))
	for i := range conflicts {
		c := &conflicts[i]
		was.add(c.Key, c.Expected)
		details[i] = fmt.Sprintf(`{"revision":%d,"local_hash":"%s","center_hash":"%s"}`, c.Center.Revision, c.Expected.row.Hash, c.Center.Hash)
	}
	return p.change(ctx, tx, "mark conflicts", "", fmt.Sprintf("%s = v.extra", t.ConflictDetail), at, was, details)
}

// RetireItem is a candidate with a proof of its absence.
type RetireItem struct {
	Key      string // raw
	Expected Expected
	ProofID  string
}

// Retire softly retires each row that is still as expected, was not created
// after windowStart and is not held, and returns the raw keys of the rows
// retired. A row without a create time never is.
func (p *Projection) Retire(ctx context.Context, tx pgx.Tx, at Scope, windowStart time.Time, items []RetireItem) ([]string, error) {
	t := p.table
	if len(items) == 0 {
		return nil, nil
	}
	var was triples
	proofs := make([]string, len(items))
	for i := range items {
		was.add(items[i].Key, items[i].Expected)
		proofs[i] = items[i].ProofID
	}
	also := fmt.Sprintf(" AND t.%[1]s IS NOT NULL AND t.%[1]s::timestamptz <= $10", t.CreateTime)
	if t.RetireHold != "" {
		also += fmt.Sprintf(" AND t.%s IS NOT TRUE", t.RetireHold)
	}
	set := fmt.Sprintf("%[1]s = now(), %[2]s = COALESCE(t.%[2]s, 0) + 1", t.Retired, t.ProjectionVersion)
	if t.ProofID != "" {
		set += fmt.Sprintf(", %s = v.extra", t.ProofID)
	}
	return p.change(ctx, tx, "retire", also, set, at, was, proofs, windowStart)
}

// change sets something in each row that is still as expected. v.extra is one
// text a row; what the condition also needs starts at $10.
func (p *Projection) change(ctx context.Context, tx pgx.Tx, deed, also, set string, at Scope, was triples, extra []string, more ...any) ([]string, error) {
	if len(extra) > MaxBatch {
		return nil, fmt.Errorf("%s %d rows at once: at most %d", deed, len(extra), MaxBatch)
	}
	t := p.table
	args := append([]any{at.TenantID, at.CollectionID}, was.args(t)...)
	args = append(append(args, extra), more...)
	rows, err := tx.Query(ctx, fmt.Sprintf(`WITH v AS (
			SELECT * FROM unnest($3::%[1]s[], $4::text[], $5::bigint[], $6::bytea[], $7::boolean[], $8::bigint[], $9::text[])
			AS v(%[2]s, extra)), locked AS (%[3]s)
		UPDATE %[4]s AS t SET %[5]s FROM locked AS v
		WHERE t.%[6]s = $1 AND t.%[7]s = v.key RETURNING t.%[7]s`,
		t.KeyType(), triplesColumns, lockedSQL(t, also), t.Ident, set, t.Tenant, t.Key), args...)
	if err != nil {
		return nil, fmt.Errorf("%s %d rows: %w", deed, len(extra), err)
	}
	keys, err := p.collect(rows, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("%s %d rows: %w", deed, len(extra), err)
	}
	return keys, nil
}

// Unretire brings a retired row back and holds it: from then on it is reported
// and never retired. It says whether there was such a row.
func (p *Projection) Unretire(ctx context.Context, tx pgx.Tx, at Scope, key string) (bool, error) {
	t := p.table
	if t.RetireHold == "" {
		return false, ErrNoHold
	}
	tag, err := tx.Exec(ctx, fmt.Sprintf(`UPDATE %[1]s AS t SET %[2]s = NULL, %[3]s = true, %[4]s = COALESCE(t.%[4]s, 0) + 1
		WHERE t.%[5]s = $1 AND t.%[6]s = $2::%[7]s AND t.%[8]s = $3::%[9]s AND t.%[2]s IS NOT NULL`,
		t.Ident, t.Retired, t.RetireHold, t.ProjectionVersion, t.Tenant, t.Collection, t.CollectionType(), t.Key, t.KeyType()),
		at.TenantID, at.CollectionID, t.KeyArg(key))
	if err != nil {
		return false, fmt.Errorf("bring a retired row back: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}
