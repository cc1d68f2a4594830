package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"lockstep.dev/services/lockstep/internal/secrets"
)

func newSecrets(env *Environment) *cobra.Command {
	options := secrets.Options{UID: -1, GID: -1}
	var owner string
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Make the keys, certificates, passwords and token of a local deployment",
		Long: `Makes a folder with everything that the compose deployment keeps out of its settings:
a signing key for each service and the trust store, a certificate for each and the one
that verifies them, a password for each database role, an admin's token and its hash,
and against.json for "lockstep demo --against". All are random; nothing is written over.`,
		Example: `  lockstep secrets --out deploy/secrets`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) (err error) {
			if options.Days < 1 {
				return errors.New("--days: keys are valid for at least one")
			}
			if owner != "" {
				if options.UID, options.GID, err = parseOwner(owner); err != nil {
					return err
				}
			}
			options.Now = env.Now()
			if err := secrets.Make(options); err != nil {
				return fmt.Errorf("make secrets: %w", err)
			}
			env.print("%s holds keys, certificates, passwords and an admin's token, valid for %d days\n", options.Dir, options.Days)
			return nil
		},
	}
	cmd.Flags().StringVar(&options.Dir, "out", "", "a new folder, made of mode 0700")
	cmd.Flags().StringVar(&owner, "owner", "", "UID:GID that the services run as and that owns the files (default: who runs this)")
	cmd.Flags().IntVar(&options.Days, "days", defaultKeyDays, "days of validity of keys and certificates")
	require(cmd, "out")
	cmd.AddCommand(newSecretsCopy())
	return cmd
}

// maxSecret bounds a copy: some hundred keys.
const maxSecret = 1 << 20

func newSecretsCopy() *cobra.Command {
	return &cobra.Command{
		Use:   "copy FROM TO",
		Short: "Copy a secret to a new file that only its owner can read",
		Long: `Copies a file to one of mode 0600. Some platforms mount secrets readable by a group,
which the services refuse for a signing key.`,
		Example: `  lockstep secrets copy /secrets/identity/key.json /identity/key.json`,
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			from, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer from.Close() //nolint:errcheck // only read
			text, err := io.ReadAll(io.LimitReader(from, maxSecret+1))
			if err == nil && len(text) > maxSecret {
				err = fmt.Errorf("%s is larger than %d bytes", args[0], maxSecret)
			}
			if err != nil {
				return err
			}
			// Renamed into place: a start that is tried again finds all of it, or none.
			if err := os.WriteFile(args[1]+".new", text, 0o600); err != nil {
				return err
			}
			return os.Rename(args[1]+".new", args[1])
		},
	}
}

func parseOwner(text string) (uid, gid int, err error) {
	user, group, _ := strings.Cut(text, ":")
	uid, errUID := strconv.Atoi(user)
	gid, errGID := strconv.Atoi(group)
	if errors.Join(errUID, errGID) != nil || uid < 0 || gid < 0 {
		return 0, 0, fmt.Errorf("--owner: %q is not UID:GID, two numbers", text)
	}
	return uid, gid, nil
}
