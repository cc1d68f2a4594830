package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"lockstep.dev/services/lockstep/internal/store"
)

// Reach is how a running stack is reached: what `lockstep dev --json` prints and
// what `lockstep demo --against` reads.
type Reach struct {
	CenterREST    string `json:"center_rest"`
	ConsumerREST  string `json:"consumer_rest"`
	OperatorToken string `json:"operator_token"`
	// CAFile holds the certificates that both REST sides are verified by; "" is the system's.
	CAFile       string `json:"ca_file,omitempty"`
	CenterDSN    string `json:"center_dsn"`
	ConsumerDSN  string `json:"consumer_dsn"`
	CenterGRPC   string `json:"center_grpc,omitempty"`
	ConsumerGRPC string `json:"consumer_grpc,omitempty"`
	Consumer     string `json:"consumer"`
	Dir          string `json:"dir,omitempty"`
}

// ReadReach reads the description of a running stack.
func ReadReach(path string) (*Reach, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, fmt.Errorf("read how the stack is reached: %w", err)
	}
	reach := &Reach{}
	if err := json.Unmarshal(text, reach); err != nil {
		return nil, fmt.Errorf("read how the stack is reached: %s: %w", path, err)
	}
	for name, value := range map[string]string{
		"center_rest": reach.CenterREST, "consumer_rest": reach.ConsumerREST, "operator_token": reach.OperatorToken,
		"center_dsn": reach.CenterDSN, "consumer_dsn": reach.ConsumerDSN,
	} {
		if value == "" {
			return nil, fmt.Errorf("%s: %s is missing", path, name)
		}
	}
	if reach.Consumer != ConsumerApp {
		return nil, fmt.Errorf("%s: the example's consumer is %s, not %q", path, ConsumerApp, reach.Consumer)
	}
	return reach, nil
}

// Attach loads the demo's data into a stack that somebody else runs, whose
// tables are there and empty. It starts and stops nothing; what it loads stays.
func Attach(ctx context.Context, reach *Reach, options Options) (*Stack, error) {
	s := &Stack{options: options, reach: reach, Token: reach.OperatorToken, CenterDSN: reach.CenterDSN, ConsumerDSN: reach.ConsumerDSN}
	if err := options.Validate(); err != nil {
		return nil, err
	}
	if err := s.demo(); err != nil {
		return nil, err
	}
	if err := s.empty(ctx); err != nil {
		return nil, err
	}
	if err := s.fill(ctx); err != nil {
		return nil, err
	}
	return s, s.subscribe(ctx)
}

// empty refuses tables that hold rows: the demo's figures would count them too.
func (s *Stack) empty(ctx context.Context) error {
	center, consumer, err := s.Pools(ctx)
	if err != nil {
		return err
	}
	defer center.Close()
	defer consumer.Close()
	answers, err := center.HasRows(ctx, store.AnswerTable())
	if err != nil {
		return err
	}
	projected, err := consumer.HasRows(ctx, store.ProjectionTable())
	if err != nil {
		return err
	}
	if answers || projected {
		return errors.New("the example's tables hold rows already; the demo's figures are of a stack that is new")
	}
	return nil
}

// MakeTables gives both databases the example's tables, empty. The services'
// own are made by their migrate, which comes first.
func MakeTables(ctx context.Context, centerDSN, consumerDSN string) error {
	if err := store.MigrateAnswers(ctx, centerDSN); err != nil {
		return fmt.Errorf("make the center's tables: %w", err)
	}
	if err := store.MigrateProjection(ctx, consumerDSN); err != nil {
		return fmt.Errorf("make the consumer's tables: %w", err)
	}
	return nil
}
