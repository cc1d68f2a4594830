package auditlog_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/audit"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
	"lockstep.dev/services/internal/auditlog"
)

const appKey = "records"

type world struct {
	t      *testing.T
	pool   *pgxpool.Pool
	sealer *auditlog.Sealer
	key    evidence.Key
}

// setup makes a log in the database of one of the services.
func setup(t *testing.T, dsn string) *world {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	private := ed25519.NewKeyFromSeed([]byte(strings.Repeat("k", 32)))
	public, _ := private.Public().(ed25519.PublicKey)
	w := &world{t: t, pool: pool, key: evidence.Key{ID: "records-1", Public: public}}
	w.sealer = w.another("sealer-1")
	return w
}

func (w *world) another(name string) *auditlog.Sealer {
	return &auditlog.Sealer{
		Pool: w.pool, AppKey: appKey, Signer: evidence.NewSigner("records-1", ed25519.NewKeyFromSeed([]byte(strings.Repeat("k", 32)))),
		Worker: name, Every: time.Second, Now: time.Now, Log: zap.NewNop(),
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

const insert = `INSERT INTO lockstep.audit (actor, action, object, decision) VALUES ('operator/ada', 'test', $1, 'done') RETURNING audit_id`

func (w *world) write(object string) (id int64) {
	w.t.Helper()
	w.must(w.pool.QueryRow(w.t.Context(), insert, object).Scan(&id))
	return id
}

// open writes a row in a transaction that goes on.
func (w *world) open(object string) (pgx.Tx, int64) {
	w.t.Helper()
	tx, err := w.pool.Begin(w.t.Context())
	w.must(err)
	w.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(w.t.Context())) })
	var id int64
	w.must(tx.QueryRow(w.t.Context(), insert, object).Scan(&id))
	return tx, id
}

// seal seals as long as there is something to seal now.
func (w *world) seal() {
	w.t.Helper()
	for more := true; more; {
		var err error
		more, err = w.sealer.SealOnce(w.t.Context())
		w.must(err)
	}
}

// sealed gives the ranges of the seals as "first-last:rows", and verifies them all.
func (w *world) sealed() string {
	w.t.Helper()
	text, err := w.verify()
	w.must(err)
	return text
}

func (w *world) verify() (string, error) {
	w.t.Helper()
	seals, err := auditlog.Seals(w.t.Context(), w.pool, true, 0, 1000)
	w.must(err)
	v := &audit.Verifier{AppKey: appKey, Keys: func(time.Time) []evidence.Key { return []evidence.Key{w.key} }}
	var ranges []string
	for _, s := range seals {
		env, err := document.UnmarshalEnvelope(s.Head)
		w.must(err)
		err = v.Next(audit.Seal{Head: audit.Head{
			Seal: s.Seal, FirstID: s.FirstID, LastID: s.LastID, Rows: s.Rows,
			Previous: audit.Hash(s.Previous), Hash: audit.Hash(s.Hash), SealedAt: s.SealedAt.UTC(),
		}, Envelope: env}, func(first, last int64, add func(audit.Row) error) error {
			rows, err := auditlog.List(w.t.Context(), w.pool, auditlog.Query{OldestFirst: true, After: first - 1, Limit: 5000})
			for _, r := range rows {
				if err == nil && r.ID <= last {
					err = add(r)
				}
			}
			return err
		})
		if err != nil {
			return strings.Join(ranges, " "), err
		}
		ranges = append(ranges, fmt.Sprintf("%d-%d:%d", s.FirstID, s.LastID, s.Rows))
	}
	return strings.Join(ranges, " "), nil
}

func (w *world) want(ranges string) {
	w.t.Helper()
	if got := w.sealed(); got != ranges {
		w.t.Errorf("sealed %q, want %q", got, ranges)
	}
}

func TestSealing(t *testing.T) {
	for name, dsn := range map[string]func(testing.TB) string{"center": pgtest.Center, "consumer": pgtest.Consumer} {
		t.Run(name, func(t *testing.T) {
			w := setup(t, dsn(t))
			w.seal()
			w.want("")
			w.write("a")
			w.write("b")
			w.seal()
			w.want("1-2:2")
			w.seal()
			w.want("1-2:2")
			w.write("c")
			w.seal()
			w.want("1-2:2 3-3:1")
		})
	}
}

func TestALateCommitIsWaitedFor(t *testing.T) {
	w := setup(t, pgtest.Center(t))
	tx, lower := w.open("late")
	if higher := w.write("early"); higher <= lower {
		t.Fatalf("ids %d and %d", lower, higher)
	}
	w.seal()
	w.want("") // what is undecided is below everything else
	w.must(tx.Commit(t.Context()))
	w.seal()
	w.want("1-2:2")
}

func TestAGapIsSealedOnceItIsDecided(t *testing.T) {
	w := setup(t, pgtest.Center(t))
	tx, _ := w.open("never")
	w.write("b")
	w.seal()
	w.want("")
	w.must(tx.Rollback(t.Context()))
	w.seal()
	w.want("1-2:1")
}

// TestAnOlderTransactionWithAYoungerRow: the order of ids is not the order of
// transactions. The older one has its row already, and must not hold up more
// than it has to; nor may a row it writes later come behind a seal.
func TestAnOlderTransactionWithAYoungerRow(t *testing.T) {
	w := setup(t, pgtest.Center(t))
	tx, err := w.pool.Begin(t.Context())
	w.must(err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it is over by then
	_, err = tx.Exec(t.Context(), `SELECT pg_current_xact_id()`)
	w.must(err)
	w.write("younger transaction, lower id")
	w.seal()
	w.want("")
	var id int64
	w.must(tx.QueryRow(t.Context(), insert, "older transaction, higher id").Scan(&id))
	w.seal()
	w.want("")
	w.must(tx.Commit(t.Context()))
	w.seal() // up to what was seen first
	w.seal()
	w.want("1-1:1 2-2:1")
}

func TestWritersAndSealersAtOnce(t *testing.T) {
	w := setup(t, pgtest.Consumer(t))
	const writers, each = 6, 40
	var writing, sealing sync.WaitGroup
	for n := range writers {
		writing.Go(func() {
			for i := range each {
				err := pg.InTx(context.Background(), w.pool, func(tx pgx.Tx) error {
					var id int64
					if err := tx.QueryRow(context.Background(), insert, fmt.Sprint(n, i)).Scan(&id); err != nil {
						return err
					}
					if i%5 == 0 {
						return errors.New("rolled back")
					}
					return tx.QueryRow(context.Background(), insert, fmt.Sprint("again", n, i)).Scan(&id)
				})
				if err != nil && i%5 != 0 {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	for n := range 3 {
		s := w.another(fmt.Sprint("sealer-", n))
		sealing.Go(func() {
			for {
				if _, err := s.SealOnce(context.Background()); err != nil {
					t.Error(err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	writing.Wait()
	close(done)
	sealing.Wait()
	w.seal()
	w.seal()
	ranges := w.sealed()
	var rows, sealed int64
	w.must(w.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM lockstep.audit), (SELECT sum(row_count) FROM lockstep.audit_seal)`).Scan(&rows, &sealed))
	if want := int64(writers * (each - each/5) * 2); rows != want || sealed != rows {
		t.Errorf("%d rows, %d sealed, want %d of each; %s", rows, sealed, want, ranges)
	}
	t.Logf("%d seals over %d rows", strings.Count(ranges, ":"), rows)
}

func TestNothingIsRewritten(t *testing.T) {
	for name, dsn := range map[string]func(testing.TB) string{"center": pgtest.Center, "consumer": pgtest.Consumer} {
		t.Run(name, func(t *testing.T) {
			w := setup(t, dsn(t))
			w.write("a")
			w.seal()
			for _, sql := range []string{
				`UPDATE lockstep.audit SET actor = 'eve'`, `DELETE FROM lockstep.audit`, `TRUNCATE lockstep.audit`,
				`UPDATE lockstep.audit_seal SET row_count = 2`, `DELETE FROM lockstep.audit_seal`, `TRUNCATE lockstep.audit_seal`,
				`SET lockstep.retention = 'on'; DELETE FROM lockstep.audit`,
				`INSERT INTO lockstep.audit_seal SELECT seal_id + 1, 1, 5, 1, previous, hash, head, sealed_at FROM lockstep.audit_seal`,
				`INSERT INTO lockstep.audit_seal SELECT seal_id + 2, last_id + 1, last_id + 1, 1, hash, hash, head, sealed_at FROM lockstep.audit_seal`,
				`INSERT INTO lockstep.audit_seal SELECT seal_id + 1, last_id + 1, last_id + 1, 1, previous, hash, head, sealed_at FROM lockstep.audit_seal`,
			} {
				if _, err := w.pool.Exec(t.Context(), sql); pg.Code(err) != "23000" {
					t.Errorf("%s: %v, want a refusal", sql, err)
				}
			}
			// An id and a time of one's own choice are not taken.
			var id int64
			var recent bool
			w.must(w.pool.QueryRow(t.Context(), `INSERT INTO lockstep.audit (audit_id, at, actor, action, object, decision)
				VALUES (-5, '2001-01-01Z', 'a', 'b', 'c', 'd') RETURNING audit_id, at > now() - interval '1 minute'`).Scan(&id, &recent))
			if id != 2 || !recent {
				t.Errorf("the row has id %d, recent %t", id, recent)
			}
			w.must(exec(t, w.pool, `SELECT setval('lockstep.audit_id', 1, false)`))
			if err := exec(t, w.pool, `INSERT INTO lockstep.audit (actor, action, object, decision) VALUES ('a', 'b', 'c', 'd')`); pg.Code(err) != "23000" {
				t.Errorf("a row behind a seal: %v", err)
			}
			w.want("1-1:1")
		})
	}
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) error {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql)
	return err
}

func TestTamperingIsNamed(t *testing.T) {
	w := setup(t, pgtest.Center(t))
	for _, object := range []string{"a", "b", "c"} {
		w.write(object)
		w.seal()
	}
	w.must(exec(t, w.pool, `ALTER TABLE lockstep.audit DISABLE TRIGGER USER; UPDATE lockstep.audit SET actor = 'operator/eve' WHERE audit_id = 2; ALTER TABLE lockstep.audit ENABLE TRIGGER USER`))
	held, err := w.verify()
	broken := new(audit.BrokenError)
	if !errors.As(err, &broken) || broken.Seal != 2 || held != "1-1:1" {
		t.Errorf("held %q, then %v", held, err)
	}
}

func TestAnotherProcessHoldsTheClaim(t *testing.T) {
	w := setup(t, pgtest.Center(t))
	w.write("a")
	w.must(exec(t, w.pool, `UPDATE lockstep.audit_sealer SET claim_token = gen_random_uuid(), claimed_by = 'x', claimed_at = now(), lease_until = now() + interval '1 minute'`))
	w.seal()
	w.want("")
	w.must(exec(t, w.pool, `UPDATE lockstep.audit_sealer SET lease_until = now() - interval '1 second'`))
	w.seal()
	w.want("1-1:1")
}

func TestRefusals(t *testing.T) {
	w := setup(t, pgtest.Consumer(t))
	now := time.Now()
	r := &auditlog.Refusals{Pool: w.pool, Now: func() time.Time { return now }, Log: zap.NewNop()}
	other := &auditlog.Refusals{Pool: w.pool, Now: r.Now, Log: zap.NewNop()}
	for range 5 {
		r.Refused("operator:eve", "/x/CreateTask", fault.PermissionDenied)
		r.Refused("operator:eve", "/x/CreateTask", fault.RateLimited)
		r.Refused("", "/x/CreateTask", fault.PermissionDenied)
		r.Refused("app:hall", "/x/GetManifest", fault.ManifestNotReady) // not now is no refusal
		other.Refused("operator:eve", "/x/CreateTask", fault.PermissionDenied)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, one := range []*auditlog.Refusals{r, other} {
		running.Go(func() { _ = one.Run(ctx) })
	}
	w.awaitRows(3)
	now = now.Add(time.Minute)
	r.Refused("operator:kim", "/x/CreateTask", fault.PermissionDenied) // a mark behind everything else
	w.awaitRows(4)
	stop()
	running.Wait()
	rows, err := auditlog.List(t.Context(), w.pool, auditlog.Query{Action: "refuse", Limit: 10})
	w.must(err)
	got := map[string]int{}
	for _, row := range rows {
		got[row.Actor+" "+row.Decision]++
	}
	if len(rows) != 4 || got["operator/eve PERMISSION_DENIED"] != 1 || got["operator/eve RATE_LIMITED"] != 1 || got["unknown PERMISSION_DENIED"] != 1 {
		t.Errorf("the rows are %v", got)
	}
}

func (w *world) awaitRows(n int) {
	w.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for {
		var rows int
		w.must(w.pool.QueryRow(w.t.Context(), `SELECT count(*) FROM lockstep.audit`).Scan(&rows))
		if rows >= n {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("%d rows, want %d", rows, n)
		}
	}
}

func TestLists(t *testing.T) {
	w := setup(t, pgtest.Center(t))
	for i := range 7 {
		w.write(fmt.Sprint("task/", i%2))
	}
	server := &auditlog.Server{Pool: w.pool}
	ada := identity.WithOperator(t.Context(), identity.Operator{ID: "ada", Role: identity.RoleViewer})
	read := func(in *auditv1.ListAuditRequest) (ids []int64) {
		t.Helper()
		for {
			out, err := server.ListAudit(ada, in)
			w.must(err)
			for _, row := range out.GetRows() {
				ids = append(ids, row.GetAuditId())
			}
			if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
				return ids
			}
		}
	}
	for _, c := range []struct {
		name string
		in   *auditv1.ListAuditRequest
		want string
	}{
		{"newest_first", &auditv1.ListAuditRequest{PageSize: 3}, "[7 6 5 4 3 2 1]"},
		{"oldest_first", &auditv1.ListAuditRequest{PageSize: 2, OldestFirst: true}, "[1 2 3 4 5 6 7]"},
		{"by_object", &auditv1.ListAuditRequest{Object: "task/1", PageSize: 2}, "[6 4 2]"},
		{"by_actor", &auditv1.ListAuditRequest{Actor: "operator/eve"}, "[]"},
		{"by_action", &auditv1.ListAuditRequest{Action: "test", PageSize: 500}, "[7 6 5 4 3 2 1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fmt.Sprint(read(c.in)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		bounded := identity.WithOperator(t.Context(), identity.Operator{ID: "kim", Role: identity.RoleAdmin, Tenants: []int64{7}})
		for want, call := range map[fault.Reason]func() error{
			fault.PermissionDenied: func() error { _, err := server.ListAudit(bounded, &auditv1.ListAuditRequest{}); return err },
			fault.CursorInvalid: func() error {
				first, err := server.ListAudit(ada, &auditv1.ListAuditRequest{PageSize: 1})
				if err != nil {
					t.Fatal(err)
				}
				for _, other := range []*auditv1.ListAuditRequest{{PageToken: "x"}, {Actor: "operator/ann"}, {OldestFirst: true}, {Before: timestamppb.Now()}} {
					if other.PageToken == "" {
						other.PageToken = first.GetNextPageToken()
					}
					if _, err := server.ListAudit(ada, other); fault.ReasonOf(err) != fault.CursorInvalid {
						t.Errorf("%v: %v", other, err)
					}
				}
				_, err = server.ListSeals(ada, &auditv1.ListSealsRequest{PageToken: first.GetNextPageToken()})
				return err
			},
			fault.InvalidArgument: func() error { _, err := server.ListAudit(ada, &auditv1.ListAuditRequest{PageSize: 501}); return err },
		} {
			if got := fault.ReasonOf(call()); got != want {
				t.Errorf("refused with %q, want %q", got, want)
			}
		}
	})
}
