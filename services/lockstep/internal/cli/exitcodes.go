package cli

import "github.com/spf13/cobra"

// exitCodes is the one place that says what a command's exit code means.
const exitCodes = `Every command ends with one of four codes:

  0  done: the answer was yes. Of a task that was waited for: COMPLETED, the sets are equal.
  1  it ran to its end, and the answer is no: something differs, is still open, or does not hold.
  2  the service understood and refused: its stable code is in the message. Of a task: CANCELLED,
     or refused for its grant, its scope or its size.
  3  it did not work: wrong flags, no connection, a file that can't be read, a service that broke.

  task create --wait, task watch   0 every task COMPLETED   1 PARTIAL, or subscriptions left out   2 CANCELLED or refused
                                   3 never dispatched, or its consumer was lost
  demo, doctor                     0 as it should be        1 it is not
  record explain                   0 equal                  1 the sides differ
  audit verify, evidence verify    0 everything holds       1 something does not
  refresh now                      0 done                   1 failed, or still in progress         2 refused
  all others                       0 done                   2 refused                              3 did not work

A list with --all that ends with another code than 0 is not whole.
`

// exitCodesTopic is help without a command.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes of every command mean", Long: exitCodes}
}
