package dev

import (
	"context"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/lockstep/internal/api"
	"lockstep.dev/services/lockstep/internal/store"
)

// CenterURL is the base of the center's REST interface.
func (s *Stack) CenterURL() string {
	if s.reach != nil {
		return s.reach.CenterREST
	}
	return "http://" + s.CenterAt.HTTP
}

// ConsumerURL is the base of the consumer's REST interface.
func (s *Stack) ConsumerURL() string {
	if s.reach != nil {
		return s.reach.ConsumerREST
	}
	return "http://" + s.ConsumerAt.HTTP
}

// CenterClient calls the center as the stack's admin.
func (s *Stack) CenterClient() (*api.Client, error) { return s.client(s.CenterURL()) }

// ConsumerClient calls the consumer as the stack's admin.
func (s *Stack) ConsumerClient() (*api.Client, error) { return s.client(s.ConsumerURL()) }

func (s *Stack) client(url string) (*api.Client, error) {
	client, err := api.New(url, s.Token)
	if err != nil || s.reach == nil || s.reach.CAFile == "" {
		return client, err
	}
	return client, client.VerifyBy(s.reach.CAFile)
}

// Pay writes payments that no stored bill shows yet.
func (s *Stack) Pay(ctx context.Context) error {
	pool, err := store.Open(ctx, s.ConsumerDSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	return pool.Pay(ctx)
}

// subscribe registers the tenants and grants every collection, as an operator would.
func (s *Stack) subscribe(ctx context.Context) error {
	center, err := s.CenterClient()
	if err != nil {
		return err
	}
	registered := map[int64]bool{}
	for _, grant := range s.options.Example.Grants {
		if !registered[grant.TenantID] {
			if err := center.AddTenant(ctx, ConsumerApp, grant.TenantID); err != nil {
				return err
			}
			registered[grant.TenantID] = true
		}
		if _, _, err := center.SetGrant(ctx, &centerv1.SetGrantRequest{
			Consumer: ConsumerApp, TenantId: grant.TenantID, CollectionId: grant.Collection,
			Enabled: true, ReadAllowed: true, SubscribeAllowed: true,
		}); err != nil {
			return err
		}
	}
	s.options.Note("grants: %d collections for %s", len(s.options.Example.Grants), ConsumerApp)
	return nil
}
