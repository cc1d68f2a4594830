package scores

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/fault"
)

// Score is a candidate's row, or an empty one.
type Score struct {
	CandidateID int64
	Period      int32
	Found       bool
	// Dimensions by name, decimals written out; a dimension without a fact is absent.
	Dimensions     map[string]string
	Total          string
	RefreshVersion int64
	RefreshedAt    time.Time
}

// Reader reads scores. It writes nothing.
type Reader struct{ pool *pgxpool.Pool }

// NewReader makes a reader.
func NewReader(pool *pgxpool.Pool) *Reader { return &Reader{pool: pool} }

// Score reads one row; without one it is empty.
func (r *Reader) Score(ctx context.Context, candidate int64, period int32) (Score, error) {
	out := Score{CandidateID: candidate, Period: period, Dimensions: map[string]string{}}
	if candidate < 1 || !isPeriod(period) {
		return out, fault.New(fault.InvalidArgument, "no candidate's period").WithField("period", "is yyyyMM, the candidate_id above 0")
	}
	var values [len(Dimensions)]*string
	var total *string
	into := []any{&total, &out.RefreshVersion, &out.RefreshedAt}
	for i := range values {
		into = append(into, &values[i])
	}
	err := r.pool.QueryRow(ctx, `SELECT total::text, refresh_version, refreshed_at, skills::text, experience::text, education::text, interview::text,
		feedback::text, reliability::text, activity::text, fit::text FROM scores.candidate_score WHERE candidate_id = $1 AND period = $2`,
		candidate, period).Scan(into...)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("read the score of candidate %d: %w", candidate, err)
	}
	out.Found = true
	for i, v := range values {
		if v != nil {
			out.Dimensions[Dimensions[i]] = *v
		}
	}
	if total != nil {
		out.Total = *total
	}
	return out, nil
}
