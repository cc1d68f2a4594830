package cli

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

func newRetired(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "retired", Short: "Rows the consumer retired: list, restore",
		Example: "  lockstep retired list" + exampleOf + `
  lockstep retired restore ` + exampleKey + exampleOf + ` --reason "form emptied by mistake"`,
	})
	r := newRemote(env, cmd, "consumer")
	cmd.AddCommand(retiredList(r), retiredRestore(r))
	return cmd
}

func retiredList(r *remote) *cobra.Command {
	var p place
	var f paging
	cmd := &cobra.Command{
		Use: "list", Short: "List the retired rows of a collection, in key order", Args: cobra.NoArgs,
		Example: "  lockstep retired list" + exampleOf,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.check(); err != nil {
				return err
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(cmd.Context(), &f, "RECORD\tREVISION\tDELETED\tRETIRED\tFLOOR\tPROOF\n", func(size int32, token string) (listed, error) {
				out, text, err := client.Retired(cmd.Context(), &consumerv1.ListRetiredRequest{
					TenantId: p.tenant, CollectionId: p.collection, PageSize: size, PageToken: token,
				})
				return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) { writeRetired(w, out.GetRows()) }}, err
			})
		},
	}
	p.add(cmd)
	f.add(cmd)
	return cmd
}

func writeRetired(w *tabwriter.Writer, rows []*consumerv1.RetiredRow) {
	for _, row := range rows {
		floor := "-"
		if row.GetFloor() != nil {
			floor = fmt.Sprintf("%d/%d", row.GetFloor().GetCenterEpoch(), row.GetFloor().GetRevision())
		}
		fmt.Fprintf(w, "%s\t%d\t%t\t%s\t%s\t%s\n", row.GetKey(), row.GetRevision(), row.GetDeleted(), moment(row.GetRetiredAt()), floor, or(row.GetProofId(), "-"))
	}
}

func retiredRestore(r *remote) *cobra.Command {
	var p place
	cmd := &cobra.Command{
		Use: "restore KEY", Short: "Bring a retired row back and hold it", Args: cobra.ExactArgs(1),
		Long: `The row is live again and held: later tasks report it and never retire it.
Exit codes: 0 restored, 2 refused, 3 did not work.`,
		Example: "  lockstep retired restore " + exampleKey + exampleOf + ` --reason "form emptied by mistake"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(); err != nil {
				return err
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			text, err := client.RestoreRetired(cmd.Context(), p.tenant, p.collection, args[0], p.reason)
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { fmt.Fprintf(w, "record %s is back, and held\n", args[0]) })
		},
	}
	p.addReason(cmd)
	return cmd
}

func newQuarantine(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "quarantine", Short: "Records the consumer could not repair: list, retry",
		Example: "  lockstep quarantine list --tenant 101" + `
  lockstep quarantine retry ` + exampleKey + exampleOf + " --to svc-hall",
	})
	r := newRemote(env, cmd, "consumer")
	cmd.AddCommand(quarantineList(r), quarantineRetry(r))
	return cmd
}

func quarantineList(r *remote) *cobra.Command {
	var p place
	var f paging
	cmd := &cobra.Command{
		Use: "list", Short: "List the quarantined records of a tenant, in key order", Args: cobra.NoArgs,
		Example: "  lockstep quarantine list" + exampleOf,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.tenant == 0 {
				return errors.New("give --tenant")
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(cmd.Context(), &f, "RECORD\tCOLLECTION\tCLASS\tCODE\tCENTER\tLOCAL\tFOUND\tTASK\n", func(size int32, token string) (listed, error) {
				out, text, err := client.Quarantined(cmd.Context(), &consumerv1.ListQuarantinedRequest{
					TenantId: p.tenant, CollectionId: p.collection, PageSize: size, PageToken: token,
				})
				return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) { writeQuarantined(w, out.GetRecords()) }}, err
			})
		},
	}
	p.add(cmd)
	f.add(cmd)
	return cmd
}

func writeQuarantined(w *tabwriter.Writer, records []*consumerv1.QuarantinedRecord) {
	for _, q := range records {
		o := q.GetOutcome()
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", o.GetKey(), q.GetCollectionId(), o.GetClass(), because(o.GetCode()),
			sideOf(o.CenterRevision, o.CenterDeleted), sideOf(o.LocalRevision, o.LocalDeleted), moment(o.GetFoundAt()), q.GetTaskId())
	}
}

func quarantineRetry(r *remote) *cobra.Command {
	var p place
	var center, to string
	cmd := &cobra.Command{
		Use: "retry KEY", Short: "Try a quarantined record again", Args: cobra.ExactArgs(1),
		Long: `Takes the record off the list until a task finds it again. Every task tries every
difference, so the next one of the collection tries this record too. With --to, the
consumer's app key, a task for this one record is made at the center right away; the
token has to be an operator's there as well.

Mend the cause first: a constraint, a size, a content that no column can hold.
Exit codes: 0 done, 2 refused, 3 did not work.`,
		Example: "  lockstep quarantine retry " + exampleKey + exampleOf + ` --reason "column widened"
  lockstep quarantine retry ` + exampleKey + exampleOf + " --to svc-hall",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(); err != nil {
				return err
			}
			return r.retry(cmd, p, center, to, args[0])
		},
	}
	p.addReason(cmd)
	cmd.Flags().StringVar(&to, "to", "", "app key of this consumer: make a task for the record now")
	cmd.Flags().StringVar(&center, "center", "", "address of the center's REST side (or "+envCenter+")")
	return cmd
}

func (r *remote) retry(cmd *cobra.Command, p place, center, to, key string) error {
	other := *r
	other.name, other.url = "center", center
	client, err := r.client()
	if err != nil {
		return err
	}
	out, text, err := client.RetryQuarantined(cmd.Context(), p.tenant, p.collection, key, p.reason)
	if err != nil {
		return err
	}
	if to == "" {
		return r.show(text, func(w *tabwriter.Writer) {
			fmt.Fprintf(w, "record %s: %d taken off the list; the collection's next task tries it again. Now:\n", key, out.GetReopened())
			fmt.Fprintf(w, "  lockstep task create --consumer CONSUMER --tenant %d --collection %s --key %s --wait\n", p.tenant, p.collection, key)
		})
	}
	atCenter, err := other.client()
	if err != nil {
		return err
	}
	made, text, err := atCenter.CreateTask(cmd.Context(), &centerv1.CreateTaskRequest{
		Consumer: to, TenantId: p.tenant, CollectionId: p.collection, Key: key, Scope: evidencev1.Scope_SCOPE_RECORD, Mode: evidencev1.Mode_MODE_REPAIR,
	})
	if err != nil {
		return err
	}
	return r.show(text, func(w *tabwriter.Writer) {
		for _, t := range made.GetTasks() {
			writeTasks(w, t.GetTask())
		}
	})
}
