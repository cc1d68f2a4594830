package store

import (
	"bytes"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/services/lockstep/internal/world"
)

// Extensions digests the host's own columns of every row that has any, and
// counts those rows. A row that a repair inserted has none.
func (p Pool) Extensions(ctx context.Context) (digest string, rows int64, err error) {
	err = p.QueryRow(ctx, `SELECT encode(sha256(coalesce(string_agg(
			sha256(convert_to(ROW(tenant_id, answer_id, biz_ext, apply_id, flow_id, link_state)::text, 'UTF8')), ''::bytea
			ORDER BY tenant_id, answer_id), ''::bytea)), 'hex'), count(*)
		FROM hall.answer_projection
		WHERE num_nonnulls(biz_ext, apply_id, flow_id, link_state) > 0`).Scan(&digest, &rows)
	if err != nil {
		return "", 0, fmt.Errorf("digest the extension columns: %w", err)
	}
	return digest, rows, nil
}

// side is one side's rows in key order, with the content as PostgreSQL spells
// it, so that nothing of what is being judged takes part in the judgement.
type side struct {
	rows pgx.Rows
	done bool
	row  compared
}

type compared struct {
	tenant     int64
	key        world.Key
	collection string
	version    int64
	sequence   int64
	revision   int64
	deleted    bool
	values     *string
	hash       []byte
}

func (s *side) advance() error {
	if s.done = !s.rows.Next(); s.done {
		return s.rows.Err()
	}
	r := &s.row
	*r = compared{}
	return s.rows.Scan(&r.tenant, (*[16]byte)(&r.key), &r.collection, &r.version, &r.sequence, &r.revision, &r.deleted, &r.values, &r.hash)
}

func (r *compared) ref() world.Ref { return world.Ref{TenantID: r.tenant, Key: r.key} }

func order(a, b *side) int {
	switch {
	case a.done:
		return 1
	case b.done:
		return -1
	case a.row.tenant != b.row.tenant:
		if a.row.tenant < b.row.tenant {
			return -1
		}
		return 1
	}
	return bytes.Compare(a.row.key[:], b.row.key[:])
}

func equal(a, b *compared) bool {
	return a.collection == b.collection && a.version == b.version && a.sequence == b.sequence && a.revision == b.revision &&
		a.deleted == b.deleted && (a.values == nil) == (b.values == nil) && (a.values == nil || *a.values == *b.values)
}

// Differences compares the two tables row by row, content included, and returns
// what differs; a projected row whose stored hash is not its content's counts.
func Differences(ctx context.Context, center, consumer Pool) ([]world.Ref, error) {
	return differences(ctx, center, consumer)
}

func differences(ctx context.Context, center, consumer dataset.Querier) ([]world.Ref, error) {
	answers, err := center.Query(ctx, `SELECT tenant_id, answer_id, form_id, version::bigint, seq_no, revision, deleted, "values"::text, NULL::bytea
		FROM answers.answer ORDER BY tenant_id, answer_id`)
	if err != nil {
		return nil, fmt.Errorf("read the answers: %w", err)
	}
	defer answers.Close()
	projected, err := consumer.Query(ctx, `SELECT tenant_id, answer_id, form_id, form_version, seq_no, revision, deleted, "values"::text, content_hash
		FROM hall.answer_projection WHERE retired_at IS NULL ORDER BY tenant_id, answer_id`)
	if err != nil {
		return nil, fmt.Errorf("read the projection: %w", err)
	}
	defer projected.Close()
	refs, err := merge(&side{rows: answers}, &side{rows: projected})
	if err != nil {
		return nil, fmt.Errorf("compare the two sides: %w", err)
	}
	return refs, nil
}

func merge(a, b *side) (different []world.Ref, err error) {
	if err := a.advance(); err != nil {
		return nil, err
	}
	if err := b.advance(); err != nil {
		return nil, err
	}
	var hasher canon.Hasher
	for !a.done || !b.done {
		step := []*side{a, b}
		switch by := order(a, b); {
		case by < 0:
			different = append(different, a.row.ref())
			step = step[:1]
		case by > 0:
			different = append(different, b.row.ref())
			step = step[1:]
		default:
			hashed, err := hashHolds(&hasher, &b.row)
			if err != nil {
				return nil, err
			}
			if !hashed || !equal(&a.row, &b.row) {
				different = append(different, a.row.ref())
			}
		}
		for _, s := range step {
			if err := s.advance(); err != nil {
				return nil, err
			}
		}
	}
	return different, nil
}

func hashHolds(hasher *canon.Hasher, r *compared) (bool, error) {
	var values []byte
	if r.values != nil {
		values = []byte(*r.values)
	}
	hash, err := hasher.Sum(values)
	if err != nil {
		return false, fmt.Errorf("%s: %w", r.ref(), err)
	}
	return bytes.Equal(hash[:], r.hash), nil
}

// Retired lists the rows that were retired, and of them those without a proof.
func (p Pool) Retired(ctx context.Context) (retired, unproven []world.Ref, err error) {
	rows, err := p.Query(ctx, `SELECT tenant_id, answer_id, coalesce(proof_id, '') <> '' FROM hall.answer_projection
		WHERE retired_at IS NOT NULL ORDER BY tenant_id, answer_id`)
	if err != nil {
		return nil, nil, fmt.Errorf("read the retired rows: %w", err)
	}
	var ref world.Ref
	var proven bool
	_, err = pgx.ForEachRow(rows, []any{&ref.TenantID, (*[16]byte)(&ref.Key), &proven}, func() error {
		retired = append(retired, ref)
		if !proven {
			unproven = append(unproven, ref)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the retired rows: %w", err)
	}
	return retired, unproven, nil
}
