package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep.dev/services/lockstep/internal/dev"
)

func newDev(env *Environment) *cobra.Command {
	options := dev.Options{Now: env.Now, Note: env.note}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Start both services on damaged example data and stay up",
		Long: `Starts what the demo starts, PostgreSQL, a center and a consumer with loaded and
damaged data and payments that no bill shows yet, makes no task, says how to
reach it, and stays up until it is interrupted; then it stops and removes
everything and exits with 0.`,
		Example: `  lockstep dev
  lockstep dev --json --rows 2000`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			stack, err := dev.Start(cmd.Context(), options)
			if err != nil {
				return interrupted(cmd, err)
			}
			defer func() { err = errors.Join(err, stack.Stop()) }()
			if err := stack.Pay(cmd.Context()); err != nil {
				return interrupted(cmd, err)
			}
			if err := env.tellReach(stack, asJSON); err != nil {
				return err
			}
			return stack.Await(cmd.Context())
		},
	}
	stackFlags(cmd, &options)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object when it is ready; notes go to standard error")
	return cmd
}

func (e *Environment) tellReach(s *dev.Stack, asJSON bool) error {
	at := dev.Reach{
		CenterREST: s.CenterURL(), ConsumerREST: s.ConsumerURL(), OperatorToken: s.Token,
		CenterDSN: s.CenterDSN, ConsumerDSN: s.ConsumerDSN,
		CenterGRPC: s.CenterAt.GRPC, ConsumerGRPC: s.ConsumerAt.GRPC, Consumer: dev.ConsumerApp, Dir: s.Dir,
	}
	if asJSON {
		if err := json.NewEncoder(e.Out).Encode(at); err != nil {
			return fmt.Errorf("print how to reach it: %w", err)
		}
		return nil
	}
	e.print(`
Ready.
  center    REST %s   gRPC %s
            database %s
  consumer  REST %s   gRPC %s
            database %s
  files     %s

In a browser, signing in with the token below:
  %s/console/   %s/console/

For the CLI:
  export LOCKSTEP_CENTER_URL=%s LOCKSTEP_CONSUMER_URL=%s LOCKSTEP_TOKEN=%s
  lockstep task create --consumer %s --all --wait
  lockstep work list

With curl:
  curl -H "Authorization: Bearer $LOCKSTEP_TOKEN" -H 'Content-Type: application/json' \
    -d '{"consumer":"%s","scope":"SCOPE_ALL"}' $LOCKSTEP_CENTER_URL/v1/tasks
  curl -H "Authorization: Bearer $LOCKSTEP_TOKEN" $LOCKSTEP_CENTER_URL/v1/tasks
  curl -H "Authorization: Bearer $LOCKSTEP_TOKEN" -H 'Content-Type: application/json' \
    -d '{"request":{"projection":"bills","payload":"{\"month_from\":\"%d\"}"}}' $LOCKSTEP_CONSUMER_URL/v1/refresh/now
  curl -H "Authorization: Bearer $LOCKSTEP_TOKEN" $LOCKSTEP_CONSUMER_URL/v1/bills/stations

Ctrl-C stops and removes everything.
`, at.CenterREST, at.CenterGRPC, at.CenterDSN, at.ConsumerREST, at.ConsumerGRPC, at.ConsumerDSN, at.Dir,
		at.CenterREST, at.ConsumerREST, at.CenterREST, at.ConsumerREST, at.OperatorToken, at.Consumer, at.Consumer, dev.FirstMonth)
	return nil
}
