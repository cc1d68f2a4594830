// Package scores keeps one row a candidate and period: eight dimensions computed
// from what is known of the candidate. It is the smallest projection the refresh
// engine serves.
//
// It promises that a row is written inside a claimed scope's transaction only,
// that a row whose facts did not change is not rewritten, and that reading
// writes nothing: a candidate without a row has an empty score. It keeps no
// history.
package scores

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/consumer/internal/refresh"
)

// Name of the projection in requests and settings.
const Name = "scores"

// Dimensions in the order of their numbers, 1 to 8.
var Dimensions = [8]string{"skills", "experience", "education", "interview", "feedback", "reliability", "activity", "fit"}

// maxScopes bounds a request; more are asked for by their periods.
const maxScopes = 10_000

// Projection computes candidate scores.
type Projection struct{}

var _ refresh.Projection = Projection{}

// Name is "scores".
func (Projection) Name() string { return Name }

// Payload is a request: the union of its scopes, and of the periods of its
// candidates that have facts or a row, within first and last where given.
type Payload struct {
	// Mode REVIEW_CREATE may insert rows, EXISTING_ONLY (the default) may not.
	Mode         refresh.Mode `json:"mode"`
	Scopes       []Scope      `json:"scopes,omitempty"`
	CandidateIDs []int64      `json:"candidate_ids,omitempty"`
	FirstPeriod  int32        `json:"first_period,omitempty"`
	LastPeriod   int32        `json:"last_period,omitempty"`
}

// Scope is a candidate's period, yyyyMM.
type Scope struct {
	CandidateID int64 `json:"candidate_id"`
	Period      int32 `json:"period"`
}

// ForScopes is the payload that asks for these scopes.
func ForScopes(scopes []refresh.Scope) ([]byte, error) {
	p := Payload{Mode: refresh.ReviewCreate}
	for _, s := range scopes {
		p.Scopes = append(p.Scopes, Scope{CandidateID: s.ID, Period: s.Month})
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("write a scores request: %w", err)
	}
	return raw, nil
}

// Parse reads a request strictly. Its normal form is sorted and has nothing
// twice, so that equal ranges have one business key.
func (Projection) Parse(raw []byte) (refresh.Request, error) {
	p, err := decode(raw)
	if err != nil {
		return refresh.Request{}, err
	}
	if err := p.check(); err != nil {
		return refresh.Request{}, err
	}
	slices.SortFunc(p.Scopes, func(a, b Scope) int {
		return cmp.Or(cmp.Compare(a.CandidateID, b.CandidateID), cmp.Compare(a.Period, b.Period))
	})
	p.Scopes = slices.Compact(p.Scopes)
	slices.Sort(p.CandidateIDs)
	p.CandidateIDs = slices.Compact(p.CandidateIDs)
	normal, err := json.Marshal(p)
	if err != nil {
		return refresh.Request{}, fmt.Errorf("write the normal form: %w", err)
	}
	return refresh.Request{Projection: Name, Mode: p.Mode, BusinessKey: "scores " + string(normal), Payload: normal, Range: normal}, nil
}

func decode(raw []byte) (Payload, error) {
	var p Payload
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return p, fault.Wrap(err, fault.InvalidArgument, "the request is no JSON object of this projection").WithField("payload", "%s", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return p, fault.New(fault.InvalidArgument, "something follows the request").WithField("payload", "is one JSON object")
	}
	if p.Mode == "" {
		p.Mode = refresh.ExistingOnly
	}
	return p, nil
}

func (p *Payload) check() error {
	wrong := fault.New(fault.InvalidArgument, "the request names no range")
	if p.Mode != refresh.ExistingOnly && p.Mode != refresh.ReviewCreate {
		wrong.WithField("mode", "is %s or %s", refresh.ExistingOnly, refresh.ReviewCreate)
	}
	if len(p.Scopes) == 0 && len(p.CandidateIDs) == 0 && p.FirstPeriod == 0 && p.LastPeriod == 0 {
		wrong.WithField("scopes", "scopes, candidates or periods are needed")
	}
	if len(p.Scopes) > maxScopes || len(p.CandidateIDs) > maxScopes {
		wrong.WithField("scopes", "are at most %d", maxScopes)
	}
	for i, s := range p.Scopes {
		if s.CandidateID < 1 || !isPeriod(s.Period) {
			wrong.WithField(fmt.Sprintf("scopes[%d]", i), "needs a candidate_id above 0 and a period yyyyMM")
		}
	}
	for i, id := range p.CandidateIDs {
		if id < 1 {
			wrong.WithField(fmt.Sprintf("candidate_ids[%d]", i), "is above 0")
		}
	}
	for name, period := range map[string]int32{"first_period": p.FirstPeriod, "last_period": p.LastPeriod} {
		if period != 0 && !isPeriod(period) {
			wrong.WithField(name, "is yyyyMM")
		}
	}
	if p.LastPeriod != 0 && p.FirstPeriod > p.LastPeriod {
		wrong.WithField("last_period", "is before first_period")
	}
	if len(wrong.Fields) > 0 {
		return wrong
	}
	return nil
}

func isPeriod(p int32) bool { return p >= 100001 && p <= 999912 && p%100 >= 1 && p%100 <= 12 }

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
