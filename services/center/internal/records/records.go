// Package records gives the center's current, signed word about records: a
// snapshot, an absence proof, or that neither can be stated.
//
// It promises that every word is about the primary's rows as just read, that
// the grant was effective after that read, and that an absence is signed only
// with the manifest's own evidence beside it. It never signs what it could not
// check, and never says anything about a record outside the task's tenant and
// collection.
package records

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

const (
	// MaxKeys of one call.
	MaxKeys  = 500
	minNonce = 16
	maxNonce = 64
	// maxAnswerBytes of one answer; a receiver takes 12 MiB.
	maxAnswerBytes = 11 << 20
	// maxContentBytes leaves room for 500 signed envelopes around the content.
	// A content that has a canonical form is at most 8 MiB, so one always fits.
	maxContentBytes = 9 << 20
	// maxAtOnce calls are in work; each may hold its content three times over,
	// as rows, as signed payloads and as the message. The others wait.
	maxAtOnce = 4
)

// Request names a record and the revision the asker holds, 0 for none.
type Request struct {
	Key              string // as in the API
	ExpectedRevision int64
}

// Answer is the signed word about one record.
type Answer struct {
	Key  string
	Word evidence.Envelope
}

// Answerer answers for records. All fields are required.
type Answerer struct {
	Store   *store.Store
	Source  *source.Source
	Reader  *manifest.Reader
	Systems *Systems
	Signer  *evidence.Signer
	AppKey  string // the center's own
	Now     func() time.Time
	NewID   func() uuid.UUID

	once  sync.Once
	slots chan struct{}
}

// enter waits for a slot; leave gives it back.
func (a *Answerer) enter(ctx context.Context) (leave func(), err error) {
	a.once.Do(func() { a.slots = make(chan struct{}, maxAtOnce) })
	select {
	case a.slots <- struct{}{}:
		return func() { <-a.slots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Answer gives a word for each record, cut by bytes: the keys that did not fit
// are left over. tk was authorised at the start of the call.
//
//  1. Check the request.
//  2. Read the primary.
//  3. Find the places of missing keys in the frozen manifest.
//  4. Authorise again: the grant is looked at after the source.
//  5. Sign.
func (a *Answerer) Answer(ctx context.Context, tk *task.Task, nonce []byte, requests []Request) (answers []Answer, leftOver []string, err error) {
	keys, err := check(tk, nonce, requests)
	if err != nil {
		return nil, nil, err
	}
	if tk.ManifestState != task.ManifestComplete {
		return nil, nil, fault.New(fault.ManifestNotReady, "the manifest is %s", tk.ManifestState).With("task_state", string(tk.State))
	}
	leave, err := a.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	rng := source.Range{TenantID: tk.TenantID, CollectionID: tk.CollectionID}
	current, err := a.Source.Current(ctx, rng, keys, maxContentBytes)
	if err != nil {
		return nil, nil, err
	}
	missing := make([]string, 0, len(keys))
	for _, key := range keys {
		if current.Missing(key) {
			missing = append(missing, key)
		}
	}
	w := &words{a: a, tk: tk, nonce: nonce, current: current}
	if len(missing) > 0 {
		if w.places, err = a.Reader.Places(ctx, tk, missing); err != nil {
			return nil, nil, err
		}
		if w.suspected, err = a.Systems.Suspected(ctx, current.System); err != nil {
			return nil, nil, err
		}
	}
	if _, err := a.Store.Authorize(ctx, tk.Consumer, tk.ID); err != nil {
		return nil, nil, err
	}
	w.at = tk.Coordinates(a.AppKey) // the center's epoch too: Authorize has just found it unchanged
	return w.sign(ctx, requests, keys)
}

// check refuses a request whole: none of it could be answered as asked.
func check(tk *task.Task, nonce []byte, requests []Request) (keys []string, err error) {
	if len(nonce) < minNonce || len(nonce) > maxNonce {
		return nil, fault.New(fault.InvalidArgument, "the nonce is not usable").WithField("nonce", "%d to %d bytes", minNonce, maxNonce)
	}
	if len(requests) == 0 || len(requests) > MaxKeys {
		return nil, fault.New(fault.InvalidArgument, "name 1 to %d records", MaxKeys).WithField("records", "1 to %d", MaxKeys)
	}
	keys = make([]string, len(requests))
	seen := make(map[string]bool, len(requests))
	for i, r := range requests {
		field := fmt.Sprintf("records[%d]", i)
		key, err := protocol.ParseKey(r.Key)
		switch {
		case err != nil:
			return nil, fault.Wrap(err, fault.InvalidArgument, "a key is not usable").WithField(field+".key", "%v", err)
		case seen[key]:
			return nil, fault.New(fault.InvalidArgument, "a record is named twice").WithField(field+".key", "named before")
		case r.ExpectedRevision < 0:
			return nil, fault.New(fault.InvalidArgument, "a revision is not usable").WithField(field+".expected_revision", "0 or more")
		case tk.Scope == protocol.Record && r.Key != tk.Key:
			return nil, fault.New(fault.KeyMismatch, "the task is about another record").WithField(field+".key", "not the task's")
		}
		seen[key], keys[i] = true, key
	}
	return keys, nil
}
