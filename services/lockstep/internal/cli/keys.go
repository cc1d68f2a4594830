package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/services/internal/version"
)

const defaultKeyDays = 365

func newKeygen(env *Environment) *cobra.Command {
	var appKey, keyID, out, trustOut string
	var days int
	var uses []string
	cmd := &cobra.Command{
		Use:   "keygen",
		Short: "Make a service's key pair",
		Long: `Makes an Ed25519 key. The private half goes into --out (mode 0600, never
overwritten) and stays with the service; the public half goes into --trust-out, a
trust store whose entry the peer's operators add to theirs.`,
		Example: `  lockstep keygen --app-key form-center --key-id form-center-2026 --out center.key.json --trust-out center.trust.json`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if days < 1 {
				return errors.New("--days: a key is valid for at least one")
			}
			params := identity.KeyParams{AppKey: appKey, KeyID: keyID, NotBefore: env.Now().Add(-time.Hour), NotAfter: env.Now().AddDate(0, 0, days)}
			for _, use := range uses {
				params.Use = append(params.Use, identity.Use(use))
			}
			key, err := identity.GenerateKeyFile(out, params)
			if err != nil {
				return err
			}
			if err := identity.WriteTrust(trustOut, key.Public()); err != nil {
				return err
			}
			env.print("private key  %s (keep it with the service alone)\npublic key   %s (for the peer's trust store)\nvalid until  %s\n",
				out, trustOut, key.NotAfter.Format(time.DateOnly))
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&appKey, "app-key", "", "the service's app key")
	flags.StringVar(&keyID, "key-id", "", "a name for this key, unlike that of any other")
	flags.StringVar(&out, "out", "", "file for the private key")
	flags.StringVar(&trustOut, "trust-out", "", "file for the public key")
	flags.IntVar(&days, "days", defaultKeyDays, "days of validity")
	flags.StringSliceVar(&uses, "use", []string{string(identity.UseRequest), string(identity.UseStatement)}, "what it may sign: request, statement, cursor")
	require(cmd, "app-key", "key-id", "out", "trust-out")
	return cmd
}

func newToken(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "token", Short: "Operators' bearer tokens",
		Example: "  lockstep token new --id ada --role operator",
	})
	var id, role string
	var tenants []int64
	made := &cobra.Command{
		Use:   "new",
		Short: "Make a token; it is shown once",
		Long: `Makes a random bearer token for one operator. Only its hash is kept, in the
operators setting of each service that should know it.`,
		Example: `  lockstep token new --id ada --role operator
  lockstep token new --id kim --role viewer --tenant 101`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch identity.Role(role) {
			case identity.RoleViewer, identity.RoleOperator, identity.RoleAdmin:
			default:
				return fmt.Errorf("--role: %q is none of viewer, operator, admin", role)
			}
			token, hash := identity.GenerateOperatorToken()
			env.print("token, shown this once:\n  %s\n\nfor the settings:\noperators:\n  - id: %q\n    role: %s\n    token_sha256: %s\n", token, id, role, hash)
			if len(tenants) > 0 {
				env.print("    tenants: [%s]\n", join(tenants))
			}
			return nil
		},
	}
	made.Flags().StringVar(&id, "id", "", "the operator's name, as the audit log shows it")
	made.Flags().StringVar(&role, "role", "", "viewer, operator or admin")
	made.Flags().Int64SliceVar(&tenants, "tenant", nil, "a tenant the operator may see; none: all")
	require(made, "id", "role")
	cmd.AddCommand(made)
	return cmd
}

func newVersion(env *Environment) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Say which build this is", Example: "  lockstep version", Args: cobra.NoArgs,
		Run: func(*cobra.Command, []string) { env.print("lockstep %s\n", version.Version) },
	}
}

func require(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // a flag that was never declared
		}
	}
}

func join(numbers []int64) string {
	text := ""
	for i, n := range numbers {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprint(n)
	}
	return text
}
