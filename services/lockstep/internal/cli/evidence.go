package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/internal/bundle"
	"lockstep.dev/services/lockstep/internal/api"
)

func newEvidence(env *Environment) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "evidence", Short: "The signed words behind a task: export, verify",
		Example: `  lockstep evidence export ` + exampleKey + ` --out task.jsonl
  lockstep evidence verify task.jsonl --trust trust.json`,
	})
	cmd.AddCommand(evidenceExport(env), evidenceVerify(env))
	return cmd
}

func evidenceExport(env *Environment) *cobra.Command {
	var out, consumer string
	var keys []string
	var words bool
	cmd := &cobra.Command{
		Use: "export TASK", Short: "Write a task's evidence into a file", Args: cobra.ExactArgs(1),
		Long: `Writes JSON Lines: the signed manifest header, the signed reports, and for each --key
the record's place in the manifest. With --words also what the consumer keeps: the
instruction, its report, and the center's signed word behind each effect. The words
hold records' contents, and an operator's role is needed for them.

Exit codes: 0 written, 2 refused, 3 did not work; what was written then has no end line.`,
		Example: `  lockstep evidence export ` + exampleKey + ` --out task.jsonl
  lockstep evidence export ` + exampleKey + ` --key 0190f5c27cde7a4f8a9b1c2d3e4f5062 --words --out task.jsonl`,
	}
	center := newRemote(env, cmd, "center")
	cmd.ValidArgsFunction = completeIDs(center, taskIDs(false))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		atCenter, err := center.client()
		if err != nil {
			return err
		}
		e := bundle.Export{TaskID: args[0], Keys: keys, Center: func(ctx context.Context, key string) (got *centerv1.GetEvidenceResponse, err error) {
			err = patiently(ctx, func() error { got, err = atCenter.Evidence(ctx, args[0], key); return err })
			return got, err
		}}
		if words {
			other := *center
			other.name, other.url = "consumer", consumer
			atConsumer, err := other.client()
			if err != nil {
				return err
			}
			e.Consumer = func(ctx context.Context, token string) (page *consumerv1.ListEvidenceResponse, err error) {
				err = patiently(ctx, func() error { page, err = atConsumer.Words(ctx, args[0], token); return err })
				return page, err
			}
		}
		write, err := e.Open(cmd.Context())
		if refused, ok := errors.AsType[*fault.Error](err); ok {
			return &api.Refused{Status: http.StatusConflict, Reason: string(refused.Reason), Message: refused.Message}
		}
		if err != nil {
			return err
		}
		return env.into(out, write)
	}
	flags := cmd.Flags()
	flags.StringVar(&out, "out", "", "a new file, which only its owner may read; without it the standard output")
	flags.StringSliceVar(&keys, "key", nil, "a record to be shown in the manifest or absent from it; may be given again")
	flags.BoolVar(&words, "words", false, "also the words that the consumer keeps; they hold contents")
	flags.StringVar(&consumer, "consumer", "", "address of the consumer's REST side (or "+envConsumer+")")
	return cmd
}

// into writes to a new file, or to the output where none is named.
func (e *Environment) into(path string, write func(io.Writer) error) error {
	if path == "" {
		return write(e.Out)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // the user names the file
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists and is never overwritten", path)
	}
	if err != nil {
		return fmt.Errorf("make the file: %w", err)
	}
	buffered := bufio.NewWriter(file)
	err = errors.Join(write(buffered), buffered.Flush())
	// What was refused before its first byte leaves the name free.
	if at, seek := file.Seek(0, io.SeekCurrent); err != nil && seek == nil && at == 0 {
		err = errors.Join(err, os.Remove(path))
	}
	return errors.Join(err, file.Close())
}

func evidenceVerify(env *Environment) *cobra.Command {
	var trustFile string
	var expect bundle.Expect
	var asJSON bool
	cmd := &cobra.Command{
		Use: "verify FILE", Short: "Check a file of evidence with the trust store alone", Args: cobra.ExactArgs(1),
		Long: `Checks every signature, that all documents are about one task and one manifest, each
record's place against the signed root, each word against its record, and the words
against the report's counts. It asks no service. It says what was proven and what was
not. A key counts for what it signed inside its window and before its revocation, so
keep old keys in the trust store.

Exit codes: 0 everything holds, 1 something does not, 3 the file can't be read.`,
		Example: `  lockstep evidence verify task.jsonl --trust trust.json
  lockstep evidence verify task.jsonl --trust trust.json --task ` + exampleKey + ` --source form-center --for svc-hall`,
		RunE: func(_ *cobra.Command, args []string) error {
			trust, err := identity.LoadTrust(trustFile)
			if err != nil {
				return err
			}
			file, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("read the evidence: %w", err)
			}
			defer file.Close() //nolint:errcheck // it was only read
			findings, err := bundle.Verify(file, trust, expect)
			return env.verdict(findings, err, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&trustFile, "trust", "", "trust store with the public keys of the center and the consumer, old ones too")
	flags.StringVar(&expect.TaskID, "task", "", "the task it has to be about")
	flags.StringVar(&expect.Source, "source", "", "the app key that the center has to have")
	flags.StringVar(&expect.Consumer, "for", "", "the app key that the consumer has to have")
	flags.BoolVar(&asJSON, "json", false, "print the verdict as JSON")
	require(cmd, "trust")
	return cmd
}

// verdict prints what was found and gives the exit code.
func (e *Environment) verdict(found bundle.Findings, err error, asJSON bool) error {
	failure := new(bundle.Failure)
	if err != nil && !errors.As(err, &failure) {
		return err
	}
	if asJSON {
		out := struct {
			OK   bool   `json:"ok"`
			Line int    `json:"line,omitempty"`
			Code string `json:"code,omitempty"`
			Why  string `json:"why,omitempty"`
			bundle.Findings
		}{OK: err == nil, Line: failure.Line, Code: string(failure.Reason), Why: failure.Why, Findings: found}
		text, err := json.MarshalIndent(out, "", "  ")
		if err != nil {
			return fmt.Errorf("print the verdict: %w", err)
		}
		e.print("%s\n", text)
	} else {
		e.printFindings(found)
		if err == nil {
			e.print("everything holds\n")
		} else {
			e.print("DOES NOT HOLD: line %d: %s: %s\n", failure.Line, failure.Reason, failure.Why)
		}
	}
	if err != nil {
		return exit(exitDiffers)
	}
	return nil
}

func (e *Environment) printFindings(found bundle.Findings) {
	if len(found.Proven) > 0 {
		e.print("proven:\n")
	}
	for _, s := range found.Proven {
		e.print("  + %s\n", s)
	}
	if len(found.NotProven) > 0 {
		e.print("not proven:\n")
	}
	for _, s := range found.NotProven {
		e.print("  - %s\n", s)
	}
}
