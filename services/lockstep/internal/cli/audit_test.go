package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/audit"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/identity"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
)

// auditWorld is a log of five rows: two seals over the first four.
type auditWorld struct {
	*world

	trust string
	rows  []*auditv1.AuditRow
	seals []*auditv1.AuditSeal
}

func setupAudit(t *testing.T) *auditWorld {
	t.Helper()
	dir := t.TempDir()
	key, err := identity.GenerateKeyFile(filepath.Join(dir, "key.json"), identity.KeyParams{
		AppKey: "records", KeyID: "records-1", Use: []identity.Use{identity.UseStatement}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &auditWorld{world: setup(t, map[string]string{}), trust: filepath.Join(dir, "trust.json")}
	if err := identity.WriteTrust(w.trust, key.Public()); err != nil {
		t.Fatal(err)
	}
	signer, err := key.Signer()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	for id := range int64(5) {
		w.rows = append(w.rows, &auditv1.AuditRow{AuditId: id + 1, At: timestamppb.New(now), Actor: "operator/ada", Action: "grant.set", Object: "grant/x", Decision: "SET"})
	}
	var previous audit.Hash
	for n := range int64(2) {
		head := audit.Head{AppKey: "records", Seal: n + 1, FirstID: 2*n + 1, LastID: 2*n + 2, Rows: 2, Previous: previous, SealedAt: now}
		h := audit.NewHasher(previous, head.FirstID, head.LastID)
		for _, r := range w.rows[2*n : 2*n+2] {
			h.Add(audit.Row{ID: r.GetAuditId(), At: now, Actor: r.GetActor(), Action: r.GetAction(), Object: r.GetObject(), Decision: r.GetDecision()})
		}
		head.Hash = h.Sum()
		env, err := audit.Sign(signer, head)
		if err != nil {
			t.Fatal(err)
		}
		w.seals = append(w.seals, &auditv1.AuditSeal{
			SealId: head.Seal, FirstId: head.FirstID, LastId: head.LastID, RowCount: 2, Previous: previous.String(), Hash: head.Hash.String(),
			SealedAt: timestamppb.New(now), Head: document.EnvelopeToProto(env),
		})
		previous = head.Hash
	}
	return w
}

// verify answers in two pages each, and runs the command.
func (w *auditWorld) verify(t *testing.T, more ...string) int {
	t.Helper()
	answer := func(path string, m proto.Message) {
		text, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		w.answers["GET "+path] = string(text)
	}
	answer("/v1/audit/seals?oldest_first=true&page_size=500", &auditv1.ListSealsResponse{Seals: w.seals[:1], NextPageToken: "1"})
	answer("/v1/audit/seals?oldest_first=true&page_size=500&page_token=1", &auditv1.ListSealsResponse{Seals: w.seals[1:]})
	answer("/v1/audit?oldest_first=true&page_size=500", &auditv1.ListAuditResponse{Rows: w.rows[:3], NextPageToken: "3"})
	answer("/v1/audit?oldest_first=true&page_size=500&page_token=3", &auditv1.ListAuditResponse{Rows: w.rows[3:]})
	return w.run(t, append([]string{"audit", "verify", "--app-key", "records", "--trust", w.trust}, more...)...)
}

func TestAuditVerify(t *testing.T) {
	earlier := func(w *auditWorld) string { return "2=" + w.seals[1].GetHash() }
	for _, c := range []struct {
		name   string
		damage func(*auditWorld)
		more   func(*auditWorld) []string
		want   int
		says   []string
	}{
		{"whole", nil, nil, exitDone, []string{"2 seals hold: 4 rows, ids 1 to 4\n", "unsealed tail: 1 rows, ids 5 to 5\n", "head 2="}},
		{"whole_as_before", nil, func(w *auditWorld) []string { return []string{"--known", earlier(w)} }, exitDone, []string{"2 seals hold"}},
		{"a_changed_row", func(w *auditWorld) { w.rows[2].Actor = "operator/eve" }, nil, exitDiffers, []string{"1 seals hold", "BROKEN: seal 2: the rows 3 to 4"}},
		{"a_removed_row", func(w *auditWorld) { w.rows = w.rows[1:] }, nil, exitDiffers, []string{"0 seals hold", "BROKEN: seal 1"}},
		{
			"out_of_order",
			func(w *auditWorld) { w.seals[0], w.seals[1] = w.seals[1], w.seals[0] },
			nil, exitDiffers,
			[]string{"BROKEN: seal 2: seal 1 should follow seal 0"},
		},
		{
			"another_than_before", nil,
			func(w *auditWorld) []string { return []string{"--known", "1=" + w.seals[1].GetHash()} },
			exitDiffers,
			[]string{"BROKEN: seal 1: it is not the seal of the earlier run"},
		},
		{
			"shorter_than_before", nil,
			func(w *auditWorld) []string { return []string{"--known", "3=" + w.seals[1].GetHash()} },
			exitDiffers,
			[]string{"BROKEN: seal 3: it was there before, and the log ends at seal 2"},
		},
		{"no_key", nil, func(*auditWorld) []string { return []string{"--app-key", "hall"} }, exitError, nil},
		{"a_malformed_known", nil, func(*auditWorld) []string { return []string{"--known", "2"} }, exitError, nil},
		{"a_token_nobody_knows", nil, func(*auditWorld) []string { return []string{"--token", "wrong"} }, exitRefused, nil},
		{"an_unknown_side", nil, func(*auditWorld) []string { return []string{"--side", "moon"} }, exitError, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := setupAudit(t)
			if c.damage != nil {
				c.damage(w)
			}
			var more []string
			if c.more != nil {
				more = c.more(w)
			}
			if got := w.verify(t, more...); got != c.want {
				t.Errorf("exit code %d, want %d; out %q, err %q", got, c.want, w.out.String(), w.err.String())
			}
			for _, text := range c.says {
				if !strings.Contains(w.out.String(), text) {
					t.Errorf("it does not say %q:\n%s", text, w.out.String())
				}
			}
		})
	}
}

func TestAuditList(t *testing.T) {
	w := setup(t, map[string]string{
		"GET /v1/audit?actor=operator%2Fada&from=2026-11-30T00%3A00%3A00Z&page_size=50": `{"rows":[{"auditId":"7","at":"2026-11-30T12:00:00Z","actor":"operator/ada","action":"grant.set","object":"grant/x","decision":"SET"}],"nextPageToken":"7"}`,
	})
	if got := w.run(t, "audit", "list", "--actor", "operator/ada", "--from", "2026-11-30T00:00:00Z"); got != exitDone {
		t.Fatalf("exit code %d: %s", got, w.err.String())
	}
	for _, text := range []string{"7", "operator/ada", "grant.set", "grant/x", "SET"} {
		if !strings.Contains(w.out.String(), text) {
			t.Errorf("it does not show %q:\n%s", text, w.out.String())
		}
	}
}
