package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep.dev/services/lockstep/internal/bench"
)

func newBench(env *Environment) *cobra.Command {
	options := bench.Options{Now: env.Now, Note: env.note}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure reconciling and refreshing over real processes",
		Long: `Starts a private PostgreSQL that holds the data in memory and flushes nothing, a
center and a consumer, and measures:

reconcile  one collection of --rows answers: making its manifest, comparing equal
           sets, finding --diff differences (a fifth each missing, stale, in
           conflict, tombstone, extra), and repairing them
refresh    --scopes scopes of --differences differences that all have news, and one
           scope of --large

Tasks are timed by the database's clock, from the freezing of the manifest to the
acceptance of the report. --peers measures others on the same data in the same run:
fdw is SQL over postgres_fdw, pg_comparator the program of that name.

Exit codes: 0 measured, 1 a task did not do what it had to, 3 it did not run to its end.`,
		Example: `  lockstep bench --rows 100000 --diff 1000
  lockstep bench --rows 1000000 --diff 10000 --peers fdw,pg_comparator
  lockstep bench --what refresh --json | jq .refresh.differences_per_second`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			result, err := bench.Run(cmd.Context(), options)
			if err != nil {
				return interrupted(cmd, err)
			}
			return env.tellBench(result, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&options.What, "what", []string{bench.WhatReconcile}, "reconcile, refresh, or both")
	flags.IntVar(&options.Rows, "rows", 100_000, "answers of the collection")
	flags.IntVar(&options.Diff, "diff", 1000, "how many of them differ")
	flags.StringSliceVar(&options.Peers, "peers", nil, "others to measure: fdw, pg_comparator")
	flags.IntVar(&options.Scopes, "scopes", 1000, "scopes to refresh")
	flags.IntVar(&options.Differences, "differences", 100, "differences of each")
	flags.IntVar(&options.Large, "large", 50_000, "differences of the one large scope; 0 leaves it out")
	flags.IntVar(&options.Repeat, "repeat", 3, "how often what can be repeated is; the median counts")
	flags.StringVar(&options.Dir, "dir", "", "a new folder for everything (default: one in the temporary folder)")
	flags.BoolVar(&options.Keep, "keep", false, "keep the folder at the end")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object; notes go to standard error")
	return cmd
}

// tellBench prints the result; its exit code is 1 if anything was not as it had to be.
func (e *Environment) tellBench(r *bench.Result, asJSON bool) error {
	if asJSON {
		if err := json.NewEncoder(e.Out).Encode(r); err != nil {
			return fmt.Errorf("print the result: %w", err)
		}
	} else if err := bench.Write(e.Out, r); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	if len(r.Deviations) > 0 {
		for _, deviation := range r.Deviations {
			e.note("%s", deviation)
		}
		return exit(exitDiffers)
	}
	return nil
}
