package cli

import "github.com/spf13/cobra"

// withOutcomes adds the consumer's ledger to the commands on tasks: people look
// for it there.
func withOutcomes(env *Environment, task *cobra.Command) *cobra.Command {
	holder := &cobra.Command{}
	r := newRemote(env, holder, "consumer")
	cmd := workOutcomes(r)
	cmd.Short += ", at the consumer"
	cmd.Example = `  lockstep task outcomes ` + exampleKey + `
  lockstep task outcomes ` + exampleKey + ` --outcome QUARANTINED --json`
	cmd.Flags().AddFlagSet(holder.PersistentFlags())
	task.AddCommand(cmd)
	return task
}
