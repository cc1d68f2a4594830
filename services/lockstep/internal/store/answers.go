package store

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
	"lockstep.dev/services/lockstep/internal/world"
)

// AnswerTable is the example's system of record.
func AnswerTable() pgx.Identifier { return pgx.Identifier{"answers", "answer"} }

// ProjectionTable is the example's projection.
func ProjectionTable() pgx.Identifier { return pgx.Identifier{"hall", "answer_projection"} }

// pull feeds COPY from a sequence of rows.
type pull[T any] struct {
	next   func() (T, error, bool)
	values func(T) []any
	row    T
	err    error
}

func (p *pull[T]) Next() bool {
	row, err, ok := p.next()
	p.row, p.err = row, err
	return ok && err == nil
}
func (p *pull[T]) Values() ([]any, error) { return p.values(p.row), nil }
func (p *pull[T]) Err() error             { return p.err }

// FillCenter loads the forms and their answers.
func (p Pool) FillCenter(ctx context.Context, forms []world.Form, answers iter.Seq[world.Answer]) error {
	_, err := p.CopyFrom(ctx, pgx.Identifier{"answers", "form"}, []string{"form_id", "tenant_id", "title"},
		pgx.CopyFromSlice(len(forms), func(i int) ([]any, error) {
			return []any{forms[i].Collection, forms[i].TenantID, forms[i].Title}, nil
		}))
	if err != nil {
		return fmt.Errorf("load the forms: %w", err)
	}
	next, stop := iter.Pull(answers)
	defer stop()
	err = p.copyFrom(ctx, AnswerTable(),
		[]string{"tenant_id", "answer_id", "form_id", "version", "seq_no", "revision", "deleted", "values"},
		&pull[world.Answer]{
			next: func() (world.Answer, error, bool) { a, ok := next(); return a, nil, ok },
			values: func(a world.Answer) []any {
				return []any{a.TenantID, [16]byte(a.Key), a.Collection, a.Version, a.Sequence, a.Revision, a.Deleted, jsonb(a.Values)}
			},
		})
	if err != nil {
		return fmt.Errorf("load the answers: %w", err)
	}
	return p.Analyze(ctx, AnswerTable())
}

// FillProjection loads the projection. Its rows were created before anything
// else happened, those of the future a year from now.
func (p Pool) FillProjection(ctx context.Context, rows iter.Seq2[world.Projected, error], now time.Time) error {
	if err := p.copyProjection(ctx, rows, now); err != nil {
		return fmt.Errorf("load the projection: %w", err)
	}
	return p.Analyze(ctx, ProjectionTable())
}

func (p Pool) copyProjection(ctx context.Context, rows iter.Seq2[world.Projected, error], now time.Time) error {
	next, stop := iter.Pull2(rows)
	defer stop()
	past, future := now.AddDate(0, -1, 0), now.AddDate(1, 0, 0)
	return p.copyFrom(ctx, ProjectionTable(),
		[]string{
			"tenant_id", "answer_id", "form_id", "form_version", "seq_no", "revision", "content_hash", "deleted", "values",
			"created_at", "biz_ext", "apply_id", "flow_id", "link_state",
		},
		&pull[world.Projected]{next: next, values: func(r world.Projected) []any {
			created := past
			if r.Future {
				created = future
			}
			return []any{
				r.TenantID, [16]byte(r.Key), r.Collection, int64(r.Version), r.Sequence, r.Revision, r.Hash[:], r.Deleted, jsonb(r.Values),
				created, r.BizExt, r.ApplyID, r.FlowID, r.LinkState,
			}
		}})
}

// loading are the settings of a statement that loads a table: it may take as long
// as there are rows to come, and its commit is flushed, because VACUUM marks no
// page visible before that.
const loading = `SET LOCAL statement_timeout = 0; SET LOCAL synchronous_commit = on`

// copyFrom loads rows in one transaction.
func (p Pool) copyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) error {
	return pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, loading); err != nil {
			return err
		}
		_, err := tx.CopyFrom(ctx, table, columns, rows)
		return err
	})
}

// jsonb keeps nil an SQL NULL; as text, so that no digit of a number is lost.
func jsonb(values []byte) any {
	if values == nil {
		return nil
	}
	return string(values)
}

// ChangeCenter gives answers the newer values that no delivery brought over.
func (p Pool) ChangeCenter(ctx context.Context, answers []world.Answer) error {
	return pg.InTx(ctx, p.Pool, func(tx pgx.Tx) error {
		for _, a := range answers {
			tag, err := tx.Exec(ctx, `UPDATE answers.answer SET revision = $3, deleted = $4, "values" = $5, updated_at = now()
				WHERE tenant_id = $1 AND answer_id = $2`,
				a.TenantID, [16]byte(a.Key), a.Revision, a.Deleted, jsonb(a.Values))
			if err := one(tag.RowsAffected(), err, a.Ref()); err != nil {
				return err
			}
		}
		return nil
	})
}

// DamageProjection does to the projection what the changes say.
func (p Pool) DamageProjection(ctx context.Context, c *world.Changes, now time.Time) error {
	err := pg.InTx(ctx, p.Pool, func(tx pgx.Tx) error {
		for _, ref := range c.Deleted {
			tag, err := tx.Exec(ctx, `DELETE FROM hall.answer_projection WHERE tenant_id = $1 AND answer_id = $2`, ref.TenantID, [16]byte(ref.Key))
			if err := one(tag.RowsAffected(), err, ref); err != nil {
				return err
			}
		}
		for _, r := range c.Updated {
			tag, err := tx.Exec(ctx, `UPDATE hall.answer_projection SET revision = $3, content_hash = $4, deleted = $5, "values" = $6
				WHERE tenant_id = $1 AND answer_id = $2`,
				r.TenantID, [16]byte(r.Key), r.Revision, r.Hash[:], r.Deleted, jsonb(r.Values))
			if err := one(tag.RowsAffected(), err, r.Ref()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("damage the projection: %w", err)
	}
	return p.FillProjection(ctx, withoutError(c.Inserted), now)
}

func one(changed int64, err error, ref world.Ref) error {
	if err != nil {
		return fmt.Errorf("%s: %w", ref, err)
	}
	if changed != 1 {
		return fmt.Errorf("%s: %d rows changed, not one", ref, changed)
	}
	return nil
}

func withoutError(rows []world.Projected) iter.Seq2[world.Projected, error] {
	return func(yield func(world.Projected, error) bool) {
		for _, r := range rows {
			if !yield(r, nil) {
				return
			}
		}
	}
}
