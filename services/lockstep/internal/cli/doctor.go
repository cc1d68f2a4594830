package cli

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/services/lockstep/internal/doctor"
)

func newDoctor(env *Environment) *cobra.Command {
	var path, side string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a dataset's mapping against the live table before the first run",
		Long: `Reads the mapping and the database from a service's configuration and checks the
live table: columns and types, the role's privileges, the order of the keys, an index
for the walk, the visibility map, and whether content hashes to what is stored. It
changes nothing.

Exit codes: 0 fit (warnings included), 1 unfit, 3 it could not look.`,
		Example: `  lockstep doctor --config center.yaml --side center
  lockstep doctor --config consumer.yaml --side consumer --json | jq '.checks[] | select(.level != "OK")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sides := map[string]dataset.Side{"center": dataset.Center, "consumer": dataset.Consumer}
			if sides[side] == 0 {
				return fmt.Errorf("--side: %q is neither center nor consumer", side)
			}
			report, err := doctor.Run(cmd.Context(), path, sides[side])
			if err != nil {
				return err
			}
			if err := env.tellReport(report, asJSON); err != nil {
				return err
			}
			if !report.OK {
				return exit(exitDiffers)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the service's configuration file")
	cmd.Flags().StringVar(&side, "side", "", "whose configuration it is: center or consumer")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	require(cmd, "config", "side")
	return cmd
}

func (e *Environment) tellReport(r *doctor.Report, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(e.Out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(r); err != nil {
			return fmt.Errorf("print the report: %w", err)
		}
		return nil
	}
	e.print("%s: dataset %s on %s\n\n", r.Side, or(r.Dataset, "(unnamed)"), r.Table)
	w := tabwriter.NewWriter(e.Out, 0, 0, 2, ' ', 0)
	for _, c := range r.Checks {
		fmt.Fprintf(w, "%s\t%s\t%s\n", c.Level, c.Name, c.Detail)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if r.OK {
		e.print("\nFit.\n")
	} else {
		e.print("\nUnfit: see what says FAIL.\n")
	}
	return nil
}
