package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lockstep.dev/services/lockstep/internal/api"
)

// remote is how a command reaches a service.
type remote struct {
	env       *Environment
	name      string // center or consumer
	url       string
	token     string
	tokenFile string
	caFile    string
	asJSON    bool
}

// The variables that stand in for flags.
const (
	envCenter    = "LOCKSTEP_CENTER_URL"
	envConsumer  = "LOCKSTEP_CONSUMER_URL"
	envToken     = "LOCKSTEP_TOKEN"
	envTokenFile = "LOCKSTEP_TOKEN_FILE" //nolint:gosec // a name, no token
	envCAFile    = "LOCKSTEP_CA_FILE"
)

// newRemote adds the flags that reach a service to cmd and all below it.
func newRemote(env *Environment, cmd *cobra.Command, name string) *remote {
	r := &remote{env: env, name: name}
	flags := cmd.PersistentFlags()
	flags.StringVar(&r.url, name, "", "address of the "+name+"'s REST side (or "+r.variable()+")")
	flags.StringVar(&r.token, "token", "", "operator's token (or "+envToken+"); others on this machine may see it, so prefer a file")
	flags.StringVar(&r.tokenFile, "token-file", "", "file that holds the token (or "+envTokenFile+")")
	flags.StringVar(&r.caFile, "ca-file", "", "certificates that verify the service (or "+envCAFile+"; default: the system's)")
	flags.BoolVar(&r.asJSON, "json", false, "print the service's answer as JSON")
	return r
}

// variable stands in for the flag of the address.
func (r *remote) variable() string {
	if r.name == "consumer" {
		return envConsumer
	}
	return envCenter
}

// address is "" where none is given.
func (r *remote) address() string { return first(r.url, r.env.Getenv(r.variable())) }

// client finds the address and the token: a flag comes before a variable, a token before a file.
func (r *remote) client() (*api.Client, error) {
	url := r.address()
	if url == "" {
		return nil, fmt.Errorf("where is the %s? Give --%s or set %s", r.name, r.name, r.variable())
	}
	token, err := r.findToken()
	if err != nil {
		return nil, err
	}
	client, err := api.New(url, token)
	if file := first(r.caFile, r.env.Getenv(envCAFile)); err == nil && file != "" {
		return client, client.VerifyBy(file)
	}
	return client, err
}

func (r *remote) findToken() (string, error) {
	if r.token != "" && r.tokenFile != "" {
		return "", errors.New("give --token or --token-file, not both")
	}
	if r.token != "" {
		return r.token, nil
	}
	file := r.tokenFile
	if file == "" {
		if token := r.env.Getenv(envToken); token != "" {
			return token, nil
		}
		file = r.env.Getenv(envTokenFile)
	}
	if file == "" {
		return "", fmt.Errorf("an operator's token is needed: give --token-file or --token, or set %s", envToken)
	}
	text, err := os.ReadFile(file) //nolint:gosec // the user names the file
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func first(values ...string) string {
	for _, value := range values {
		if value != "" {
			return value
		}
	}
	return ""
}

// show prints the answer as it came, indented, or what table writes.
func (r *remote) show(text []byte, table func(w *tabwriter.Writer)) error {
	if r.asJSON {
		var indented bytes.Buffer
		if err := json.Indent(&indented, text, "", "  "); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		r.env.print("%s\n", indented.String())
		return nil
	}
	w := tabwriter.NewWriter(r.env.Out, 0, 0, 2, ' ', 0)
	table(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}
