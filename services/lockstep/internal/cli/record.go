package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/lockstep/internal/explain"
)

// place says in which tenant and collection a record is.
type place struct {
	tenant     int64
	collection string
	reason     string
}

func (p *place) add(cmd *cobra.Command) {
	cmd.Flags().Int64Var(&p.tenant, "tenant", 0, "the record's tenant")
	cmd.Flags().StringVar(&p.collection, "collection", "", "the record's collection")
}

func (p *place) addReason(cmd *cobra.Command) {
	p.add(cmd)
	cmd.Flags().StringVar(&p.reason, "reason", "", "why, for the audit log")
}

func (p *place) check() error {
	if p.tenant == 0 || p.collection == "" {
		return errors.New("give --tenant and --collection")
	}
	return nil
}

func newRecord(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "record", Short: "One record: send it again, or explain why its two sides differ",
		Example: "  lockstep record explain " + exampleKey + exampleOf + `
  lockstep record replay ` + exampleKey + " --to svc-hall" + exampleOf,
	})
	r := newRemote(env, cmd, "center")
	cmd.AddCommand(recordReplay(r), recordExplain(r))
	return cmd
}

func recordReplay(r *remote) *cobra.Command {
	var p place
	var to string
	cmd := &cobra.Command{
		Use: "replay KEY", Short: "Send a record's current value to a consumer", Args: cobra.ExactArgs(1),
		Long: `Queues a delivery of the record's current value. The grant is looked at first; without
one the replay is refused. Exit codes: 0 queued, 2 refused, 3 did not work.`,
		Example: "  lockstep record replay " + exampleKey + " --to svc-hall" + exampleOf + ` --reason "ticket 812"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return errors.New("give --to, the consumer's app key")
			}
			if err := p.check(); err != nil {
				return err
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			d, text, err := client.ReplayRecord(cmd.Context(), &centerv1.ReplayRecordRequest{
				Key: args[0], Consumer: to, TenantId: p.tenant, CollectionId: p.collection, Reason: p.reason,
			})
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { writeDelivery(w, d) })
		},
	}
	p.addReason(cmd)
	cmd.Flags().StringVar(&to, "to", "", "app key of the consumer")
	return cmd
}

func recordExplain(r *remote) *cobra.Command {
	var p place
	var consumer string
	var show bool
	cmd := &cobra.Command{
		Use: "explain KEY", Short: "Compare a record's two sides and name the likely cause of a difference", Args: cobra.ExactArgs(1),
		Long: `Reads the record at the center and at the consumer, compares them byte by byte in canonical
form, and says where they differ first and what that looks like: precision, case,
normalisation, a missing member, a hash of another spelling. The token has to be an
operator's on both sides. The values at that place are shown; --content shows both forms.

Exit codes: 0 equal, 1 different, 2 refused, 3 did not work.`,
		Example: "  lockstep record explain " + exampleKey + exampleOf + `
  lockstep record explain ` + exampleKey + exampleOf + " --content",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(); err != nil {
				return err
			}
			return r.explain(cmd, p, consumer, args[0], show)
		},
	}
	p.add(cmd)
	cmd.Flags().StringVar(&consumer, "consumer", "", "address of the consumer's REST side (or "+envConsumer+")")
	cmd.Flags().BoolVar(&show, "content", false, "show both canonical forms")
	return cmd
}

func (r *remote) explain(cmd *cobra.Command, p place, consumer, key string, show bool) error {
	atCenter, err := r.client()
	if err != nil {
		return err
	}
	other := *r
	other.name, other.url = "consumer", consumer
	atConsumer, err := other.client()
	if err != nil {
		return err
	}
	center, centerText, err := atCenter.CenterRecord(cmd.Context(), p.tenant, p.collection, key)
	if err != nil {
		return err
	}
	local, localText, err := atConsumer.ConsumerRecord(cmd.Context(), p.tenant, p.collection, key)
	if err != nil {
		return err
	}
	finding := explain.Compare(center, local, p.collection)
	text, err := json.Marshal(map[string]any{
		"key": key, "finding": finding, "center": json.RawMessage(centerText), "consumer": json.RawMessage(localText),
	})
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	if err := r.show(text, func(w *tabwriter.Writer) { writeExplained(w, key, center, local, finding, show) }); err != nil {
		return err
	}
	if !finding.Equal {
		return exit(exitDiffers)
	}
	return nil
}

func writeExplained(w *tabwriter.Writer, key string, center *centerv1.ExplainRecordResponse, local *consumerv1.ExplainRecordResponse, f explain.Finding, show bool) {
	fmt.Fprintf(w, "record %s\tCENTER\tCONSUMER\n", key)
	row := func(name string, center, local any) { fmt.Fprintf(w, "%s\t%v\t%v\n", name, center, local) }
	row("found", center.GetFound(), local.GetFound())
	row("revision", center.GetRevision(), local.GetRevision())
	row("deleted", center.GetDeleted(), local.GetDeleted())
	row("content hash", or(center.GetContentHash(), "-"), or(local.GetContentHash(), "-"))
	row("stored hash", "-", or(local.GetStoredHash(), "-"))
	row("retired", "-", moment(local.GetRetiredAt()))
	row("held", "-", local.GetRetireHold())
	if mark := local.GetHighWater(); mark != nil {
		row("highest word", "-", fmt.Sprintf("center epoch %d, revision %d", mark.GetCenterEpoch(), mark.GetRevision()))
	}
	if d := local.GetLastDelivery(); d != nil {
		row("last delivery", "-", fmt.Sprintf("%s revision %d at %s", d.GetOutcome(), d.GetRevision(), moment(d.GetReceivedAt())))
	}
	if show {
		row("content", center.GetCanonical(), local.GetCanonical())
	}
	if f.Path != "" {
		row("first difference", f.Path, fmt.Sprintf("byte %d", f.Offset))
	}
	if f.Center != "" || f.Consumer != "" {
		row("there", or(f.Center, "-"), or(f.Consumer, "-"))
	}
	if f.Equal {
		fmt.Fprint(w, "\nequal\n")
		return
	}
	fmt.Fprintf(w, "\ndiffers: %s\n%s\n", f.Cause, f.Advice)
}
