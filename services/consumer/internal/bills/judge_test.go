package bills

import (
	"testing"

	"lockstep.dev/pkg/fault"
)

func TestLateReviews(t *testing.T) {
	candidate := standing{Line: 50, Progress: 1, Order: 30, Version: 1, Round: 2, Attempt: 3, Plan: 4, Finalized: 1000}
	for name, c := range map[string]struct {
		change func(*standing)
		want   verdict
	}{
		"no snapshot":                          {func(s *standing) { *s = standing{} }, allow},
		"same line, same identity":             {func(*standing) {}, allow},
		"snapshot of no known review":          {func(s *standing) { *s = standing{Line: 50} }, allow},
		"known review never finalized":         {func(s *standing) { s.Finalized = 0; s.Line = 51 }, allow},
		"known review without a plan":          {func(s *standing) { s.Plan = 0; s.Finalized = 2000 }, allow},
		"finalized before":                     {func(s *standing) { s.Finalized = 999 }, allow},
		"finalized before, larger order":       {func(s *standing) { s.Finalized, s.Order, s.Line = 999, 99, 99 }, allow},
		"finalized after":                      {func(s *standing) { s.Finalized = 1001 }, skip},
		"finalized after, smaller order":       {func(s *standing) { s.Finalized, s.Order, s.Line = 1001, 1, 1 }, skip},
		"same time, smaller order":             {func(s *standing) { s.Order = 29 }, allow},
		"same time, smaller order, later line": {func(s *standing) { s.Order, s.Line = 29, 99 }, allow},
		"same time, larger order":              {func(s *standing) { s.Order = 31 }, skip},
		"same time and order, smaller line":    {func(s *standing) { s.Line = 49 }, allow},
		"same time and order, larger line":     {func(s *standing) { s.Line = 51 }, skip},
		"same line, another progress":          {func(s *standing) { s.Progress = 2 }, skip},
		"same line, another round":             {func(s *standing) { s.Round = 1 }, skip},
		"same line, another attempt":           {func(s *standing) { s.Attempt = 9 }, skip},
		"same line, another version":           {func(s *standing) { s.Version = 9 }, skip},
	} {
		t.Run(name, func(t *testing.T) {
			current := candidate
			c.change(&current)
			if got, err := decide(candidate, current); got != c.want || err != nil {
				t.Errorf("got %d (%v), want %d", got, err, c.want)
			}
		})
	}
	for name, spoil := range map[string]func(*standing){
		"line": func(s *standing) { s.Line = 0 }, "progress": func(s *standing) { s.Progress = 0 }, "order": func(s *standing) { s.Order = 0 },
		"version": func(s *standing) { s.Version = 0 }, "round": func(s *standing) { s.Round = 0 }, "attempt": func(s *standing) { s.Attempt = 0 },
		"plan": func(s *standing) { s.Plan = 0 }, "finalize time": func(s *standing) { s.Finalized = 0 },
	} {
		t.Run("a candidate without "+name, func(t *testing.T) {
			bad := candidate
			spoil(&bad)
			_, err := decide(bad, standing{})
			expectReason(t, err, fault.IdentityMismatch)
		})
	}
}
