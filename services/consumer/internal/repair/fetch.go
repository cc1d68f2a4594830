package repair

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/center"
	"lockstep.dev/services/consumer/internal/store"
)

// maxProofID bounds a reference that ends up in the host's table.
const maxProofID = 128

// word is a verified answer about one key: exactly one of snapshot, absence and
// undecidable is set.
type word struct {
	snapshot    *protocol.Snapshot
	absence     *protocol.Absence
	undecidable fault.Reason
	// rollback: the word is older than one that was seen before.
	rollback bool
	// mark is what was stated of the record before it was asked for, nil for nothing.
	mark     *store.Mark
	asked    time.Time
	envelope []byte
}

func (w *word) centerEpoch() int64 {
	switch {
	case w.snapshot != nil:
		return w.snapshot.At.CenterEpoch
	case w.absence != nil:
		return w.absence.At.CenterEpoch
	default:
		return 0
	}
}

// overrules says whether the word stands above a row that is ahead of it: the
// center stated so much of the record under an older center epoch.
func (w *word) overrules(local *evidence.Row) bool {
	return w.mark != nil && w.centerEpoch() > w.mark.CenterEpoch && local.Revision <= w.mark.Revision
}

// answerBytes is what an answer should come to: one is held while it takes
// effect and one is ahead, each of them several times over. maxRecords of the
// protocol bounds it where the records suddenly are larger.
const answerBytes = 2 << 20

// firstAsk is how many records are asked for while nothing is known of their size.
// Each answer doubles that, or adds stepAsk once a call of the task failed.
const (
	firstAsk = 64
	stepAsk  = 16
)

// slowed is how many records a task may ask for after a call of it failed.
type slowed struct {
	task uuid.UUID
	most int64
}

func (r *Repairer) slowedOf(t *Task) *slowed {
	if s := r.slowed.Load(); s != nil && s.task == t.Work.TaskID {
		return s
	}
	return nil
}

// room is how many records an answer should have.
func (r *Repairer) room(t *Task) int {
	most := t.most.Load()
	if most == 0 {
		most = firstAsk
		if s := r.slowedOf(t); s != nil {
			most = s.most
		}
	}
	return int(max(1, min(most, answerBytes/max(t.recordBytes.Load(), 1))))
}

// failed halves what is asked for at once, also where the task is tried again.
func (r *Repairer) failed(t *Task, asked int) {
	most := int64(max(1, asked/2))
	t.most.Store(most)
	r.slowed.Store(&slowed{t.Work.TaskID, most})
}

// answered learns from an answer to a call about asked records. Where they are
// smaller than those before, that is believed by halves; absences say nothing
// of how large a record is.
func (r *Repairer) answered(t *Task, asked int, words []*word) {
	bytes, inSnapshots, snapshots := 0, 0, 0
	for _, w := range words {
		bytes += len(w.envelope)
		if w.snapshot != nil {
			inSnapshots, snapshots = inSnapshots+len(w.envelope), snapshots+1
		}
	}
	known := t.recordBytes.Load()
	seen := int64(max(bytes/max(len(words), 1), inSnapshots/max(snapshots, 1)))
	switch {
	case seen >= known:
		t.recordBytes.Store(seen)
	case snapshots > 0:
		t.recordBytes.Store((known + seen) / 2)
	}
	more := asked
	if r.slowedOf(t) != nil {
		more = stepAsk
	}
	t.most.Store(min(MaxBatch, max(int64(asked+more), t.most.Load())))
}

// fetch asks the center about every row, until each is answered once.
func (r *Repairer) fetch(ctx context.Context, t *Task, rows []*row) (map[string]*word, error) {
	words := make(map[string]*word, len(rows))
	for len(rows) > 0 {
		var err error
		if rows, err = r.askSome(ctx, t, rows, nil, words); err != nil {
			return nil, err
		}
	}
	return words, nil
}

// askSome asks about the first rows, in one call, adds the words and returns
// the rows that are still without one. marks are those of the rows, nil where
// they have to be read.
func (r *Repairer) askSome(ctx context.Context, t *Task, rows []*row, marks map[string]store.Mark, words map[string]*word) (rest []*row, err error) {
	some, later := rows, []*row(nil)
	if n := r.room(t); n < len(rows) {
		some, later = rows[:n], rows[n:]
	}
	// Read before asking: whatever the center signs from here on must not be
	// older than what it had stated by now.
	if marks == nil {
		if marks, err = r.Store.HighWater(ctx, t.Work, keysOf(some)); err != nil {
			return nil, err
		}
	}
	asks := make(map[string]center.Ask, len(some))
	for _, d := range some {
		ask := center.Ask{Key: d.key}
		if d.local != nil {
			ask.Expected = d.local.Revision
		}
		asks[d.key] = ask
	}
	if err := r.fetchSome(ctx, t, asks, words); err != nil {
		return nil, err
	}
	answered := make([]*word, 0, len(some))
	for _, d := range some {
		w := words[d.key]
		if w == nil {
			rest = append(rest, d)
			continue
		}
		answered = append(answered, w)
		if mark, ok := marks[d.key]; ok {
			w.rollback = w.rollback || older(w, mark)
			w.mark = &mark
		}
	}
	r.answered(t, len(some), answered)
	return append(rest, later...), nil
}

// older says whether a word contradicts the order of what was stated before.
// A record that was retired may come back at any revision.
func older(w *word, mark store.Mark) bool {
	if w.undecidable != "" {
		return false
	}
	if epoch := w.centerEpoch(); epoch != mark.CenterEpoch {
		return epoch < mark.CenterEpoch
	}
	return w.snapshot != nil && !mark.Retired && w.snapshot.Revision < mark.Revision
}

// fetchSome makes one call and moves the keys it answered from asks to words.
func (r *Repairer) fetchSome(ctx context.Context, t *Task, asks map[string]center.Ask, words map[string]*word) error {
	nonce, err := r.NewNonce()
	if err != nil {
		return fmt.Errorf("make a nonce: %w", err)
	}
	list := make([]center.Ask, 0, len(asks))
	for _, a := range asks {
		list = append(list, a)
	}
	t.Alive()
	asked := r.Now()
	answers, leftOver, err := r.Center.Records(ctx, t.Work.ID(), nonce, list)
	switch code := fault.ReasonOf(err); {
	case err == nil:
	case code == fault.GrantRevoked, code == fault.EpochMoved:
		return &DeferredError{Code: code}
	default:
		if code != fault.RateLimited && ctx.Err() == nil {
			r.failed(t, len(list))
		}
		return err
	}
	t.Fetched.Add(int64(len(answers)))
	for _, key := range leftOver {
		raw, err := protocol.ParseKey(key)
		if _, pending := asks[raw]; err != nil || !pending {
			return &RefusedError{Code: fault.KeyMismatch, Key: raw, Why: "left over, but never asked for"}
		}
	}
	if len(answers) == 0 {
		return &RefusedError{Code: fault.Unavailable, Why: "no key was answered"}
	}
	keys, err := pending(answers, asks)
	if err != nil {
		return err
	}
	verified, err := r.verifyAll(t, answers, keys, asks, nonce, asked)
	if err != nil {
		return err
	}
	for i, key := range keys {
		words[key] = verified[i]
		delete(asks, key)
	}
	return nil
}

// pending gives the raw key of each answer: one that was asked for, once.
func pending(answers []center.Answer, asks map[string]center.Ask) ([]string, error) {
	keys := make([]string, len(answers))
	seen := make(map[string]bool, len(answers))
	for i, a := range answers {
		raw, err := protocol.ParseKey(a.Key)
		if err != nil {
			return nil, &RefusedError{Code: fault.KeyMismatch, Why: "the answer names no key"}
		}
		if _, ok := asks[raw]; !ok || seen[raw] {
			return nil, &RefusedError{Code: fault.KeyMismatch, Key: raw, Why: "not asked for, or answered twice"}
		}
		seen[raw] = true
		keys[i] = raw
	}
	return keys, nil
}

// verifyAll verifies the answers in parallel; signatures are most of the work.
func (r *Repairer) verifyAll(t *Task, answers []center.Answer, keys []string, asks map[string]center.Ask, nonce []byte, asked time.Time) ([]*word, error) {
	v := verifier{
		at: t.Work.Coordinates(r.Self), work: t.Work, keys: r.SourceKeys(), nonce: nonce,
	}
	out := make([]*word, len(answers))
	errs := make([]error, len(answers))
	workers := min(runtime.GOMAXPROCS(0), len(answers))
	var wg sync.WaitGroup
	for n := range workers {
		wg.Go(func() {
			var hasher canon.Hasher
			for i := n; i < len(answers); i += workers {
				if out[i], errs[i] = v.verify(answers[i].Word, asks[keys[i]], &hasher); errs[i] == nil {
					out[i].asked = asked
				}
			}
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

// verifier knows what every answer of a call must state.
type verifier struct {
	at    protocol.Coordinates
	work  *store.Work
	keys  []evidence.Key
	nonce []byte
}

// verify accepts one answer. A valid signature alone says nothing: the word must
// be about this task, this key and this very call.
func (v *verifier) verify(env evidence.Envelope, ask center.Ask, hasher *canon.Hasher) (*word, error) {
	refuse := func(code fault.Reason, why string) (*word, error) {
		return nil, &RefusedError{Code: code, Key: ask.Key, Why: why}
	}
	stored, err := document.MarshalEnvelope(env)
	if err != nil {
		return refuse(fault.InvalidArgument, err.Error())
	}
	w := &word{envelope: stored}
	var at protocol.Coordinates
	var key string
	var nonce []byte
	switch env.PayloadType {
	case document.TypeSnapshot:
		if w.snapshot, err = document.OpenSnapshot(env, v.keys); err == nil {
			at, key, nonce = w.snapshot.At, w.snapshot.Key, w.snapshot.Nonce
		}
	case document.TypeAbsence:
		if w.absence, err = document.OpenAbsence(env, v.keys); err == nil {
			at, key, nonce = w.absence.At, w.absence.Key, w.absence.Nonce
		}
	case document.TypeUndecidable:
		var d *protocol.Undecidable
		if d, err = document.OpenUndecidable(env, v.keys); err == nil {
			at, key, nonce, w.undecidable = d.At, d.Key, d.Nonce, fault.Reason(d.Code)
		}
	default:
		return refuse(fault.DocumentType, "it is neither a snapshot, nor an absence proof, nor undecidable")
	}
	if err != nil {
		return refuse(center.Refusal(err), err.Error())
	}
	switch code := fault.Reason(document.Mismatch(at, v.at)); {
	case code == fault.GrantEpochMismatch && at.GrantEpoch > v.at.GrantEpoch:
		return nil, &DeferredError{Code: fault.EpochMoved}
	case code != "":
		return refuse(code, "it states other coordinates than the task's")
	case key != protocol.FormatKey(ask.Key):
		return refuse(fault.KeyMismatch, "it is about another key")
	case document.NonceMismatch(nonce, v.nonce) != "":
		return refuse(fault.NonceMismatch, "it answers another call")
	}
	w.rollback = w.undecidable == "" && at.CenterEpoch < v.at.CenterEpoch
	if code, why := v.statement(w, ask, hasher); code != "" {
		return refuse(code, why)
	}
	return w, nil
}

// statement checks what the word itself says.
func (v *verifier) statement(w *word, ask center.Ask, hasher *canon.Hasher) (fault.Reason, string) {
	switch {
	case w.snapshot != nil:
		if w.snapshot.Revision < 1 {
			return fault.RevisionMismatch, "a snapshot's revision is at least 1"
		}
		sum, err := hasher.Sum(w.snapshot.Content)
		if err != nil {
			return fault.CanonRefused, err.Error()
		}
		if sum != w.snapshot.Hash {
			return fault.HashMismatch, "the content does not give the stated hash"
		}
	case w.absence != nil:
		a := w.absence
		root := evidence.Node(v.work.ManifestRoot)
		switch {
		case a.ExpectedRevision != ask.Expected:
			return fault.RevisionMismatch, "it echoes another revision"
		case a.ManifestID != protocol.FormatID(v.work.ManifestID), a.ManifestRoot != root:
			return fault.ManifestMismatch, "it is about another manifest"
		case a.ProofID == "", len(a.ProofID) > maxProofID:
			return fault.InvalidArgument, "its proof id is empty or too long"
		}
		if err := a.Evidence.Verify(ask.Key, uint64(v.work.RowCount), root); err != nil { //nolint:gosec // the header's count is not negative
			return fault.PageNotProven, err.Error()
		}
	default:
		if !slices.Contains(protocol.UndecidableCodes(), string(w.undecidable)) {
			return fault.InvalidArgument, "it gives no known reason"
		}
	}
	return "", ""
}
