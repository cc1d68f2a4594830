package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/lockstep/internal/api"
)

const (
	exampleKey = "0190f5c27cde7a4f8a9b1c2d3e4f5061"
	exampleOf  = " --tenant 101 --collection enrolment"
)

func newDelivery(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "delivery", Short: "Ordinary delivery at the center: what failed, and sending it again",
		Example: `  lockstep delivery failed --consumer svc-hall
  lockstep delivery replay ` + exampleKey,
	})
	r := newRemote(env, cmd, "center")
	cmd.AddCommand(deliveryFailed(r), deliveryReplay(r))
	return cmd
}

func deliveryFailed(r *remote) *cobra.Command {
	var f listFlags
	var code string
	cmd := &cobra.Command{
		Use: "failed", Short: "List deliveries that were given up, or in other states, newest first", Args: cobra.NoArgs,
		Example: `  lockstep delivery failed
  lockstep delivery failed --consumer svc-hall --code HASH_CONFLICT
  lockstep delivery failed --state PENDING,SENDING --tenant 101`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			states, err := parseAll[centerv1.DeliveryState](f.states)
			if err != nil {
				return fmt.Errorf("--state: %w", err)
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(cmd.Context(), &f.paging, deliveryHead, func(size int32, token string) (listed, error) {
				out, text, err := client.FailedDeliveries(cmd.Context(), &centerv1.ListFailedDeliveriesRequest{
					Consumer: f.consumer, TenantId: f.tenant, CollectionId: f.collection, Code: code, States: states, PageSize: size, PageToken: token,
				})
				return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) { writeDeliveries(w, out.GetDeliveries()...) }}, err
			})
		},
	}
	f.add(cmd)
	completeStates[centerv1.DeliveryState](cmd)
	cmd.Flags().StringVar(&f.consumer, "consumer", "", "only this consumer")
	cmd.Flags().StringVar(&code, "code", "", "only this stable code")
	return cmd
}

const deliveryHead = "DELIVERY\tCONSUMER\tTENANT\tCOLLECTION\tRECORD\tSTATE\tATTEMPTS\tREVISION\tUPDATED\tBECAUSE\n"

func writeDelivery(w *tabwriter.Writer, d *centerv1.Delivery) {
	fmt.Fprint(w, deliveryHead)
	writeDeliveries(w, d)
}

func writeDeliveries(w *tabwriter.Writer, list ...*centerv1.Delivery) {
	for _, d := range list {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", d.GetDeliveryId(), d.GetConsumer(), d.GetTenantId(), d.GetCollectionId(), d.GetKey(),
			api.Word(d.GetState()), d.GetAttempts(), d.GetRevision(), moment(d.GetUpdatedAt()), because(d.GetCode(), d.GetOutcome()))
	}
}

func deliveryReplay(r *remote) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "replay DELIVERY", Short: "Send the record of a delivery again, as it is now", Args: cobra.ExactArgs(1),
		Long: `Queues the record's current value for the same consumer. The grant is looked at first;
without one the replay is refused. Exit codes: 0 queued, 2 refused, 3 did not work.`,
		Example: `  lockstep delivery replay ` + exampleKey + ` --reason "column widened, ticket 812"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			d, text, err := client.ReplayDelivery(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			return r.show(text, func(w *tabwriter.Writer) { writeDelivery(w, d) })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return cmd
}
