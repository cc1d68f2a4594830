package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
)

// taskOutcomes shows the consumer's ledger, where people look for it, or what
// the reports at the center name.
func taskOutcomes(center *remote) *cobra.Command {
	holder := &cobra.Command{}
	consumer := newRemote(center.env, holder, "consumer")
	cmd, f := ledgerList(consumer)
	ledger := cmd.RunE
	var reported bool
	var code string
	var attempt int32
	cmd.Long = `Lists the consumer's ledger: every difference that the task found. With --reported it
asks the center alone, which knows what the reports name: the differences that were
left open, a bounded number an attempt, the newest attempt first.

Exit codes: 0 listed, 2 refused, 3 did not work.`
	cmd.Example = `  lockstep task outcomes ` + exampleKey + `
  lockstep task outcomes ` + exampleKey + ` --outcome QUARANTINED --all --json
  lockstep task outcomes ` + exampleKey + ` --reported --code QUARANTINED`
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		flags := cmd.Flags()
		if !reported {
			if flags.Changed("code") || flags.Changed("attempt") {
				return errors.New("--code and --attempt go with --reported")
			}
			consumer.token, consumer.tokenFile, consumer.caFile, consumer.asJSON = center.token, center.tokenFile, center.caFile, center.asJSON
			return ledger(cmd, args)
		}
		if flags.Changed("class") || flags.Changed("outcome") {
			return errors.New("--class and --outcome are the ledger's; --reported has --code and --attempt")
		}
		return center.reported(cmd.Context(), f, &centerv1.ListOutcomesRequest{TaskId: args[0], Code: strings.ToUpper(code), Attempt: attempt})
	}
	cmd.Flags().AddFlag(holder.PersistentFlags().Lookup("consumer"))
	cmd.Flags().BoolVar(&reported, "reported", false, "what the reports at the center name, instead of the ledger")
	cmd.Flags().StringVar(&code, "code", "", "with --reported: only this stable code")
	cmd.Flags().Int32Var(&attempt, "attempt", 0, "with --reported: only this attempt")
	return cmd
}

func (r *remote) reported(ctx context.Context, f *paging, in *centerv1.ListOutcomesRequest) error {
	client, err := r.client()
	if err != nil {
		return err
	}
	return r.list(ctx, f, "ATTEMPT\tRECORD\tREVISION\tCODE\n", func(size int32, token string) (listed, error) {
		in.PageSize, in.PageToken = size, token
		out, text, err := client.Reported(ctx, in)
		return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) {
			for _, o := range out.GetOutcomes() {
				item := o.GetItem()
				fmt.Fprintf(w, "%d\t%s\t%d\t%s\n", o.GetAttempt(), or(item.GetKey(), item.GetRange()), item.GetRevision(), item.GetCode())
			}
		}}, err
	})
}
