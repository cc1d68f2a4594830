package e2e

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/identity"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
)

// canary is in the content of every record of this test.
const canary = "canary-7f3a91"

// secrets are what must never be told, by what they are: private keys and
// operators' tokens in every spelling, content, and the claim tokens that watch saw.
func (s *stack) secrets() map[string]string {
	s.t.Helper()
	out := map[string]string{"an operator's token": s.token, "content": canary, "content of the damaged rows": `"other": 1`}
	for _, app := range []string{centerApp, consumerApp} {
		key, err := identity.LoadKeyFile(s.file(app + ".key.json"))
		s.must(err)
		out["the key of "+app+", base64"] = base64.StdEncoding.EncodeToString(key.PrivateKey)
		out["the key of "+app+", raw base64url"] = base64.RawURLEncoding.EncodeToString(key.PrivateKey)
		out["the key of "+app+", hex"] = hex.EncodeToString(key.PrivateKey)
		out["the key of "+app+", bytes"] = string(key.PrivateKey)
		out["the key of "+app+", decimal"] = strings.Trim(fmt.Sprint(key.PrivateKey), "[]")
	}
	for pool, table := range map[*pgxpool.Pool]string{s.center: "task", s.consumer: "work"} {
		if len(s.strings(pool, `SELECT token FROM claim_tokens WHERE of = '`+table+`'`)) == 0 {
			s.t.Errorf("no claim of lockstep.%s was watched", table)
		}
		for _, token := range s.strings(pool, `SELECT token FROM claim_tokens`) {
			out["claim token "+token] = token
			out["claim token "+token+", hex"] = strings.ReplaceAll(token, "-", "")
		}
	}
	return out
}

// watch remembers every claim token that is ever given, as a database's owner could.
func (s *stack) watch() {
	s.t.Helper()
	for pool, tables := range map[*pgxpool.Pool][]string{
		s.center: {"lockstep.task", "lockstep.audit_sealer"}, s.consumer: {"lockstep.work", "lockstep.audit_sealer", "lockstep.refresh_progress"},
	} {
		_, err := pool.Exec(s.t.Context(), `CREATE TABLE IF NOT EXISTS claim_tokens (token text, of text);
			CREATE FUNCTION remember_token() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF NEW.claim_token IS NOT NULL THEN INSERT INTO claim_tokens VALUES (NEW.claim_token::text, TG_TABLE_NAME); END IF; RETURN NULL; END $$`)
		s.must(err)
		for _, table := range tables {
			_, err := pool.Exec(s.t.Context(), `CREATE TRIGGER remember AFTER INSERT OR UPDATE OF claim_token ON `+table+` FOR EACH ROW EXECUTE FUNCTION remember_token()`)
			s.must(err)
		}
	}
}

func (s *stack) strings(pool *pgxpool.Pool, sql string) (out []string) {
	s.t.Helper()
	rows, err := pool.Query(s.t.Context(), sql)
	s.must(err)
	defer rows.Close()
	for rows.Next() {
		var text string
		s.must(rows.Scan(&text))
		out = append(out, text)
	}
	s.must(rows.Err())
	return out
}

// TestNothingIsTold runs everything that could tell: repairs, a row that the
// host's table refuses, an unreadable one, refused callers, at the log level
// that says most. Then nothing that is kept, logged or shown holds a secret.
func TestNothingIsTold(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.watch()
	s.fill(form, 600)
	s.exec(true, `UPDATE answers.answer SET "values" = "values" || jsonb_build_object('name', $1::text)`, canary)
	s.damageAll(form, few)
	// The host refuses some rows: PostgreSQL's detail of such an error holds the row.
	s.exec(false, `ALTER TABLE hall.answer_projection ADD CONSTRAINT no_thirteen CHECK (seq_no <> 33 AND seq_no <> 36) NOT VALID`)
	consumer := s.startConsumer("", nil)
	center := s.startCenter("", nil)
	id := s.create(form)
	s.awaitEnd(id)

	// Callers who are refused, with secrets in the wrong places.
	wrong, _ := identity.GenerateOperatorToken()
	for _, n := range []*node{center, consumer} {
		for _, ask := range []func(*http.Request){
			func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+wrong) },
			func(r *http.Request) { r.URL.RawQuery = "token=" + s.token },
			func(r *http.Request) {
				r.Header.Set("Authorization", "Bearer "+s.token)
				r.URL.Path = "/v1/" + s.token[:20]
			},
		} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.at.HTTP+"/v1/audit", nil)
			s.must(err)
			ask(request)
			response, err := http.DefaultClient.Do(request)
			s.must(err)
			s.must(response.Body.Close())
			if response.StatusCode == http.StatusOK {
				t.Errorf("%s was answered", request.URL.Path)
			}
		}
	}
	s.await("the refusals in both audit logs", func() bool {
		const refused = `SELECT object FROM lockstep.audit WHERE action = 'refuse'`
		return len(s.strings(s.center, refused)) > 0 && len(s.strings(s.consumer, refused)) > 0
	})

	told := map[string]string{}
	for _, name := range []string{"center.log", "consumer.log"} {
		text, err := os.ReadFile(s.file(name))
		s.must(err)
		told[name] = string(text)
	}
	told["center's metrics"], _ = s.scrape(center)
	told["consumer's metrics"], _ = s.scrape(consumer)
	for what, rows := range map[string][]string{
		"center's audit log":              s.strings(s.center, `SELECT t::text FROM lockstep.audit t`),
		"consumer's audit log":            s.strings(s.consumer, `SELECT t::text FROM lockstep.audit t`),
		"the events":                      s.strings(s.center, `SELECT t::text FROM lockstep.task_event t`),
		"the reports":                     s.strings(s.center, `SELECT encode(report, 'escape') FROM lockstep.task_result`),
		"the task":                        s.strings(s.center, `SELECT (to_jsonb(t) - 'claim_token')::text || coalesce(encode(progress, 'escape'), '') FROM lockstep.task t`),
		"the work":                        s.strings(s.consumer, `SELECT (to_jsonb(t) - 'claim_token')::text FROM lockstep.work t`),
		"the ledger but for signed words": s.strings(s.consumer, `SELECT (to_jsonb(t) - 'evidence')::text FROM lockstep.outcome t`),
	} {
		told[what] = strings.Join(rows, "\n")
	}
	told["the answers to operators"] = s.answers(id)

	secrets := s.secrets()
	secrets["a wrong token"] = wrong
	delete(secrets, "content of the damaged rows")
	for where, text := range told {
		if text == "" {
			t.Errorf("%s is empty", where)
		}
		for what, secret := range secrets {
			if strings.Contains(text, secret) {
				at := strings.Index(text, secret)
				t.Errorf("%s tells %s: …%q", where, what, text[max(0, at-120):min(len(text), at+120)])
			}
		}
	}
	if got := s.outcomes(id)["STALE/QUARANTINED"] + s.outcomes(id)["MISSING/QUARANTINED"]; got == 0 {
		t.Errorf("no row was refused by the host's table: %v", s.outcomes(id))
	}
}

// answers is what both services tell an operator about a task.
func (s *stack) answers(id string) string {
	s.t.Helper()
	var all strings.Builder
	for _, conn := range []string{s.centerAddr, s.consumerAddr} {
		log, err := auditv1.NewAuditServiceClient(s.dial(conn)).ListAudit(s.operator(), &auditv1.ListAuditRequest{PageSize: 500})
		s.must(err)
		all.WriteString(log.String())
	}
	outcomes, err := s.consumerAdmin().ListOutcomes(s.operator(), &consumerv1.ListOutcomesRequest{TaskId: id, PageSize: 500})
	s.must(err)
	results, err := s.centerAdmin().ListResults(s.operator(), &centerv1.ListResultsRequest{TaskId: id})
	s.must(err)
	all.WriteString(outcomes.String() + results.String())
	return all.String()
}
