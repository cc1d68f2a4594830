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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

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
// twice, so that equal ranges have one business key. Rows do not tell who asked.
func (Projection) Parse(raw []byte, trigger string) (refresh.Request, error) {
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
	return refresh.Request{Projection: Name, Mode: p.Mode, BusinessKey: "scores " + string(normal), Payload: normal, Range: normal, Trigger: trigger}, nil
}

func decode(raw []byte) (Payload, error) {
	var p Payload
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		member, says := refresh.Unread(err)
		return p, fault.New(fault.InvalidArgument, "the request can't be read").WithField(cmp.Or(member, "payload"), "%s", says)
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
