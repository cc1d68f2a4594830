package cli

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
)

func newAudit(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "audit", Short: "Who did what, and whether the log is whole: list, verify",
		Example: `  lockstep audit list --action grant.set
  lockstep audit list --side consumer --object "task 0190f5c27cde7a4f8a9b1c2d3e4f5061"
  lockstep audit verify --app-key form-center --trust trust.json`,
	})
	r := newRemote(env, cmd, "center")
	var side, consumer string
	cmd.PersistentFlags().StringVar(&side, "side", "center", "whose log: center or consumer")
	cmd.PersistentFlags().StringVar(&consumer, "consumer", "", "address of the consumer's REST side (or "+envConsumer+")")
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error {
		switch side {
		case "center":
		case "consumer":
			r.name, r.url = "consumer", consumer
		default:
			return fmt.Errorf("--side: %q is neither center nor consumer", side)
		}
		return nil
	}
	cmd.AddCommand(auditList(r), auditVerify(r))
	return cmd
}

func auditList(r *remote) *cobra.Command {
	var in auditv1.ListAuditRequest
	var from, before string
	var f paging
	cmd := &cobra.Command{
		Use: "list", Short: "List what was done, newest first", Args: cobra.NoArgs,
		Example: `  lockstep audit list --actor operator/ada --from 2026-11-01T00:00:00Z
  lockstep audit list --action refuse`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if in.From, err = parseMoment("from", from); err != nil {
				return err
			}
			if in.Before, err = parseMoment("before", before); err != nil {
				return err
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(cmd.Context(), &f, "ID\tAT\tACTOR\tACTION\tOBJECT\tDECISION\tREASON\n", func(size int32, token string) (listed, error) {
				in.PageSize, in.PageToken = size, token
				out, text, err := client.Audit(cmd.Context(), &in)
				return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) { writeAudit(w, out.GetRows()) }}, err
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&in.Actor, "actor", "", "only this actor: operator/<id>, consumer/<app key>, schedule …")
	flags.StringVar(&in.Action, "action", "", "only this action: task.create, task.end, grant.set, retire, pause, refuse …")
	flags.StringVar(&in.Object, "object", "", "only this object")
	flags.StringVar(&from, "from", "", "from this moment on, as 2026-11-30T12:00:00Z")
	flags.StringVar(&before, "before", "", "before this moment")
	flags.BoolVar(&in.OldestFirst, "oldest-first", false, "oldest first")
	f.add(cmd)
	return cmd
}

func writeAudit(w *tabwriter.Writer, rows []*auditv1.AuditRow) {
	for _, row := range rows {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", row.GetAuditId(), moment(row.GetAt()), row.GetActor(), row.GetAction(),
			row.GetObject(), row.GetDecision(), or(row.GetReason(), "-"))
	}
}

func parseMoment(flag, text string) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, fmt.Errorf("--%s: %q is no moment like 2026-11-30T12:00:00Z", flag, text)
	}
	return timestamppb.New(at), nil
}
