package delivery_test

import (
	"context"
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap/zaptest"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/delivery"
	"lockstep.dev/services/consumer/internal/projection"
	"lockstep.dev/services/consumer/internal/store"
)

const key = "00000000000000000000000000000001"

var mapping = dataset.Config{
	Name: "answers", Table: "hall.answer_projection", KeyKind: protocol.KeyKindUUID,
	Columns: dataset.Columns{
		Key: "answer_id", Tenant: "tenant_id", Collection: "form_id", Revision: "revision", Deleted: "deleted",
		SchemaVersion: "form_version", Sequence: "seq_no", Content: "values", ContentHash: "content_hash",
		ProjectionVersion: "projection_version", CreateTime: "created_at", Retired: "retired_at",
		RetireHold: "retire_hold", LastEventID: "last_event_id", ConflictDetail: "conflict_detail", ProofID: "proof_id",
	},
}

type world struct {
	t        *testing.T
	pool     *pgxpool.Pool
	signer   *evidence.Signer
	receiver *delivery.Receiver
	rows     *projection.Projection
}

func setup(t *testing.T) *world {
	t.Helper()
	return setupWith(t, 20) // a repair of the test's reads while its transaction is open
}

func setupWith(t *testing.T, conns int32) *world {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.Consumer(t))
	w := &world{t: t}
	w.must(err)
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	w.must(err)
	w.pool = pool
	t.Cleanup(pool.Close)
	table, err := dataset.Resolve(t.Context(), pool, mapping, dataset.Consumer)
	w.must(err)
	private := ed25519.NewKeyFromSeed([]byte(strings.Repeat("c", 32)))
	public, _ := private.Public().(ed25519.PublicKey)
	w.signer, w.rows = evidence.NewSigner("center-1", private), projection.New(pool, pool, table)
	w.receiver = &delivery.Receiver{
		Self: "hall", Source: "center", SourceKeys: func() []evidence.Key { return []evidence.Key{{ID: "center-1", Public: public}} },
		Store: store.New(pool, pool, store.Settings{Lease: time.Minute}), Projection: w.rows, Enabled: true, Log: zaptest.NewLogger(t),
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// snapshot is a good one of the record; change makes it another.
func snapshot(revision int64, content string, change ...func(*protocol.Snapshot)) *protocol.Snapshot {
	s := &protocol.Snapshot{
		At:  protocol.Coordinates{Source: "center", Consumer: "hall", TenantID: 7, CollectionID: "form-1", GrantEpoch: 1, CenterEpoch: 1},
		Key: key, Revision: revision, SchemaVersion: 2, Sequence: 3, EventID: protocol.FormatID(uuid.New()), IssuedAt: time.Unix(1_700_000_000, 0),
	}
	if content != "" {
		s.Content = []byte(content)
	}
	s.Hash, _ = canon.Sum(s.Content)
	for _, f := range change {
		f(s)
	}
	return s
}

func epoch(e int64) func(*protocol.Snapshot) {
	return func(s *protocol.Snapshot) { s.At.CenterEpoch = e }
}

func tombstone(s *protocol.Snapshot) { s.Deleted = true }

// send delivers as the center does: one answer, or a code.
func (w *world) send(s *protocol.Snapshot) string {
	w.t.Helper()
	env, err := document.SealSnapshot(w.signer, s)
	w.must(err)
	return w.sendAs("center", &consumerv1.DeliverSnapshotRequest{TenantId: 7, CollectionId: "form-1", Key: key, Snapshot: document.EnvelopeToProto(env)})
}

func (w *world) sendAs(peer string, req *consumerv1.DeliverSnapshotRequest) string {
	w.t.Helper()
	answer, err := w.receiver.DeliverSnapshot(identity.WithPeer(w.t.Context(), peer), req)
	if err != nil {
		if code := fault.ReasonOf(err); code != fault.None {
			return string(code)
		}
		return err.Error()
	}
	return strings.TrimPrefix(answer.GetOutcome().String(), "DELIVERY_OUTCOME_")
}

func (w *world) want(got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("got %s, want %s", got, want)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), sql, args...)
	w.must(err)
}

func (w *world) text(sql string, args ...any) (out string) {
	w.t.Helper()
	w.must(w.pool.QueryRow(w.t.Context(), sql, args...).Scan(&out))
	return out
}

// row is the record as "revision deleted content retired", "" where there is none.
func (w *world) row() string {
	w.t.Helper()
	return w.text(`SELECT coalesce((SELECT format('%s %s %s %s', revision, deleted, coalesce("values"::text, 'NULL'), retired_at IS NOT NULL)
		FROM hall.answer_projection WHERE answer_id = $1::text::uuid AND tenant_id = 7), '')`, key)
}

// marked is the record's high-water mark as "epoch revision retired".
func (w *world) marked() string {
	w.t.Helper()
	return w.text(`SELECT coalesce((SELECT format('%s %s %s', center_epoch, revision, retired) FROM lockstep.high_water WHERE record_key = decode($1, 'hex')), '')`, key)
}

// receipt is what was kept of the record's last word.
func (w *world) receipt() string {
	w.t.Helper()
	return w.text(`SELECT coalesce((SELECT format('%s %s %s', outcome, center_epoch, revision) FROM lockstep.delivery_receipt WHERE record_key = decode($1, 'hex')), '')`, key)
}

// everything digests the host's table and Lockstep's.
func (w *world) everything() string {
	w.t.Helper()
	return w.text(`SELECT concat_ws('|', (SELECT string_agg(t::text, ';' ORDER BY t::text) FROM hall.answer_projection t),
		(SELECT string_agg(t::text, ';' ORDER BY t::text) FROM lockstep.high_water t), (SELECT string_agg(t::text, ';' ORDER BY t::text) FROM lockstep.delivery_receipt t),
		(SELECT string_agg(t::text, ';' ORDER BY t::text) FROM lockstep.outcome t), (SELECT count(*) FROM lockstep.audit))`)
}

// repair writes the record as a repair does: under what it read, with its mark.
func (w *world) repair(ctx context.Context, tx pgx.Tx, s *protocol.Snapshot) (bool, error) {
	raw, err := protocol.ParseKey(s.Key)
	if err != nil {
		return false, err
	}
	rows, err := w.rows.Rows(ctx, 7, []string{raw}, false)
	if err != nil {
		return false, err
	}
	expected := projection.Absent()
	if row, ok := rows[raw]; ok {
		if row.Revision > s.Revision {
			return false, nil
		}
		expected = row.Expected()
	}
	written, err := w.rows.Repair(ctx, tx, projection.Scope{TenantID: 7, CollectionID: "form-1"},
		[]projection.Item{{Key: raw, Expected: expected, Snapshot: s, ProofID: "proof"}})
	if err != nil || len(written) == 0 {
		return false, err
	}
	_, err = tx.Exec(ctx, `INSERT INTO lockstep.high_water AS h VALUES (7, 'form-1', $1, $2, $3, false)
		ON CONFLICT (tenant_id, collection_id, record_key) DO UPDATE SET center_epoch = $2, revision = $3, retired = false
		WHERE h.retired OR ($2, $3) >= (h.center_epoch, h.revision)`, []byte(raw), s.At.CenterEpoch, s.Revision)
	return true, err
}
