package delivery_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	"lockstep.dev/services/consumer/internal/store"
)

// As many words may be at work as there are connections: none waits for a second one.
func TestOneConnectionIsEnough(t *testing.T) {
	w := setupWith(t, 1)
	done := make(chan []string, 1)
	go func() {
		var got []string
		for _, s := range []*protocol.Snapshot{snapshot(3, `{"a": 1}`), snapshot(3, `{"a": 1}`), snapshot(2, `{}`), snapshot(3, `{"a": 2}`), snapshot(4, `{}`)} {
			got = append(got, w.send(s))
		}
		done <- got
	}()
	select {
	case got := <-done:
		if want := "[APPLIED DUPLICATE OLDER CONFLICT APPLIED]"; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a word waits for a connection that another one of its own holds")
	}
}

func TestApplySnapshot(t *testing.T) {
	t.Run("a_new_record_is_inserted_with_mark_and_receipt", func(t *testing.T) {
		w := setup(t)
		s := snapshot(3, `{"a": 1.50}`)
		w.want(w.send(s), "APPLIED")
		w.want(w.row(), `3 f {"a": 1.50} f`)
		w.want(w.marked(), "1 3 f")
		w.want(w.receipt(), "APPLIED 1 3")
		w.want(w.text(`SELECT concat_ws(' ', form_version, seq_no, encode(content_hash, 'hex') = $1, last_event_id = $2, proof_id IS NULL) FROM hall.answer_projection`,
			s.Hash.String(), s.EventID), "2 3 t t t")
		w.want(w.text(`SELECT count(*)::text FROM lockstep.outcome`), "0")
	})
	t.Run("a_newer_revision_applies_and_leaves_the_hosts_columns", func(t *testing.T) {
		w := setup(t)
		w.send(snapshot(3, `{"a": 1}`))
		w.exec(`UPDATE hall.answer_projection SET biz_ext = '{"mine": 1.50}', apply_id = 'a', flow_id = 'f', link_state = 'l', created_at = '2026-01-01Z'`)
		const host = `SELECT concat_ws(' ', biz_ext, apply_id, flow_id, link_state, created_at AT TIME ZONE 'UTC') FROM hall.answer_projection`
		before := w.text(host)
		w.want(w.send(snapshot(5, "", tombstone)), "APPLIED")
		w.want(w.row(), "5 t NULL f")
		w.want(w.marked(), "1 5 f")
		w.want(w.text(host), before)
	})
	t.Run("the_same_word_twice_is_once", func(t *testing.T) {
		w := setup(t)
		s := snapshot(3, `{"a": 1}`)
		w.send(s)
		const version = `SELECT projection_version::text FROM hall.answer_projection`
		before := w.row() + w.text(version)
		w.want(w.send(s), "DUPLICATE")
		w.want(w.row()+w.text(version), before)
		w.want(w.receipt(), "DUPLICATE 1 3")
	})
	t.Run("an_equal_value_of_a_newer_epoch_raises_the_mark", func(t *testing.T) {
		w := setup(t)
		w.send(snapshot(3, `{"a": 1}`))
		w.want(w.send(snapshot(3, `{"a": 1}`, epoch(2))), "DUPLICATE")
		w.want(w.marked(), "2 3 f")
		w.want(w.send(snapshot(4, `{"a": 2}`)), "ROLLBACK_DETECTED")
	})
	t.Run("a_word_of_a_newer_epoch_overrules_what_the_older_one_stated_and_no_more", func(t *testing.T) {
		w := setup(t)
		w.send(snapshot(5, `{"a": 5}`))
		w.want(w.send(snapshot(4, `{"a": "restored"}`, epoch(2))), "APPLIED")
		w.want(w.row(), `4 f {"a": "restored"} f`)
		w.want(w.marked(), "2 4 f")
		w.exec(`UPDATE hall.answer_projection SET revision = 9, projection_version = projection_version + 1`)
		w.want(w.send(snapshot(3, `{"a": 3}`, epoch(3))), "OLDER")
		w.want(w.row(), `9 f {"a": "restored"} f`)
		w.want(w.marked(), "2 4 f")
	})
	t.Run("an_older_revision_is_ignored", func(t *testing.T) {
		w := setup(t)
		w.send(snapshot(5, `{"a": 5}`))
		w.want(w.send(snapshot(4, `{"a": 4}`)), "OLDER")
		w.want(w.row(), `5 f {"a": 5} f`)
		w.want(w.marked(), "1 5 f")
		w.want(w.receipt(), "OLDER 1 4")
	})
	t.Run("same_revision_and_another_hash_is_recorded_and_not_overwritten", func(t *testing.T) {
		w := setup(t)
		first, second := snapshot(3, `{"a": 1}`), snapshot(3, `{"a": 2}`)
		w.send(first)
		w.want(w.send(second), "CONFLICT")
		w.want(w.row(), `3 f {"a": 1} f`)
		w.want(w.receipt(), "CONFLICT 1 3")
		w.want(w.text(`SELECT conflict_detail FROM hall.answer_projection`),
			fmt.Sprintf(`{"revision":3,"local_hash":"%s","center_hash":"%s"}`, first.Hash, second.Hash))
		w.want(w.text(`SELECT count(*)::text FROM lockstep.outcome`), "0")
	})
	t.Run("a_word_below_what_was_stated_is_refused_and_changes_nothing", func(t *testing.T) {
		w := setup(t)
		w.send(snapshot(5, `{"a": 5}`))
		// The host lost the row, or got an old one back.
		w.exec(`DELETE FROM hall.answer_projection`)
		before := w.everything()
		w.want(w.send(snapshot(4, `{"a": 4}`)), "ROLLBACK_DETECTED")
		w.want(w.everything(), before)
		w.want(w.send(snapshot(4, `{"a": 4}`, epoch(2))), "APPLIED")
		w.want(w.marked(), "2 4 f")
	})
	t.Run("a_retirements_floor_binds", func(t *testing.T) {
		w := setup(t)
		w.send(snapshot(5, `{"a": 5}`))
		w.exec(`UPDATE hall.answer_projection SET retired_at = now(), projection_version = projection_version + 1`)
		w.exec(`UPDATE lockstep.high_water SET retired = true`)
		for _, revision := range []int64{4, 5} {
			w.want(w.send(snapshot(revision, `{"a": 5}`)), "RETIRED")
			w.want(w.row(), `5 f {"a": 5} t`)
			w.want(w.marked(), "1 5 t")
		}
		w.want(w.send(snapshot(6, `{"a": 6}`)), "APPLIED")
		w.want(w.row(), `6 f {"a": 6} f`)
		w.want(w.marked(), "1 6 f")
	})
	t.Run("a_row_the_host_refuses_is_refused_with_its_code", func(t *testing.T) {
		w := setup(t)
		w.want(w.send(snapshot(1, `{"a": "`+strings.Repeat("x", 70_000)+`"}`)), "QUARANTINED")
		w.want(w.row()+w.marked()+w.receipt(), "")
	})
	t.Run("a_conflict_that_the_host_refuses_to_keep_is_refused_with_its_code", func(t *testing.T) {
		for code, want := range map[string]string{"P0001": "QUARANTINED", "23514": "QUARANTINED", "55P03": "UNAVAILABLE"} {
			w := setup(t)
			w.send(snapshot(3, `{"a": 1}`))
			w.exec(`CREATE FUNCTION hall.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '` + code + `'; END$$`)
			w.exec(`CREATE TRIGGER refuse BEFORE UPDATE OF conflict_detail ON hall.answer_projection FOR EACH ROW EXECUTE FUNCTION hall.refuse()`)
			before := w.everything()
			w.want(w.send(snapshot(3, `{"a": 2}`)), want)
			w.want(w.everything(), before)
		}
	})
	t.Run("a_key_held_elsewhere_is_refused", func(t *testing.T) {
		for name, insert := range map[string]string{
			"in another collection": `7, $1::text::uuid, 'form-2', 1, sha256('x')`,
			"in another tenant":     `8, $1::text::uuid, 'form-1', 1, sha256('x')`,
		} {
			w := setup(t)
			w.exec(`INSERT INTO hall.answer_projection (tenant_id, answer_id, form_id, revision, content_hash) VALUES (`+insert+`)`, key)
			before := w.everything()
			if got := w.send(snapshot(5, `{"a": 5}`)); got != "SCOPE_MISMATCH" || w.everything() != before {
				t.Errorf("%s: %s, or something changed", name, got)
			}
		}
	})
}

// What is not the center's word for this consumer about this record is refused
// with its own code and leaves nothing behind.
func TestRefusals(t *testing.T) {
	w := setup(t)
	w.send(snapshot(3, `{"a": 1}`))
	good := snapshot(4, `{"a": 2}`)
	seal := func(s *evidence.Signer, change ...func(*protocol.Snapshot)) *consumerv1.DeliverSnapshotRequest {
		env, err := document.SealSnapshot(s, snapshot(4, `{"a": 2}`, change...))
		w.must(err)
		return &consumerv1.DeliverSnapshotRequest{TenantId: 7, CollectionId: "form-1", Key: key, Snapshot: document.EnvelopeToProto(env)}
	}
	change := func(f func(*protocol.Snapshot)) func() *consumerv1.DeliverSnapshotRequest {
		return func() *consumerv1.DeliverSnapshotRequest { return seal(w.signer, f) }
	}
	call := func(f func(*consumerv1.DeliverSnapshotRequest)) func() *consumerv1.DeliverSnapshotRequest {
		return func() *consumerv1.DeliverSnapshotRequest {
			req := seal(w.signer)
			f(req)
			return req
		}
	}
	forger := evidence.NewSigner("center-1", ed25519.NewKeyFromSeed([]byte(strings.Repeat("f", 32))))
	for name, c := range map[string]struct {
		request func() *consumerv1.DeliverSnapshotRequest
		want    fault.Reason
	}{
		"signed by another key":       {func() *consumerv1.DeliverSnapshotRequest { return seal(forger) }, fault.SignatureInvalid},
		"tampered with":               {call(func(r *consumerv1.DeliverSnapshotRequest) { r.Snapshot.Payload[3] ^= 1 }), fault.SignatureInvalid},
		"of another type":             {call(func(r *consumerv1.DeliverSnapshotRequest) { r.Snapshot.PayloadType = document.TypeAbsence }), fault.DocumentType},
		"not there at all":            {call(func(r *consumerv1.DeliverSnapshotRequest) { r.Snapshot = nil }), fault.DocumentType},
		"from another source":         {change(func(s *protocol.Snapshot) { s.At.Source = "other" }), fault.AudienceMismatch},
		"for another consumer":        {change(func(s *protocol.Snapshot) { s.At.Consumer = "other" }), fault.AudienceMismatch},
		"of a task":                   {change(func(s *protocol.Snapshot) { s.At.TaskID = key }), fault.TaskMismatch},
		"an answer to a question":     {change(func(s *protocol.Snapshot) { s.Nonce = []byte("a nonce of 24 fresh bytes") }), fault.NonceMismatch},
		"of another tenant":           {change(func(s *protocol.Snapshot) { s.At.TenantID = 8 }), fault.TenantMismatch},
		"called for another tenant":   {call(func(r *consumerv1.DeliverSnapshotRequest) { r.TenantId = 8 }), fault.TenantMismatch},
		"of another collection":       {change(func(s *protocol.Snapshot) { s.At.CollectionID = "form-2" }), fault.CollectionMismatch},
		"about another record":        {change(func(s *protocol.Snapshot) { s.Key = strings.Repeat("a", 32) }), fault.KeyMismatch},
		"about a record misspelled":   {change(func(s *protocol.Snapshot) { s.Key = strings.Repeat("A", 32) }), fault.KeyMismatch},
		"of revision 0":               {change(func(s *protocol.Snapshot) { s.Revision = 0 }), fault.RevisionMismatch},
		"without a grant":             {change(func(s *protocol.Snapshot) { s.At.GrantEpoch = 0 }), fault.InvalidArgument},
		"without an event":            {change(func(s *protocol.Snapshot) { s.EventID = "" }), fault.InvalidArgument},
		"with another hash":           {change(func(s *protocol.Snapshot) { s.Content = []byte(`{"a": 3}`) }), fault.HashMismatch},
		"without a canonical content": {change(func(s *protocol.Snapshot) { s.Content = []byte(`{"a": 1, "a": 2}`) }), fault.CanonRefused},
	} {
		t.Run(name, func(t *testing.T) {
			before := w.everything()
			if got := w.sendAs("center", c.request()); got != string(c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if w.everything() != before {
				t.Error("something was left behind")
			}
		})
	}
	t.Run("from another peer", func(t *testing.T) { w.want(w.sendAs("stranger", seal(w.signer)), "PERMISSION_DENIED") })
	t.Run("switched off", func(t *testing.T) {
		w.receiver.Enabled = false
		w.want(w.send(good), "EXECUTION_DISABLED")
		w.receiver.Enabled = true
	})
	t.Run("and the good one is not", func(t *testing.T) { w.want(w.send(good), "APPLIED") })
}

func TestRepairAndDeliveryOfTheSameRow(t *testing.T) {
	t.Run("delivery_does_not_wait_for_a_repair_and_then_sees_it", func(t *testing.T) {
		w := setup(t)
		w.send(snapshot(3, `{"a": 3}`))
		tx, err := w.pool.Begin(t.Context())
		w.must(err)
		if ok, err := w.repair(t.Context(), tx, snapshot(6, `{"a": 6}`)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		w.want(w.send(snapshot(5, `{"a": 5}`)), "UNAVAILABLE")
		w.must(tx.Commit(t.Context()))
		w.want(w.send(snapshot(5, `{"a": 5}`)), "OLDER")
		w.want(w.send(snapshot(7, `{"a": 7}`)), "APPLIED")
		w.want(w.text(`SELECT proof_id FROM hall.answer_projection`), "proof")
	})
	t.Run("whoever comes first, the highest revision stays", func(t *testing.T) {
		w := setup(t)
		const revisions = 60
		var both errgroup.Group
		both.SetLimit(8)
		for n := int64(1); n <= revisions; n++ {
			both.Go(func() error { return w.either(t.Context(), n) })
		}
		w.must(both.Wait())
		w.want(w.send(snapshot(revisions, fmt.Sprintf(`{"a": %d}`, revisions))), "DUPLICATE")
		w.want(w.row(), fmt.Sprintf(`%d f {"a": %[1]d} f`, revisions))
		w.want(w.marked(), fmt.Sprintf("1 %d f", revisions))
	})
}

// either repairs odd revisions and delivers even ones, until that is done or a
// higher one is there.
func (w *world) either(ctx context.Context, n int64) error {
	s := snapshot(n, fmt.Sprintf(`{"a": %d}`, n))
	for {
		if n%2 == 0 {
			switch got, err := w.receiver.ApplySnapshot(ctx, s); {
			case fault.ReasonOf(err) == fault.Unavailable:
				continue
			case err != nil && fault.ReasonOf(err) != fault.RollbackDetected:
				return err
			case got == store.Conflict:
				return errors.New("a conflict out of nothing")
			}
			return nil
		}
		var done bool
		err := pg.InTx(ctx, w.pool, func(tx pgx.Tx) (err error) {
			done, err = w.repair(ctx, tx, s)
			return err
		})
		if err != nil {
			return err
		}
		var higher bool
		if err := w.pool.QueryRow(ctx, `SELECT coalesce(bool_or(revision >= $1), false) FROM hall.answer_projection`, n).Scan(&higher); err != nil {
			return err
		}
		if done || higher {
			return nil
		}
	}
}
