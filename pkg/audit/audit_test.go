package audit_test

import (
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep.dev/pkg/audit"
	"lockstep.dev/pkg/evidence"
)

var at = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// world is a log of six rows under three seals, which a test may damage.
type world struct {
	t      *testing.T
	signer *evidence.Signer
	key    evidence.Key
	rows   []audit.Row
	seals  []audit.Seal
}

func setup(t *testing.T) *world {
	private := ed25519.NewKeyFromSeed([]byte(strings.Repeat("k", 32)))
	public, _ := private.Public().(ed25519.PublicKey)
	w := &world{t: t, signer: evidence.NewSigner("records-1", private), key: evidence.Key{ID: "records-1", Public: public}}
	for _, id := range []int64{1, 2, 4, 5, 7, 8} { // 3 and 6 were rolled back
		w.rows = append(w.rows, audit.Row{ID: id, At: at.Add(time.Duration(id) * time.Second), Actor: "operator/ada", Action: "grant.set", Object: "grant/x", Decision: "SET"})
	}
	w.seal(1, 3)
	w.seal(4, 5)
	w.seal(6, 8)
	return w
}

// seal seals the rows of a range as a sealer would.
func (w *world) seal(first, last int64) {
	head := audit.Head{AppKey: "records", Seal: int64(len(w.seals) + 1), FirstID: first, LastID: last, SealedAt: at}
	if n := len(w.seals); n > 0 {
		head.Previous = w.seals[n-1].Hash
	}
	h := audit.NewHasher(head.Previous, first, last)
	for _, r := range w.rows {
		if r.ID >= first && r.ID <= last {
			h.Add(r)
		}
	}
	head.Rows, head.Hash = h.Rows(), h.Sum()
	env, err := audit.Sign(w.signer, head)
	if err != nil {
		w.t.Fatal(err)
	}
	w.seals = append(w.seals, audit.Seal{Head: head, Envelope: env})
}

// verify gives the number of the first broken seal, 0 for none, and why.
func (w *world) verify() (int64, string) {
	w.t.Helper()
	v := &audit.Verifier{AppKey: "records", Keys: func(time.Time) []evidence.Key { return []evidence.Key{w.key} }}
	for _, s := range w.seals {
		err := v.Next(s, func(first, last int64, add func(audit.Row) error) error {
			for _, r := range w.rows {
				if r.ID >= first && r.ID <= last {
					if err := add(r); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if broken := new(audit.BrokenError); errors.As(err, &broken) {
			return broken.Seal, broken.Why
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return 0, ""
}

func TestAWholeChainHolds(t *testing.T) {
	w := setup(t)
	if seal, why := w.verify(); seal != 0 {
		t.Errorf("seal %d is called broken: %s", seal, why)
	}
	// Computed by another program from the description: a change of the hash would leave every stored chain unverifiable.
	const want = "f99db0e0ce735686eb8d45255a3d91c4e662d1e3d6e3ce9615a65812ff32d1aa"
	if got := w.seals[2].Hash.String(); got != want {
		t.Errorf("the head is %s, want %s", got, want)
	}
}

func TestVerify(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(*world)
		seal   int64
		why    string
	}{
		{"a_changed_actor", func(w *world) { w.rows[2].Actor = "operator/eve" }, 2, "not those that were sealed"},
		{"a_changed_reason", func(w *world) { w.rows[5].Reason = "x" }, 3, "not those that were sealed"},
		{"a_moved_time", func(w *world) { w.rows[0].At = w.rows[0].At.Add(time.Microsecond) }, 1, "not those that were sealed"},
		{"a_text_moved_to_the_next_column", func(w *world) { w.rows[3].Decision, w.rows[3].Reason = "SE", "T" }, 2, "not those that were sealed"},
		{"a_removed_row", func(w *world) { w.rows = slices.Delete(w.rows, 1, 2) }, 1, "sealed 2 rows"},
		{"a_row_put_into_a_gap", func(w *world) { w.rows = slices.Insert(w.rows, 2, audit.Row{ID: 3, At: at}) }, 1, "sealed 2 rows"},
		{"two_rows_exchanged", func(w *world) { w.rows[2].Object, w.rows[3].Object = "a", "b" }, 2, "not those that were sealed"},
		{"a_removed_seal", func(w *world) { w.seals = slices.Delete(w.seals, 1, 2) }, 3, "seal 2 should follow seal 1"},
		{"the_first_seal_removed", func(w *world) { w.seals = w.seals[1:] }, 2, "seal 1 should follow seal 0"},
		{"a_seal_with_another_figure", func(w *world) { w.seals[1].Rows = 1 }, 2, "figures are not the signed ones"},
		{"a_seal_with_another_time", func(w *world) { w.seals[1].SealedAt = at.Add(time.Hour) }, 2, "time is not the signed one"},
		{"a_head_of_another_seal", func(w *world) { w.seals[1].Envelope = w.seals[2].Envelope }, 2, "figures are not the signed ones"},
		{"a_signature_that_is_none", func(w *world) { w.seals[1].Envelope.Signatures[0].Sig = make([]byte, 64) }, 2, "not signed by a key"},
		{"no_signature", func(w *world) { w.seals[0].Envelope.Signatures = nil }, 1, "not signed by a key"},
		{"bytes_that_are_no_head", func(w *world) { w.seals[0].Envelope.Payload = []byte("x") }, 1, "can't be read"},
		{
			"rows_rewritten_and_resealed_by_another_key",
			func(w *world) {
				w.rows[0].Actor, w.seals = "operator/eve", nil
				w.signer = evidence.NewSigner("records-1", ed25519.NewKeyFromSeed([]byte(strings.Repeat("e", 32))))
				w.seal(1, 3)
			}, 1, "not signed by a key",
		},
		{
			"resealed_from_the_middle_on",
			func(w *world) {
				w.rows[2].Actor = "operator/eve"
				third := w.seals[2]
				w.seals = w.seals[:1]
				w.seal(4, 5) // with the right key, which nobody but the service has
				w.seals = append(w.seals, third)
			}, 3, "hash of the seal before",
		},
		{
			"a_gap_between_seals",
			func(w *world) { w.seals = w.seals[:1]; w.seal(5, 8) }, 2, "seals before end at 3",
		},
		{
			"a_seal_of_another_service",
			func(w *world) {
				head := w.seals[0].Head
				head.AppKey = "hall"
				w.seals[0].Envelope, _ = audit.Sign(w.signer, head)
			}, 1, "is of hall, not of records",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := setup(t)
			c.damage(w)
			seal, why := w.verify()
			if seal != c.seal || !strings.Contains(why, c.why) {
				t.Errorf("broken: seal %d, %q; want seal %d, %q", seal, why, c.seal, c.why)
			}
		})
	}
}
