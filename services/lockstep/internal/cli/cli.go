// Package cli is the operator's command line: it turns flags into calls and
// answers into tables, JSON and exit codes. It decides nothing by itself.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/services/lockstep/internal/api"
)

// The exit codes of every command.
const (
	exitDone    = 0 // equal, or done
	exitDiffers = 1 // ran to its end, and something differs
	exitRefused = 2 // understood, and refused
	exitError   = 3 // did not work
)

// Environment is what a command may see of the process.
type Environment struct {
	Out    io.Writer
	Err    io.Writer
	Getenv func(string) string
	Now    func() time.Time
}

// exit is an error that only carries an exit code: everything was said already.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Run runs one command and returns its exit code.
func Run(ctx context.Context, args []string, env Environment) int {
	root := newRoot(&env)
	root.SetArgs(args)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	err := root.ExecuteContext(ctx)
	if said := new(exit); err != nil && !errors.As(err, said) {
		fmt.Fprintln(env.Err, "lockstep:", err)
	}
	return exitCode(err)
}

func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if code := new(exit); errors.As(err, code) {
		return int(*code)
	}
	if refused := new(api.Refused); errors.As(err, &refused) && refused.ByService() {
		return exitRefused
	}
	return exitError
}

func newRoot(env *Environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "lockstep",
		Short: "Prove, and make, that a consumer's copy of a center's records is right",
		Long: `lockstep is the operator's command line of the two services.

Exit codes: 0 equal or done, 1 ran to its end and something differs, 2 refused, 3 did not work;
lockstep help exit-codes says more. lockstep completion makes the shell complete commands,
states and ids.`,
		Example: `  lockstep demo
  lockstep task create --consumer svc-hall --all --wait
  lockstep doctor --config consumer.yaml --side consumer`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		newDemo(env), newDev(env), newBench(env), newDoctor(env), newKeygen(env), newToken(env), newSecrets(env), newVersion(env),
		newTask(env), newWork(env), newGrant(env), newAudit(env), newEvidence(env), newRefresh(env),
		newDelivery(env), newRecord(env), newRetired(env), newQuarantine(env), newWhoami(env), exitCodesTopic(),
	)
	return root
}

// group makes cmd a mere holder of others, which says so when it is given a
// command it has not.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("unknown command %q for %q; see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
		}
		return cmd.Help()
	}
	return cmd
}

// isTerminal says whether lines written to w can be written over.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
