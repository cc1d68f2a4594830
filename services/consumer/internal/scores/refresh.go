package scores

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/services/consumer/internal/refresh"
)

// Resolve yields the scopes by candidate and period.
func (Projection) Resolve(ctx context.Context, tx pgx.Tx, payload []byte, yield func(refresh.Scope) error) error {
	p, err := decode(payload)
	if err != nil {
		return err
	}
	ids, periods := make([]int64, 0, len(p.Scopes)), make([]int32, 0, len(p.Scopes))
	for _, s := range p.Scopes {
		ids, periods = append(ids, s.CandidateID), append(periods, s.Period)
	}
	if p.CandidateIDs == nil {
		p.CandidateIDs = []int64{}
	}
	// Read whole before the first is yielded: the engine writes on the same connection.
	rows, err := tx.Query(ctx, `SELECT * FROM unnest($1::bigint[], $2::int[]) s(candidate_id, period)
		UNION SELECT candidate_id, period FROM (SELECT candidate_id, period FROM scores.candidate_fact UNION ALL SELECT candidate_id, period FROM scores.candidate_score) known
			WHERE (cardinality($3::bigint[]) > 0 OR $4 > 0 OR $5 > 0) AND (cardinality($3::bigint[]) = 0 OR candidate_id = ANY($3))
			AND period >= $4 AND ($5 = 0 OR period <= $5)
		ORDER BY 1, 2`, ids, periods, p.CandidateIDs, p.FirstPeriod, p.LastPeriod)
	if err != nil {
		return fmt.Errorf("find scopes: %w", err)
	}
	scopes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[refresh.Scope])
	if err != nil {
		return fmt.Errorf("find scopes: %w", err)
	}
	for _, s := range scopes {
		if err := yield(s); err != nil {
			return err
		}
	}
	return nil
}

// Check has no stored facts to ask.
func (Projection) Check(context.Context, pgx.Tx, []byte) error { return nil }

// computed is the row as the facts give it: $1 the candidate, $2 the period.
const computed = `WITH means AS (SELECT dimension, round(sum(value * weight) / sum(weight), 2) AS mean
		FROM scores.candidate_fact WHERE candidate_id = $1 AND period = $2 GROUP BY dimension),
	n AS (SELECT count(*) AS known, round(avg(mean), 2) AS total,
		max(mean) FILTER (WHERE dimension = 1) AS skills, max(mean) FILTER (WHERE dimension = 2) AS experience,
		max(mean) FILTER (WHERE dimension = 3) AS education, max(mean) FILTER (WHERE dimension = 4) AS interview,
		max(mean) FILTER (WHERE dimension = 5) AS feedback, max(mean) FILTER (WHERE dimension = 6) AS reliability,
		max(mean) FILTER (WHERE dimension = 7) AS activity, max(mean) FILTER (WHERE dimension = 8) AS fit FROM means) `

const columns = `skills, experience, education, interview, feedback, reliability, activity, fit, total`

// Refresh computes one candidate's period.
func (Projection) Refresh(ctx context.Context, tx pgx.Tx, payload []byte, s refresh.Scope) (refresh.Counts, error) {
	counts := refresh.Counts{Differences: 1}
	p, err := decode(payload)
	if err != nil {
		return counts, err
	}
	tag, err := tx.Exec(ctx, computed+`UPDATE scores.candidate_score s SET (`+columns+`) = (n.skills, n.experience, n.education, n.interview, n.feedback,
			n.reliability, n.activity, n.fit, n.total), refresh_version = refresh_version + 1, refreshed_at = now()
		FROM n WHERE s.candidate_id = $1 AND s.period = $2
		AND (s.skills, s.experience, s.education, s.interview, s.feedback, s.reliability, s.activity, s.fit, s.total)
			IS DISTINCT FROM (n.skills, n.experience, n.education, n.interview, n.feedback, n.reliability, n.activity, n.fit, n.total)`, s.ID, s.Month)
	if err != nil {
		return counts, fmt.Errorf("update the score: %w", err)
	}
	if counts.Updated = tag.RowsAffected(); counts.Updated > 0 {
		return counts, nil
	}
	if p.Mode == refresh.ReviewCreate {
		tag, err = tx.Exec(ctx, computed+`INSERT INTO scores.candidate_score (candidate_id, period, `+columns+`)
			SELECT $1, $2, `+columns+` FROM n WHERE known > 0 ON CONFLICT DO NOTHING`, s.ID, s.Month)
		if err != nil {
			return counts, fmt.Errorf("insert the score: %w", err)
		}
		if counts.Created = tag.RowsAffected(); counts.Created > 0 {
			return counts, nil
		}
	}
	return unwritten(ctx, tx, s, counts)
}

// unwritten tells a row that is right already from one that is not there.
func unwritten(ctx context.Context, tx pgx.Tx, s refresh.Scope, counts refresh.Counts) (refresh.Counts, error) {
	var row, facts bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM scores.candidate_score WHERE candidate_id = $1 AND period = $2),
		EXISTS (SELECT FROM scores.candidate_fact WHERE candidate_id = $1 AND period = $2)`, s.ID, s.Month).Scan(&row, &facts)
	switch {
	case err != nil:
		return counts, fmt.Errorf("look for the score: %w", err)
	case row:
		counts.Unchanged = 1
	case facts:
		counts.Missed, counts.MissedIDs = 1, []int64{s.ID}
	default:
		counts.Differences, counts.Warnings = 0, 1 // nothing is known of this candidate
	}
	return counts, nil
}
