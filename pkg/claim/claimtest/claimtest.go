// Package claimtest is the one test that every claim site must pass: two
// workers, one row, the same instant, and only the younger claim has effect.
// Tests only.
package claimtest

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/claim"
)

// Rounds is how often each site is tried.
const Rounds = 100

// instant is the claimed_at of every claim: the clock tells them apart nowhere.
const instant = "2026-03-04 12:00:00+00"

// Site is a claim site as production uses it.
type Site struct {
	claim.Site
	Pool *pgxpool.Pool
	// NewRow makes a row that can be taken now.
	NewRow func(ctx context.Context) (uuid.UUID, error)
	// Take is the site's own claim.
	Take func(ctx context.Context, worker string) (claim.Claim, bool, error)
	// Sweep is the site's own sweep of expired claims, or its take-over; the
	// row must be claimable afterwards. Nil where Take takes over by itself.
	Sweep func(ctx context.Context) error
	// Ready makes a swept row due again, where the site backs off.
	Ready string // SET fragment, e.g. "due_at = now()"
	// Stale are the writes an old worker may still try, by name: conclusion,
	// failure, give-back, effect, checkpoint, renewal.
	Stale map[string]func(ctx context.Context, c claim.Claim) error
	// Effects counts what effects left behind for a row.
	Effects func(ctx context.Context, id uuid.UUID) (int, error)
	// Conclude is the conclusion of the row's owner.
	Conclude func(ctx context.Context, c claim.Claim) error
	// Request is a new request arriving while the row is claimed; nil where
	// the site has none. Pending says whether it is still to be served.
	Request func(ctx context.Context, id uuid.UUID) error
	Pending func(ctx context.Context, id uuid.UUID) (bool, error)
}

var uuidShape = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Run plays the rounds and prints one line with what it counted.
func Run(t *testing.T, s Site) {
	t.Helper()
	ctx := t.Context()
	staleWrites, lost, stuck := 0, 0, 0
	tokens := map[string]bool{}
	for round := range Rounds {
		id, err := s.NewRow(ctx)
		must(t, err)
		old := s.mustTake(ctx, t, id, "old", tokens)
		if s.Request != nil {
			must(t, s.Request(ctx, id))
		}
		s.exec(ctx, t, "lease_until = now() - interval '1 hour'", id)
		if s.Sweep != nil {
			must(t, s.Sweep(ctx))
		}
		if s.Ready != "" {
			s.exec(ctx, t, s.Ready, id)
		}
		young := s.mustTake(ctx, t, id, "young", tokens)

		before := s.row(ctx, t, id)
		effects := s.effects(ctx, t, id)
		for name, write := range s.Stale {
			if err := write(ctx, old); !errors.Is(err, claim.ErrFenced) {
				staleWrites++
				t.Errorf("%s round %d: the old worker's %s gave %v, want ErrFenced", s.Name, round, name, err)
			}
			if after := s.row(ctx, t, id); after != before {
				staleWrites++
				t.Errorf("%s round %d: the old worker's %s changed the row\nfrom %s\nto   %s", s.Name, round, name, before, after)
			}
			if now := s.effects(ctx, t, id); now != effects {
				staleWrites++
				t.Errorf("%s round %d: the old worker's %s left %d effects", s.Name, round, name, now-effects)
			}
		}
		if err := s.Conclude(ctx, young); err != nil {
			lost++
			t.Errorf("%s round %d: the young worker's conclusion failed: %v", s.Name, round, err)
		}
		if s.claimed(ctx, t, id) {
			stuck++
			t.Errorf("%s round %d: the row is still claimed", s.Name, round)
		}
		if s.Pending != nil {
			pending, err := s.Pending(ctx, id)
			must(t, err)
			if !pending {
				lost++
				t.Errorf("%s round %d: the request that came in during the claim was lost", s.Name, round)
			}
		}
		if t.Failed() {
			break
		}
	}
	fmt.Printf("fence site=%s rounds=%d stale_writes=%d lost=%d stuck=%d\n", s.Name, Rounds, staleWrites, lost, stuck)
}

func (s Site) mustTake(ctx context.Context, t *testing.T, id uuid.UUID, worker string, tokens map[string]bool) claim.Claim {
	t.Helper()
	c, ok, err := s.Take(ctx, worker)
	must(t, err)
	if !ok || c.ID != id {
		t.Fatalf("%s: %s took %v (found %t), want row %v", s.Name, worker, c, ok, id)
	}
	s.exec(ctx, t, "claimed_at = '"+instant+"'", id)
	var token string
	must(t, s.Pool.QueryRow(ctx, fmt.Sprintf("SELECT claim_token::text FROM %s WHERE %s = $1", s.Table, s.ID), id).Scan(&token))
	if !uuidShape.MatchString(token) || tokens[token] || token == id.String() {
		t.Fatalf("%s: a claim's token must be a fresh uuid", s.Name)
	}
	tokens[token] = true
	return c
}

func (s Site) exec(ctx context.Context, t *testing.T, set string, id uuid.UUID) {
	t.Helper()
	tag, err := s.Pool.Exec(ctx, fmt.Sprintf("UPDATE %s SET %s WHERE %s = $1", s.Table, set, s.ID), id)
	must(t, err)
	if tag.RowsAffected() != 1 {
		t.Fatalf("%s: %s touched %d rows", s.Name, set, tag.RowsAffected())
	}
}

func (s Site) row(ctx context.Context, t *testing.T, id uuid.UUID) string {
	t.Helper()
	var row string
	must(t, s.Pool.QueryRow(ctx, fmt.Sprintf("SELECT t::text FROM %s t WHERE %s = $1", s.Table, s.ID), id).Scan(&row))
	return row
}

func (s Site) effects(ctx context.Context, t *testing.T, id uuid.UUID) int {
	t.Helper()
	if s.Effects == nil {
		return 0
	}
	n, err := s.Effects(ctx, id)
	must(t, err)
	return n
}

func (s Site) claimed(ctx context.Context, t *testing.T, id uuid.UUID) bool {
	t.Helper()
	var claimed bool
	err := s.Pool.QueryRow(ctx, fmt.Sprintf("SELECT claim_token IS NOT NULL FROM %s WHERE %s = $1", s.Table, s.ID), id).Scan(&claimed)
	if errors.Is(err, pgx.ErrNoRows) {
		return false
	}
	must(t, err)
	return claimed
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
