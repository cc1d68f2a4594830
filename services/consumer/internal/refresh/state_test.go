package refresh

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.dev/pkg/fault"
)

func TestEveryTransition(t *testing.T) {
	want := map[State]string{ // by Events' order; "-" can't happen
		Pending:   "PENDING RUNNING - - - - - PENDING PENDING CANCELLED -",
		Running:   "RUNNING RUNNING PENDING SUCCESS FAILED PENDING PENDING - - CANCELLED -",
		Success:   "PENDING - - - - - - - - - -",
		Failed:    "PENDING RUNNING - - - - - FAILED FAILED CANCELLED -",
		Cancelled: "- - - - - - - - - - PENDING",
	}
	for _, s := range States() {
		words := strings.Fields(want[s])
		for i, e := range Events() {
			to, err := s.On(e)
			if words[i] == "-" {
				if fault.ReasonOf(err) != fault.TaskTerminal {
					t.Errorf("%s on %s gave %s, %v; want a refusal", e, s, to, err)
				}
				continue
			}
			if err != nil || string(to) != words[i] {
				t.Errorf("%s on %s gave %s, %v; want %s", e, s, to, err, words[i])
			}
		}
	}
}

func TestMask(t *testing.T) {
	for in, want := range map[string]string{
		`payee_account_name: Zhang San, x`:                       `payee_account_name: ***, x`,
		`{"payee_open_bank":"ICBC 7","n":1}`:                     `{"payee_open_bank":***,"n":1}`,
		`收款户名：张三；金额 5`:                                           `收款户名：***；金额 5`,
		`account 6222021234567890123 refused`:                    `account ***0123 refused`,
		`card 6222 0212 3456 7890 123`:                           `card *** 123`,
		`to DE89370400440532013000`:                              `to ***3000`,
		`duplicate key Key (payee_account_no)=(6222) exists`:     `duplicate key Key (payee_account_no)=(***) exists`,
		`no difference of line 1234567890123456789 in 17:202607`: `no difference of line 1234567890123456789 in 17:202607`,
		`bank "Bank of Nowhere" closed`:                          `bank *** closed`,
	} {
		if got := maskText(in); got != want {
			t.Errorf("%s\ngave %s\nwant %s", in, got, want)
		}
	}
	_, message := failure(&pgconn.PgError{Code: "22P02", Message: `invalid input syntax for type numeric: "Zhang San"`, Detail: "Zhang San"})
	if strings.Contains(message, "Zhang") {
		t.Errorf("the message quotes a row: %s", message)
	}
}

// TestMessagesAreSentences: no code twice, nothing of Go or of a driver.
func TestMessagesAreSentences(t *testing.T) {
	var list struct {
		Scopes []int `json:"scopes"`
		On     bool  `json:"on"`
	}
	unread := func(text string) error {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		member, says := Unread(decoder.Decode(&list))
		return fault.New(fault.InvalidArgument, "the request can't be read").WithField(cmp.Or(member, "payload"), "%s", says)
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"another type":         {unread(`{"scopes": 7}`), "the request can't be read; scopes is a number, not a list"},
		"another, inside":      {unread(`{"scopes": ["x"]}`), "the request can't be read; scopes is text, not a whole number"},
		"no truth":             {unread(`{"on": {}}`), "the request can't be read; on is an object, not true or false"},
		"an unknown member":    {unread(`{"scope": 7}`), "the request can't be read; scope is not a member that is known here"},
		"no JSON":              {unread(`{"scopes": [}`), "the request can't be read; payload is no JSON from byte 13 on"},
		"cut off":              {unread(`{"scopes": [1`), "the request can't be read; payload ends in the middle"},
		"nothing":              {unread(``), "the request can't be read; payload is empty"},
		"no object":            {unread(`[]`), "the request can't be read; payload is a list, not an object"},
		"a refusal":            {fmt.Errorf("resolve task 7: %w", fault.Wrap(errors.New("EOF"), fault.LocatorMissing, "no difference of line 12")), "no difference of line 12"},
		"the database refuses": {fmt.Errorf("read the facts: %w", &pgconn.PgError{Severity: "ERROR", Code: "42P01", Message: `relation "x" does not exist`}), `read the facts: the database refused it: relation "***" does not exist (SQLSTATE 42P01)`},
		"too late":             {fmt.Errorf("read the facts: %w", context.DeadlineExceeded), "read the facts: it took longer than it may"},
	} {
		if code, got := failure(c.err); got != c.want || code == "" {
			t.Errorf("%s: %s %q, want %q", name, code, got, c.want)
		}
	}
}

func TestSettings(t *testing.T) {
	set := Defaults()
	if err := set.Validate(); err != nil {
		t.Fatal(err)
	}
	got := []any{set.Lease, set.PageScopes, set.ClaimsPerRun, set.Retries, set.Kick.Workers, set.Kick.Queue, set.Kick.Bucket, set.Kick.RoundBudget}
	want := []any{10 * time.Minute, 100, 100, 3, 2, 128, 64, 5 * time.Second}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("default %d is %v, want %v", i, got[i], want[i])
		}
	}
	set = Settings{PageScopes: 501, ClaimsPerRun: 501, Kick: KickSettings{Workers: 5, Stages: map[string]Stage{"bills": {Grey: 101}}}}
	err := set.Validate()
	for _, name := range []string{
		"lease", "stall", "page_scopes", "scopes_at_once", "claims_per_run", "retries", "retry_delays", "scan",
		"kick.workers", "kick.queue", "kick.bucket", "kick.round_budget", "kick.stages.bills.grey",
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("nothing is said about %s: %v", name, err)
		}
	}
}
