package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/lockstep/internal/api"
)

func newRefresh(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "refresh", Short: "Stored rows kept fresh at the consumer: submit, watch, retry",
		Example: `  lockstep refresh list --state FAILED
  lockstep refresh now --projection scores --payload '{"scopes": [{"candidate_id": 7, "period": 202611}]}'`,
	})
	r := newRemote(env, cmd, "consumer")
	cmd.AddCommand(refreshSubmit(r), refreshNow(r), refreshList(r), refreshShow(r), refreshScopes(r), refreshRetry(r),
		refreshAct(r, "force", "Make a task due now, with its whole budget", (*api.Client).ForceRefresh),
		refreshAct(r, "cancel", "End a task; of a running one nothing more is written", (*api.Client).CancelRefresh),
		refreshAct(r, "reopen", "Let a cancelled task rise again", (*api.Client).ReopenRefresh))
	completeArgs(cmd, func(string) cobra.CompletionFunc { return completeIDs(r, refreshIDs) })
	return cmd
}

// requestFlags are what a request is made of.
type requestFlags struct {
	projection, payload, key, event, trigger string
	replace                                  bool
}

func (f *requestFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.projection, "projection", "", "bills or scores")
	flags.StringVar(&f.payload, "payload", "", "what to refresh, the projection's own JSON; @FILE reads a file")
	flags.StringVar(&f.key, "key", "", "a business key of one's own; without it one is computed")
	flags.StringVar(&f.event, "event", "", "the source event: the same one again changes nothing")
	flags.StringVar(&f.trigger, "trigger", "", "who or what asks")
	flags.BoolVar(&f.replace, "replace", false, "the key is to stand for another range from now on")
	require(cmd, "projection", "payload")
	completeWords(cmd, "projection", projections...)
}

// projections that come with the consumer.
var projections = []string{"bills", "scores"}

func (f *requestFlags) request() (*consumerv1.RefreshRequest, error) {
	payload := f.payload
	if path, ok := strings.CutPrefix(payload, "@"); ok {
		text, err := os.ReadFile(path) //nolint:gosec // the user names the file
		if err != nil {
			return nil, fmt.Errorf("read the payload: %w", err)
		}
		payload = string(text)
	}
	return &consumerv1.RefreshRequest{
		Projection: f.projection, Payload: payload, BusinessKey: f.key, SourceEventId: f.event, Trigger: f.trigger, Replace: f.replace,
	}, nil
}

func refreshSubmit(r *remote) *cobra.Command {
	var f requestFlags
	cmd := &cobra.Command{
		Use: "submit", Short: "Ask for a refresh; a worker does it", Args: cobra.NoArgs,
		Long: `Makes a task, or advances the known one of the same key by a generation.
Exit codes: 0 accepted, 2 refused, 3 did not work.`,
		Example: `  lockstep refresh submit --projection bills --payload '{"month_from": "202609", "month_to": "202611"}'
  lockstep refresh submit --projection bills --payload @range.json --key close-2026-11`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := f.request()
			if err != nil {
				return err
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			out, text, err := client.SubmitRefresh(cmd.Context(), in)
			if err != nil {
				return err
			}
			if err := r.show(text, func(w *tabwriter.Writer) { writeSubmission(w, out) }); err != nil {
				return err
			}
			return exitOf(refusedCode(out.GetOutcome()))
		},
	}
	f.add(cmd)
	return cmd
}

func refusedCode(outcome string) int {
	if outcome == "REFUSED" {
		return exitRefused
	}
	return exitDone
}

func writeSubmission(w *tabwriter.Writer, s *consumerv1.Submission) {
	writeFields(w,
		[2]string{"task", s.GetTaskId()},
		[2]string{"key", s.GetBusinessKey()},
		[2]string{"generation", fmt.Sprint(s.GetGeneration())},
		[2]string{"outcome", s.GetOutcome()},
		[2]string{"code", s.GetCode()},
		[2]string{"because", s.GetMessage()},
	)
}

func refreshNow(r *remote) *cobra.Command {
	var f requestFlags
	cmd := &cobra.Command{
		Use: "now", Short: "Ask for a refresh and wait for it", Args: cobra.NoArgs,
		Long: `Submits and works on the task at once, or waits for whoever does. After the time of
one call it is still in progress, and goes on.
Exit codes: 0 done, 1 failed or still in progress, 2 refused, 3 did not work.`,
		Example: `  lockstep refresh now --projection bills --payload '{"scopes": [{"station_id": 17, "bill_month": "202611"}]}'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := f.request()
			if err != nil {
				return err
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			out, text, err := client.RefreshNow(cmd.Context(), in)
			if err != nil {
				return err
			}
			if err := r.show(text, func(w *tabwriter.Writer) {
				writeSubmission(w, out.GetSubmission())
				fmt.Fprintf(w, "now\t%s\n", out.GetOutcome())
			}); err != nil {
				return err
			}
			code := refusedCode(out.GetOutcome())
			if outcome := out.GetOutcome(); outcome == "FAILED" || outcome == "IN_PROGRESS" {
				code = exitDiffers
			}
			return exitOf(code)
		},
	}
	f.add(cmd)
	return cmd
}

const refreshHead = "TASK\tPROJECTION\tMODE\tSTATE\tGENERATION\tRETRIES\tDUE\tKEY\tBECAUSE\n"

func writeRefreshTasks(w *tabwriter.Writer, tasks ...*consumerv1.RefreshTask) {
	for _, t := range tasks {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d/%d\t%d/%d\t%s\t%s\t%s\n", t.GetTaskId(), t.GetProjection(), t.GetMode(), api.Word(t.GetState()),
			t.GetRunningGeneration(), t.GetRequestGeneration(), t.GetRetryCount(), t.GetMaxRetry(), moment(t.GetDueAt()), t.GetBusinessKey(),
			because(t.GetCode(), t.GetWaitingBecause()))
	}
}

func refreshList(r *remote) *cobra.Command {
	var f paging
	var states []string
	var projection, key string
	cmd := &cobra.Command{
		Use: "list", Short: "List refresh tasks, newest first", Args: cobra.NoArgs,
		Example: `  lockstep refresh list --state FAILED
  lockstep refresh list --projection bills --all --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := parseAll[consumerv1.RefreshState](states)
			if err != nil {
				return fmt.Errorf("--state: %w", err)
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(cmd.Context(), &f, refreshHead, func(size int32, token string) (listed, error) {
				out, text, err := client.RefreshTasks(cmd.Context(), &consumerv1.ListTasksRequest{
					Projection: projection, BusinessKey: key, States: wanted, PageSize: size, PageToken: token,
				})
				return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) { writeRefreshTasks(w, out.GetTasks()...) }}, err
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&projection, "projection", "", "only this projection")
	flags.StringVar(&key, "key", "", "only this business key")
	flags.StringSliceVar(&states, "state", nil, "only these states")
	completeWords(cmd, "projection", projections...)
	completeStates[consumerv1.RefreshState](cmd)
	f.add(cmd)
	return cmd
}

func refreshShow(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "show TASK", Short: "Show a refresh task and what it has amounted to", Args: cobra.ExactArgs(1),
		Example: "  lockstep refresh show " + exampleKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			out, text, err := client.RefreshTask(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { writeRefresh(w, out) })
		},
	}
}

func writeRefresh(w *tabwriter.Writer, out *consumerv1.GetTaskResponse) {
	t, c := out.GetTask(), out.GetCounts()
	writeFields(w,
		[2]string{"task", t.GetTaskId()},
		[2]string{"projection", t.GetProjection()},
		[2]string{"key", t.GetBusinessKey()},
		[2]string{"task code", t.GetTaskCode()},
		[2]string{"mode", t.GetMode()},
		[2]string{"state", api.Word(t.GetState())},
		[2]string{"code", t.GetCode()},
		[2]string{"because", t.GetMessage()},
		[2]string{"waits because", t.GetWaitingBecause()},
		[2]string{"generation", fmt.Sprintf("%d of %d", t.GetRunningGeneration(), t.GetRequestGeneration())},
		[2]string{"retries", fmt.Sprintf("%d of %d", t.GetRetryCount(), t.GetMaxRetry())},
		[2]string{"due", moment(t.GetDueAt())},
		[2]string{"lease until", moment(t.GetLeaseUntil())},
		[2]string{"asked by", t.GetTrigger()},
		[2]string{"scopes", fmt.Sprintf("%d, %d done, %d failed", out.GetScopes(), out.GetScopesDone(), out.GetScopesFailed())},
		[2]string{"complete up to", out.GetCursor()},
		[2]string{"rows", fmt.Sprintf("%d looked at, %d created, %d updated, %d unchanged, %d missed, %d late",
			c.GetDifferences(), c.GetCreated(), c.GetUpdated(), c.GetUnchanged(), c.GetMissed(), c.GetLateSkipped())},
	)
}

func refreshScopes(r *remote) *cobra.Command {
	var f paging
	var states []string
	cmd := &cobra.Command{
		Use: "scopes TASK", Short: "List the scopes of a task's running generation, in their order", Args: cobra.ExactArgs(1),
		Example: "  lockstep refresh scopes " + exampleKey + " --state FAILED",
		RunE: func(cmd *cobra.Command, args []string) error {
			wanted, err := parseAll[consumerv1.ScopeState](states)
			if err != nil {
				return fmt.Errorf("--state: %w", err)
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(cmd.Context(), &f, "SCOPE\tMONTH\tSTATE\tTRIES\tROWS\tUPDATED\tMISSED\tBECAUSE\n", func(size int32, token string) (listed, error) {
				out, text, err := client.RefreshScopes(cmd.Context(), &consumerv1.ListScopesRequest{TaskId: args[0], States: wanted, PageSize: size, PageToken: token})
				return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) {
					for _, s := range out.GetScopes() {
						fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%d\t%d\t%d\t%s\n", s.GetId(), s.GetMonth(), api.Word(s.GetState()), s.GetTries(),
							s.GetCounts().GetDifferences(), s.GetCounts().GetUpdated(), s.GetCounts().GetMissed(), because(s.GetCode(), s.GetMessage()))
					}
				}}, err
			})
		},
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only these states")
	completeStates[consumerv1.ScopeState](cmd)
	f.add(cmd)
	return cmd
}

func refreshRetry(r *remote) *cobra.Command {
	var codes, keys []string
	cmd := &cobra.Command{
		Use: "retry", Short: "Wake pending and failed tasks by their codes or keys", Args: cobra.NoArgs,
		Long: `Wakes the tasks that are named; due time and budget still hold, so use force for one
that has no try left. Exit codes: 0 woken, 2 refused, 3 did not work.`,
		Example: `  lockstep refresh retry --key close-2026-11`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(codes)+len(keys) == 0 {
				return errors.New("give --code or --key")
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			ids, text, err := client.RetryRefresh(cmd.Context(), codes, keys)
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { fmt.Fprintf(w, "woken: %s\n", or(strings.Join(ids, " "), "none")) })
		},
	}
	cmd.Flags().StringSliceVar(&codes, "code", nil, "a task's code")
	cmd.Flags().StringSliceVar(&keys, "key", nil, "a business key")
	return cmd
}

// refreshAct is a command that changes one task and shows it.
func refreshAct(r *remote, verb, short string, act func(*api.Client, context.Context, string, string) (*consumerv1.RefreshTask, []byte, error)) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: verb + " TASK", Short: short, Args: cobra.ExactArgs(1),
		Example: "  lockstep refresh " + verb + " " + exampleKey + ` --reason "ticket 812"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			task, text, err := act(client, cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) {
				fmt.Fprint(w, refreshHead)
				writeRefreshTasks(w, task)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return cmd
}
