package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	operatorv1 "lockstep.dev/proto/lockstep/operator/v1"
	"lockstep.dev/services/lockstep/internal/api"
)

func newWhoami(env *Environment) *cobra.Command {
	var consumer string
	cmd := &cobra.Command{
		Use: "whoami", Short: "Whom the token stands for at each service, and with which role", Args: cobra.NoArgs,
		Long: `Asks every service whose address is known who the token's operator is there: the name that
its audit log has, the role, the tenants, and whether the token is one of the settings or of
the identity provider.

Exit codes: 0 every service knows the token, 2 one refuses it, 3 did not work.`,
		Example: `  lockstep whoami
  lockstep whoami --consumer http://127.0.0.1:8081 --token-file token --json`,
	}
	center := newRemote(env, cmd, "center")
	cmd.Flags().StringVar(&consumer, "consumer", "", "address of the consumer's REST side (or "+envConsumer+")")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		other := *center
		other.name, other.url = "consumer", consumer
		return whoami(cmd.Context(), center, &other)
	}
	return cmd
}

// whoami prints what the services answer, whatever becomes of one of them.
func whoami(ctx context.Context, services ...*remote) error {
	answers, table := map[string]json.RawMessage{}, strings.Builder{}
	var problems []error
	for _, r := range services {
		if r.address() == "" {
			continue
		}
		client, err := r.client()
		if err != nil {
			return err
		}
		who, text, err := client.Operator(ctx)
		if err != nil {
			problems = append(problems, fmt.Errorf("the %s: %w", r.name, err))
			continue
		}
		answers[r.name] = text
		writeOperator(&table, r.name, who)
	}
	if len(answers)+len(problems) == 0 {
		return fmt.Errorf("where are the services? Give --center or --consumer, or set %s or %s", envCenter, envConsumer)
	}
	text, err := json.Marshal(answers)
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	if len(answers) > 0 {
		problems = append(problems, services[0].show(text, func(w *tabwriter.Writer) {
			fmt.Fprint(w, "SERVICE\tOPERATOR\tROLE\tTENANTS\tTOKEN\tUNTIL\n", table.String())
		}))
	}
	return errors.Join(problems...)
}

func writeOperator(to *strings.Builder, service string, who *operatorv1.Operator) {
	tenants := strings.ReplaceAll(strings.Trim(fmt.Sprint(who.GetTenantIds()), "[]"), " ", ",")
	fmt.Fprintf(to, "%s\t%s\t%s\t%s\t%s\t%s\n", service, who.GetId(), strings.ToLower(api.Word(who.GetRole())), or(tenants, "all"),
		map[bool]string{true: "identity provider", false: "settings"}[who.GetSignedInWith() == operatorv1.SignIn_SIGN_IN_OIDC], moment(who.GetUntil()))
}
