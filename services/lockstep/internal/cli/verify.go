package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/pkg/audit"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/serve"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
	"lockstep.dev/services/lockstep/internal/api"
)

func auditVerify(r *remote) *cobra.Command {
	var appKey, trustFile, known string
	cmd := &cobra.Command{
		Use: "verify", Short: "Derive every seal of the audit log again from its rows", Args: cobra.NoArgs,
		Long: `Reads every seal and every row, derives each hash again, and checks each signed
head against the trust store. Names the first seal that does not hold, and the
rows that no seal covers yet.

A log whose end was cut off, seals and rows together, is a whole shorter log.
Keep the last line of an earlier run and give it with --known to notice that.

Exit codes: 0 every seal holds, 1 one is broken, 2 refused, 3 did not work.`,
		Example: `  lockstep audit verify --app-key form-center --trust trust.json
  lockstep audit verify --side consumer --app-key svc-hall --trust trust.json --known 41=9f86d081…`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			trust, err := identity.LoadTrust(trustFile)
			if err != nil {
				return err
			}
			if !trust.Knows(appKey) {
				return fmt.Errorf("%s has no key of %s", trustFile, appKey)
			}
			expected, err := parseKnown(known)
			if err != nil {
				return err
			}
			client, err := r.client()
			if err != nil {
				return err
			}
			c := &chain{client: client, verifier: &audit.Verifier{AppKey: appKey, Keys: func(at time.Time) []evidence.Key {
				return trust.Keys(appKey, identity.UseStatement, at)
			}}, expected: expected}
			return r.report(c, c.verify(cmd.Context()))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&appKey, "app-key", "", "the service whose log it is")
	flags.StringVar(&trustFile, "trust", "", "trust store with the service's public keys, old ones too")
	flags.StringVar(&known, "known", "", "a seal of an earlier run, as SEAL=HASH: it must still be there")
	require(cmd, "app-key", "trust")
	return cmd
}

// report says how a verification ended.
func (r *remote) report(c *chain, err error) error {
	head := c.verifier.Head()
	r.env.print("%d seals hold: %d rows, ids 1 to %d\n", head.Seal, c.rows, head.LastID)
	broken := new(audit.BrokenError)
	switch {
	case errors.As(err, &broken):
		r.env.print("BROKEN: seal %d: %s\n", broken.Seal, broken.Why)
		return exit(exitDiffers)
	case err != nil:
		return err
	case c.tail == 0:
		r.env.print("unsealed tail: none\n")
	default:
		r.env.print("unsealed tail: %d rows, ids %d to %d\n", c.tail, c.tailFirst, c.tailLast)
	}
	if head.Seal > 0 {
		r.env.print("head %d=%s sealed %s\n", head.Seal, head.Hash, head.SealedAt.Format(time.RFC3339))
	}
	return nil
}

// knownSeal is what an earlier run saw.
type knownSeal struct {
	seal int64
	hash string
}

func parseKnown(text string) (knownSeal, error) {
	if text == "" {
		return knownSeal{}, nil
	}
	number, hash, _ := strings.Cut(text, "=")
	seal, err := strconv.ParseInt(number, 10, 64)
	if raw, hexErr := hex.DecodeString(hash); err != nil || hexErr != nil || seal < 1 || len(raw) != len(audit.Hash{}) {
		return knownSeal{}, fmt.Errorf("--known: %q is no SEAL=HASH of an earlier run", text)
	}
	return knownSeal{seal, strings.ToLower(hash)}, nil
}

// verifyPage is the most that one call gives.
const verifyPage = 500

// chain reads a service's seals and rows side by side.
type chain struct {
	client   *api.Client
	verifier *audit.Verifier
	expected knownSeal

	rows                      int64 // under seals that hold
	tail, tailFirst, tailLast int64

	pending []*auditv1.AuditRow // read, and not yet under a seal
	after   string
	ended   bool
}

func (c *chain) verify(ctx context.Context) error {
	for token, more := "", true; more; {
		var page *auditv1.ListSealsResponse
		err := patiently(ctx, func() (err error) {
			page, _, err = c.client.Seals(ctx, &auditv1.ListSealsRequest{OldestFirst: true, PageSize: verifyPage, PageToken: token})
			return err
		})
		if err != nil {
			return err
		}
		for _, seal := range page.GetSeals() {
			if err := c.next(ctx, seal); err != nil {
				return err
			}
		}
		token = page.GetNextPageToken()
		more = token != ""
	}
	if head := c.verifier.Head(); c.expected.seal > head.Seal {
		return &audit.BrokenError{Seal: c.expected.seal, Why: fmt.Sprintf("it was there before, and the log ends at seal %d", head.Seal)}
	}
	return c.count(ctx)
}

func (c *chain) next(ctx context.Context, m *auditv1.AuditSeal) error {
	seal, err := sealOf(m)
	if err != nil {
		return &audit.BrokenError{Seal: m.GetSealId(), Why: err.Error()}
	}
	if err := c.verifier.Next(seal, func(_, last int64, add func(audit.Row) error) error { return c.upTo(ctx, last, add) }); err != nil {
		return err
	}
	c.rows += int64(seal.Rows)
	if seal.Seal == c.expected.seal && seal.Hash.String() != c.expected.hash {
		return &audit.BrokenError{Seal: seal.Seal, Why: "it is not the seal of the earlier run"}
	}
	return nil
}

func sealOf(m *auditv1.AuditSeal) (audit.Seal, error) {
	previous, err := hex.DecodeString(m.GetPrevious())
	hash, hashErr := hex.DecodeString(m.GetHash())
	if err != nil || hashErr != nil || len(previous) != len(audit.Hash{}) || len(hash) != len(audit.Hash{}) {
		return audit.Seal{}, errors.New("its hashes are malformed")
	}
	return audit.Seal{Head: audit.Head{
		Seal: m.GetSealId(), FirstID: m.GetFirstId(), LastID: m.GetLastId(), Rows: int(m.GetRowCount()),
		Previous: audit.Hash(previous), Hash: audit.Hash(hash), SealedAt: m.GetSealedAt().AsTime(),
	}, Envelope: document.EnvelopeFromProto(m.GetHead())}, nil
}

// upTo adds the rows up to an id, reading on as far as it needs.
func (c *chain) upTo(ctx context.Context, last int64, add func(audit.Row) error) error {
	for {
		for len(c.pending) > 0 {
			row := c.pending[0]
			if row.GetAuditId() > last {
				return nil
			}
			c.pending = c.pending[1:]
			if err := add(audit.Row{
				ID: row.GetAuditId(), At: row.GetAt().AsTime(), Actor: row.GetActor(), Action: row.GetAction(),
				Object: row.GetObject(), Decision: row.GetDecision(), Reason: row.GetReason(),
			}); err != nil {
				return err
			}
		}
		if c.ended {
			return nil
		}
		if err := c.read(ctx); err != nil {
			return err
		}
	}
}

// read fetches the next page of rows.
func (c *chain) read(ctx context.Context) error {
	return patiently(ctx, func() error {
		page, _, err := c.client.Audit(ctx, &auditv1.ListAuditRequest{OldestFirst: true, PageSize: verifyPage, PageToken: c.after})
		if err != nil {
			return err
		}
		c.pending, c.after = page.GetRows(), page.GetNextPageToken()
		c.ended = c.after == ""
		return nil
	})
}

// count counts the tail.
func (c *chain) count(ctx context.Context) error {
	const all = 1<<63 - 1
	return c.upTo(ctx, all, func(r audit.Row) error {
		if c.tail++; c.tailFirst == 0 {
			c.tailFirst = r.ID
		}
		c.tailLast = r.ID
		return nil
	})
}

// patiently waits where the service says that calls come too fast.
func patiently(ctx context.Context, call func() error) error {
	return serve.Patiently(ctx, func(err error) bool {
		refused := new(api.Refused)
		return errors.As(err, &refused) && refused.Reason == string(fault.RateLimited)
	}, call)
}
