package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep.dev/services/lockstep/internal/demo"
	"lockstep.dev/services/lockstep/internal/dev"
)

const defaultRows = 20000

// stackFlags are what demo and dev have in common.
func stackFlags(cmd *cobra.Command, o *dev.Options) {
	flags := cmd.Flags()
	flags.IntVar(&o.Rows, "rows", defaultRows, "answers at the center, over four forms")
	flags.StringVar(&o.Dir, "dir", "", "a new folder for everything (default: one in the temporary folder)")
	flags.BoolVar(&o.Keep, "keep", false, "keep the folder, or the tables in given databases, at the end")
	flags.StringVar(&o.CenterDSN, "center-dsn", "", "an empty PostgreSQL database for the center")
	flags.StringVar(&o.ConsumerDSN, "consumer-dsn", "", "an empty PostgreSQL database for the consumer")
}

func newDemo(env *Environment) *cobra.Command {
	options := dev.Options{Now: env.Now, Note: env.note}
	var asJSON bool
	var against string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Reconcile damaged example data, twice, and check every figure",
		Long: `Starts PostgreSQL, a center and a consumer in a folder of its own, loads answers to
four forms of two tenants, damages the consumer's projection in known ways, and
reconciles twice. The first round mends what can be mended; the second one shows
that nothing more is found, or only what no repair may touch. Then bills are paid,
and the pages that show them are refreshed and held to written figures.

PostgreSQL: the databases given by --center-dsn and --consumer-dsn; else installed
programs; else, as root, the system's package; else downloaded ones.

With --against the same is shown on a stack that runs already and whose example tables
are there and empty. The file says how it is reached: against.json of "lockstep secrets",
or one like it. What is loaded stays there.

Exit codes: 0 every figure is the expected one, 1 some are not (each is printed),
3 it did not run to its end.`,
		Example: `  lockstep demo
  lockstep demo --rows 200000
  lockstep demo --json | jq '.rounds[].tasks[] | {collection, state, found}'
  lockstep demo --center-dsn postgres://localhost/a --consumer-dsn postgres://localhost/b
  lockstep demo --against deploy/secrets/against.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			stack, err := startOrAttach(cmd, against, options)
			if err != nil {
				return interrupted(cmd, err)
			}
			defer func() { err = errors.Join(err, stack.Stop()) }()
			run := demo.Demo{
				Stack: stack, Rows: options.Rows, Now: env.Now,
				Progress: demo.NewProgress(env.Err, isTerminal(env.Err)),
			}
			if !asJSON {
				env.print("\n")
				run.RoundDone = func(round demo.Round) error { return demo.WriteRound(env.Out, round) }
				run.RefreshDone = func(refresh *demo.Refresh) error { return demo.WriteRefresh(env.Out, refresh) }
			}
			verdict, err := run.Run(cmd.Context())
			if err != nil {
				return interrupted(cmd, err)
			}
			if options.Keep {
				env.note("kept: %s", stack.Dir)
			}
			return env.tell(verdict, asJSON)
		},
	}
	stackFlags(cmd, &options)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object; notes go to standard error")
	cmd.Flags().StringVar(&against, "against", "", "a file that says how a running stack is reached; nothing is started")
	for _, flag := range []string{"dir", "keep", "center-dsn", "consumer-dsn"} {
		cmd.MarkFlagsMutuallyExclusive("against", flag)
	}
	cmd.AddCommand(newDemoTables(env))
	return cmd
}

func startOrAttach(cmd *cobra.Command, against string, options dev.Options) (*dev.Stack, error) {
	if against == "" {
		return dev.Start(cmd.Context(), options)
	}
	reach, err := dev.ReadReach(against)
	if err != nil {
		return nil, err
	}
	return dev.Attach(cmd.Context(), reach, options)
}

// newDemoTables makes what the services of a deployment need before they start.
func newDemoTables(env *Environment) *cobra.Command {
	var center, consumer string
	cmd := &cobra.Command{
		Use:   "tables",
		Short: "Make the example's empty tables in two databases",
		Long: `Makes the example's system of record in the center's database and its projection in
the consumer's, empty. What is there already stays. The services' own tables are made
by "center migrate" and "consumer migrate".`,
		Example: `  lockstep demo tables --center-dsn postgres://localhost/a --consumer-dsn postgres://localhost/b`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := dev.MakeTables(cmd.Context(), center, consumer); err != nil {
				return err
			}
			env.note("the example's tables are there")
			return nil
		},
	}
	cmd.Flags().StringVar(&center, "center-dsn", "", "the center's database, by a role that may make tables")
	cmd.Flags().StringVar(&consumer, "consumer-dsn", "", "the consumer's database, by a role that may make tables")
	require(cmd, "center-dsn", "consumer-dsn")
	return cmd
}

// tell prints the verdict; its exit code is 1 if any figure is not the expected one.
func (e *Environment) tell(v *demo.Verdict, asJSON bool) error {
	if asJSON {
		if err := json.NewEncoder(e.Out).Encode(v.Result); err != nil {
			return fmt.Errorf("print the result: %w", err)
		}
	} else {
		for _, fact := range v.Facts {
			e.print("%s\n", fact)
		}
	}
	if len(v.Deviations) > 0 {
		for _, deviation := range v.Deviations {
			e.note("%s", deviation)
		}
		e.note("%d figures are not the expected ones", len(v.Deviations))
		return exit(exitDiffers)
	}
	if !asJSON {
		e.print("Every figure is the expected one. %d answers, two rounds, %.1f s; %d bills refreshed by two requests, %.1f s.\n",
			v.Result.Rows, v.Result.Seconds, v.Result.Refresh.Differences, v.Result.Refresh.Seconds)
	}
	return nil
}

// interrupted turns whatever an interruption broke into one word.
func interrupted(cmd *cobra.Command, err error) error {
	if cmd.Context().Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// note tells a person something, beside the output.
func (e *Environment) note(format string, args ...any) {
	fmt.Fprintf(e.Err, format+"\n", args...)
}

func (e *Environment) print(format string, args ...any) {
	fmt.Fprintf(e.Out, format, args...)
}
