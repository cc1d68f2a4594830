// Package delivery sends records that changed to the consumers that may have them.
//
// It promises that a change the host committed is sent, however late it was
// committed and whatever process dies meanwhile; that what is sent is the
// record's value at that moment, signed for that one consumer after its grant
// was looked at; and that what could not be sent is on a list and not lost. It
// sends to registered targets only, at least once and in no order: the consumer
// decides what is newer. It never says that the two sets are equal.
//
//	outbox ──Reader──▶ queue ──claim──▶ sign ──▶ consumer ──▶ DONE, FAILED or DROPPED
//	                     ▲                 └──not reached──▶ back-off ──┐
//	                     └────────────────────────────────────────────┘
package delivery

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store"
)

// readBatch bounds one transaction of the queue, which stays well under a second.
const readBatch = 1000

// Reader turns rows of the host's outbox into queued deliveries.
type Reader struct {
	Store   *store.Store
	Source  *source.Source
	Metrics *Metrics
	// Wake is called after deliveries were queued.
	Wake func()
	Log  *zap.Logger
}

// ReadOnce reads one batch; worked is false at the outbox's end.
func (r *Reader) ReadOnce(ctx context.Context) (worked bool, err error) {
	outbox := r.Source.Outbox()
	at, err := r.Store.OutboxPosition(ctx, outbox)
	if err != nil {
		return false, err
	}
	changes, err := r.Source.Changes(ctx, source.Position{XID: at.XID, ID: at.ID}, readBatch)
	if err != nil {
		return false, err
	}
	if changes.System != at.System && at.System != "" {
		return r.startOver(ctx, outbox, at, changes.System)
	}
	if changes.Unusable > 0 {
		r.Log.Warn("rows of the outbox name no record and were passed over", zap.String("outbox", outbox), zap.Int("rows", changes.Unusable))
	}
	if len(changes.List) == 0 && changes.Unusable == 0 {
		return false, nil
	}
	changed := make([]store.Changed, len(changes.List))
	for i, c := range changes.List {
		changed[i] = store.Changed(c)
	}
	to := store.OutboxPosition{XID: changes.Next.XID, ID: changes.Next.ID, System: changes.System}
	queued, moved, err := r.Store.Advance(ctx, outbox, at, to, changed)
	if err != nil {
		return false, err
	}
	if moved {
		r.Metrics.read(len(changed))
	}
	if queued > 0 {
		r.Wake()
	}
	return changes.More || !moved, nil
}

// startOver: another database counts its transactions anew, so a position in the
// one before could skip some. What was sent before is a duplicate to the consumer.
func (r *Reader) startOver(ctx context.Context, outbox string, at store.OutboxPosition, system string) (bool, error) {
	r.Log.Warn("the source is another database than before: its outbox is read from the beginning", zap.String("outbox", outbox))
	start := store.OutboxStart
	start.System = system
	if _, _, err := r.Store.Advance(ctx, outbox, at, start, nil); err != nil {
		return false, fmt.Errorf("start over: %w", err)
	}
	return true, nil
}
