package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

func newWork(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "work", Short: "What the consumer does: list, outcomes, pause, resume",
		Example: `  lockstep work list --state RUNNING
  lockstep work outcomes 0190f5c27cde7a4f8a9b1c2d3e4f5061 --outcome QUARANTINED`,
	})
	r := newRemote(env, cmd, "consumer")
	cmd.AddCommand(workList(r), workShow(r), workOutcomes(r), workPause(r), workResume(r))
	completeArgs(cmd, func(string) cobra.CompletionFunc { return completeIDs(r, workIDs) })
	return cmd
}

func workList(r *remote) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use: "list", Short: "List work, newest first", Args: cobra.NoArgs,
		Example: `  lockstep work list
  lockstep work list --state PARKED --tenant 101`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			states, err := parseAll[consumerv1.WorkState](f.states)
			if err != nil {
				return fmt.Errorf("--state: %w", err)
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(cmd.Context(), &f.paging, workHead, func(size int32, token string) (listed, error) {
				out, text, err := client.WorkList(cmd.Context(), &consumerv1.ListWorkRequest{
					TenantId: f.tenant, CollectionId: f.collection, States: states, PageSize: size, PageToken: token,
				})
				return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) {
					for _, work := range out.GetWork() {
						writeWork(w, work)
					}
				}}, err
			})
		},
	}
	f.add(cmd)
	completeStates[consumerv1.WorkState](cmd)
	return cmd
}

func workShow(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "show TASK", Short: "Show how far a task has come, and why it waits", Args: cobra.ExactArgs(1),
		Example: "  lockstep work show 0190f5c27cde7a4f8a9b1c2d3e4f5061",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			work, text, err := client.Work(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { writeWorkDetail(w, work) })
		},
	}
}

func workOutcomes(r *remote) *cobra.Command {
	cmd, _ := ledgerList(r)
	return cmd
}

// ledgerList is the command and where its list goes on.
func ledgerList(r *remote) (*cobra.Command, *paging) {
	var f paging
	var class, outcome string
	cmd := &cobra.Command{
		Use: "outcomes TASK", Short: "List the differences of a task and what became of each", Args: cobra.ExactArgs(1),
		Example: `  lockstep work outcomes 0190f5c27cde7a4f8a9b1c2d3e4f5061
  lockstep work outcomes 0190f5c27cde7a4f8a9b1c2d3e4f5061 --class LOCAL_AHEAD
  lockstep work outcomes 0190f5c27cde7a4f8a9b1c2d3e4f5061 --outcome QUARANTINED --all --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(cmd.Context(), &f, outcomeHead, func(size int32, token string) (listed, error) {
				out, text, err := client.Outcomes(cmd.Context(), &consumerv1.ListOutcomesRequest{
					TaskId: args[0], Class: strings.ToUpper(class), Outcome: strings.ToUpper(outcome), PageSize: size, PageToken: token,
				})
				return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) { writeOutcomes(w, out.GetOutcomes()) }}, err
			})
		},
	}
	cmd.Flags().StringVar(&class, "class", "", "only this class: MISSING, STALE, HASH_CONFLICT, TOMBSTONE, LOCAL_AHEAD, EXTRA_ROW, REVISION_ZERO, QUARANTINED")
	cmd.Flags().StringVar(&outcome, "outcome", "", "only this outcome: REPAIRED, SETTLED, RETIRED, REPORTED, DEFERRED, EXHAUSTED, QUARANTINED")
	f.add(cmd)
	completeClasses(cmd)
	return cmd, &f
}

func workPause(r *remote) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "pause TASK", Short: "Hold a task at its checkpoint", Args: cobra.ExactArgs(1),
		Example: `  lockstep work pause 0190f5c27cde7a4f8a9b1c2d3e4f5061 --reason "release window"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			work, text, err := client.PauseWork(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { writeWorkDetail(w, work) })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return cmd
}

func workResume(r *remote) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "resume TASK", Short: "Let a paused task go on", Args: cobra.ExactArgs(1),
		Example: `  lockstep work resume 0190f5c27cde7a4f8a9b1c2d3e4f5061 --reason "release window is over"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			work, text, err := client.ResumeWork(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { writeWorkDetail(w, work) })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return cmd
}
