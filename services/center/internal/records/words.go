package records

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/task"
)

// words is everything that one call's answers are made of.
type words struct {
	a         *Answerer
	tk        *task.Task
	at        protocol.Coordinates
	nonce     []byte
	current   *source.Current
	places    map[string]manifest.Place
	suspected bool // a database was replaced: no absence is signed
}

// signChunk is how many records one goroutine signs before it asks for more: a
// signature takes about 30 µs, starting a goroutine one.
const signChunk = 16

// sign makes the words in the order asked, on every processor.
func (w *words) sign(ctx context.Context, requests []Request, keys []string) (answers []Answer, leftOver []string, err error) {
	made := make([]Answer, len(requests))
	group, _ := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < len(requests); from += signChunk {
		to := min(from+signChunk, len(requests))
		group.Go(func() error {
			var h canon.Hasher
			for i := from; i < to; i++ {
				if w.current.LeftOver[keys[i]] {
					continue
				}
				word, err := w.word(&h, requests[i], keys[i])
				if err != nil {
					return err
				}
				made[i] = Answer{Key: requests[i].Key, Word: word}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	answers, leftOver = cut(made, requests, maxAnswerBytes)
	return answers, leftOver, nil
}

// cut keeps, in the order asked, what fits into an answer, at least one word. One
// that does not is left over and keeps no other back.
func cut(made []Answer, requests []Request, most int) (answers []Answer, leftOver []string) {
	size := 0
	for i, m := range made {
		more := envelopeBytes(m.Word)
		if m.Key == "" || size+more > most && len(answers) > 0 {
			leftOver = append(leftOver, requests[i].Key)
			continue
		}
		size += more
		answers = append(answers, m)
	}
	return answers, leftOver
}

// envelopeBytes is what an answer adds to a message, generously.
func envelopeBytes(env evidence.Envelope) int {
	const around = 256 // key, type, signature and the framing of each
	return len(env.Payload) + around
}

// word decides what can be said of one record, and signs it.
func (w *words) word(h *canon.Hasher, r Request, key string) (evidence.Envelope, error) {
	row, place := w.current.Rows[key], w.places[key]
	switch {
	case w.current.Twice[key]:
		return w.undecidable(r, fault.OrderViolation)
	case row != nil:
		return w.snapshot(h, r, row)
	case w.current.Elsewhere[key]:
		return w.undecidable(r, fault.ScopeMismatch)
	case place.Present:
		return w.undecidable(r, fault.RowGone)
	case w.suspected:
		return w.undecidable(r, fault.RollbackSuspected)
	}
	return document.SealAbsence(w.a.Signer, &protocol.Absence{
		At: w.at, Key: r.Key, ExpectedRevision: r.ExpectedRevision, Nonce: w.nonce,
		ProofID: protocol.FormatID(w.a.NewID()), IssuedAt: w.a.Now(),
		ManifestID: protocol.FormatID(w.tk.ManifestID), ManifestRoot: w.tk.ManifestRoot, Evidence: place.Absence,
	})
}

// snapshot states the row as it is now, hashed now. A row from before
// revisions were kept can't be ordered against others, so it is no repair.
func (w *words) snapshot(h *canon.Hasher, r Request, row *source.Row) (evidence.Envelope, error) {
	if row.Revision < 1 {
		return w.undecidable(r, fault.RevisionZero)
	}
	hash, err := h.Sum(row.Content)
	if err != nil {
		return w.undecidable(r, fault.CanonRefused)
	}
	return document.SealSnapshot(w.a.Signer, &protocol.Snapshot{
		At: w.at, Key: r.Key, Revision: row.Revision, Hash: hash, Deleted: row.Deleted,
		SchemaVersion: row.SchemaVersion, Sequence: row.Sequence, Content: row.Content, Nonce: w.nonce,
		EventID: protocol.FormatID(w.a.NewID()), IssuedAt: w.a.Now(),
	})
}

func (w *words) undecidable(r Request, code fault.Reason) (evidence.Envelope, error) {
	if !slices.Contains(protocol.UndecidableCodes(), string(code)) {
		return evidence.Envelope{}, fmt.Errorf("no consumer knows %s as a reason to state nothing", code)
	}
	return document.SealUndecidable(w.a.Signer, &protocol.Undecidable{
		At: w.at, Key: r.Key, Nonce: w.nonce, Code: string(code), IssuedAt: w.a.Now(),
	})
}
