package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/lockstep/internal/api"
)

func newGrant(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "grant", Short: "What a consumer may read: list, set, revoke",
		Example: `  lockstep grant list --consumer svc-hall
  lockstep grant set --consumer svc-hall --tenant 101 --collection enrolment`,
	})
	r := newRemote(env, cmd, "center")
	cmd.AddCommand(grantList(r), grantSet(r), grantRevoke(r))
	return cmd
}

func grantList(r *remote) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use: "list", Short: "List grants", Args: cobra.NoArgs,
		Example: "  lockstep grant list --consumer svc-hall --tenant 101",
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.list(cmd.Context(), &f.paging, grantHead, func(size int32, token string) (listed, error) {
				out, text, err := client.Grants(cmd.Context(), &centerv1.ListGrantsRequest{
					Consumer: f.consumer, TenantId: f.tenant, PageSize: size, PageToken: token,
				})
				return listed{text, out.GetNextPageToken(), func(w *tabwriter.Writer) { writeGrants(w, out.GetGrants()...) }}, err
			})
		},
	}
	cmd.Flags().StringVar(&f.consumer, "consumer", "", "only this consumer")
	cmd.Flags().Int64Var(&f.tenant, "tenant", 0, "only this tenant")
	f.paging.add(cmd)
	return cmd
}

// grantFlags name one grant.
type grantFlags struct {
	consumer, collection string
	tenant               int64
}

func (f *grantFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.consumer, "consumer", "", "the consumer's app key")
	cmd.Flags().Int64Var(&f.tenant, "tenant", 0, "the tenant")
	cmd.Flags().StringVar(&f.collection, "collection", "", "the collection")
	require(cmd, "consumer", "tenant", "collection")
}

func grantSet(r *remote) *cobra.Command {
	var f grantFlags
	var enabled, read, subscribe, serve bool
	cmd := &cobra.Command{
		Use: "set", Short: "Make or change a grant", Args: cobra.NoArgs,
		Long: `Makes or changes a grant. It counts only if it is enabled, allows reading and
subscribing, and the consumer serves the tenant. Narrowing raises the grant's epoch
and cancels its open tasks.`,
		Example: `  lockstep grant set --consumer svc-hall --tenant 101 --collection enrolment --serve-tenant
  lockstep grant set --consumer svc-hall --tenant 101 --collection enrolment --subscribe=false`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			if serve {
				if err := client.AddTenant(cmd.Context(), f.consumer, f.tenant); err != nil {
					return err
				}
			}
			return r.setGrant(cmd, client, f, &centerv1.SetGrantRequest{Enabled: enabled, ReadAllowed: read, SubscribeAllowed: subscribe})
		},
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&enabled, "enabled", true, "whether it counts at all")
	flags.BoolVar(&read, "read", true, "whether records may be read")
	flags.BoolVar(&subscribe, "subscribe", true, "whether the consumer keeps a copy")
	flags.BoolVar(&serve, "serve-tenant", false, "first register that the consumer serves the tenant")
	return cmd
}

func grantRevoke(r *remote) *cobra.Command {
	var f grantFlags
	cmd := &cobra.Command{
		Use: "revoke", Short: "Take a grant away; its open tasks are cancelled", Args: cobra.NoArgs,
		Example: "  lockstep grant revoke --consumer svc-hall --tenant 101 --collection enrolment",
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := r.client()
			if err != nil {
				return err
			}
			return r.setGrant(cmd, client, f, &centerv1.SetGrantRequest{})
		},
	}
	f.add(cmd)
	return cmd
}

// setGrant gives the grant that the flags name the permissions of in, and no others.
func (r *remote) setGrant(cmd *cobra.Command, client *api.Client, f grantFlags, in *centerv1.SetGrantRequest) error {
	in.Consumer, in.TenantId, in.CollectionId = f.consumer, f.tenant, f.collection
	out, text, err := client.SetGrant(cmd.Context(), in)
	if err != nil {
		return err
	}
	return r.show(text, func(w *tabwriter.Writer) {
		fmt.Fprint(w, grantHead)
		writeGrants(w, out.GetGrant())
		if n := out.GetCancelledTasks(); n > 0 {
			fmt.Fprintf(w, "%d open tasks were cancelled\n", n)
		}
	})
}

const grantHead = "CONSUMER\tTENANT\tCOLLECTION\tENABLED\tREAD\tSUBSCRIBE\tEFFECTIVE\tEPOCH\tUPDATED\n"

func writeGrants(w *tabwriter.Writer, grants ...*centerv1.Grant) {
	for _, g := range grants {
		fmt.Fprintf(w, "%s\t%d\t%s\t%t\t%t\t%t\t%t\t%d\t%s\n", g.GetConsumer(), g.GetTenantId(), g.GetCollectionId(), g.GetEnabled(),
			g.GetReadAllowed(), g.GetSubscribeAllowed(), g.GetEffective(), g.GetGrantEpoch(), moment(g.GetUpdatedAt()))
	}
}
