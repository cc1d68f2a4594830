package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/work"
)

// sweepLimit bounds one sweep; the next scan goes on.
const sweepLimit = 100

// Sweep makes expired claims claimable again. The first time a row is due at
// once, from then on later each time, so that a row that kills its workers
// does not hold up the others.
func (s *Store) Sweep(ctx context.Context) (int, error) {
	running, err := work.Row{State: work.Running}.On(work.LeaseExpired, 0)
	if err != nil {
		return 0, err
	}
	reporting, err := work.Row{State: work.Reporting}.On(work.LeaseExpired, 0)
	if err != nil {
		return 0, err
	}
	ids, err := Site.Sweep(ctx, s.pool, `state = CASE state WHEN 'RUNNING' THEN $2 ELSE $3 END, tries = tries + 1, updated_at = now(),
		due_at = CASE WHEN tries = 0 THEN now() ELSE now() + LEAST($5::interval, $4::interval * power(2, LEAST(tries, 30) - 1)) END`,
		sweepLimit, running.State, reporting.State, s.set.BackoffBase, s.set.BackoffCap)
	return len(ids), err
}

// Claim takes the next due row and adopts the newest accepted attempt.
// reportsOnly leaves alone what has still to be scanned.
func (s *Store) Claim(ctx context.Context, worker string, reportsOnly bool) (claim.Claim, *Work, error) {
	started, err := work.Row{State: work.Queued}.On(work.Claimed, 0)
	if err != nil {
		return claim.Claim{}, nil, err
	}
	c, ok, err := Site.Take(ctx, s.pool, claim.Taking{
		Worker: worker, Lease: s.set.Lease,
		Where: `claim_token IS NULL AND due_at <= now() AND (state = 'REPORTING' OR state = 'QUEUED' AND NOT paused AND NOT $5)`,
		Order: "due_at, task_id",
		Set: `state = CASE state WHEN 'QUEUED' THEN $4 ELSE state END, attempt = wanted_attempt, code = CASE state WHEN 'QUEUED' THEN '' ELSE code END,
			resumed = resumed + CASE WHEN state = 'QUEUED' AND started_at IS NOT NULL THEN 1 ELSE 0 END,
			verified = CASE WHEN state <> 'QUEUED' OR verified = $6 THEN verified WHEN next_page = 0 THEN $6 ELSE 'HASHES' END,
			started_at = COALESCE(started_at, now()), updated_at = now()`,
		Args: []any{started.State, reportsOnly, s.verified()},
	})
	if err != nil || !ok {
		return claim.Claim{}, nil, err
	}
	failpoint.Hit(failpoint.ConsumerClaimAfterCommit)
	w, err := s.Work(ctx, c.ID)
	return c, w, err
}

// verified is what a scan compares now. One whose pages were not all compared by
// content does not say so.
func (s *Store) verified() protocol.Verified {
	if s.set.Content {
		return protocol.Content
	}
	return protocol.Hashes
}

// Renew moves the lease, over the pool that is kept for it.
func (s *Store) Renew(ctx context.Context, c claim.Claim) error {
	return Site.Renew(ctx, s.leases, c, s.set.Lease)
}

// Progress is a checkpoint: what the finished prefix amounts to.
type Progress struct {
	NextPage       int
	CursorKey      []byte
	CenterScanned  int64
	LocalScanned   int64
	CenterComplete bool
	LocalComplete  bool
	Fetched        int64
	WireBytes      int64
	Resumed        int
	RetireCode     string
	DeferredCode   string
}

// Progress gives the checkpoint the row holds.
func (w *Work) Progress() Progress {
	return Progress{
		NextPage: w.NextPage, CursorKey: w.CursorKey, CenterScanned: w.CenterScanned, LocalScanned: w.LocalScanned,
		CenterComplete: w.CenterComplete, LocalComplete: w.LocalComplete, Fetched: w.Fetched, WireBytes: w.WireBytes,
		Resumed: w.Resumed, RetireCode: w.RetireCode, DeferredCode: w.DeferredCode,
	}
}

// Stepped is a row after a step.
type Stepped struct {
	work.Row
	Paused bool // an operator wants it to rest
}

// Step writes an event of a held row: the transition, the checkpoint and, when
// the row leaves the worker's hands, the end of the claim. code says why, for
// people. It gives the row as it is then: a newer attempt may have been adopted.
func (s *Store) Step(ctx context.Context, c claim.Claim, e work.Event, p Progress, code string) (Stepped, error) {
	var out Stepped
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		w, err := readWork(ctx, tx, c.ID, "FOR UPDATE")
		if err != nil {
			return err
		}
		after, err := w.Row().On(e, s.set.MaxRetries)
		if err != nil {
			// The row is not what its holder believes it to be: it has another owner.
			return fmt.Errorf("%w: %w", Site.Fenced(), err)
		}
		if err := s.write(ctx, tx, c, e, w, after, p, code); err != nil {
			return err
		}
		out = Stepped{after, w.Paused}
		switch {
		case after.State.Ended():
			failpoint.Hit(failpoint.ConsumerFinishBeforeCommit)
		case e == work.RoundDone:
			failpoint.Hit(failpoint.ConsumerCheckpointBeforeCommit)
		}
		return nil
	})
	if err != nil {
		return Stepped{}, fmt.Errorf("work %s: %s: %w", c, e, err)
	}
	switch {
	case out.State.Ended():
		failpoint.Hit(failpoint.ConsumerFinishAfterCommit)
	case e == work.RoundDone:
		failpoint.Hit(failpoint.ConsumerCheckpointAfterCommit)
	}
	return out, nil
}

func (s *Store) write(ctx context.Context, tx pgx.Tx, c claim.Claim, e work.Event, w *Work, after work.Row, p Progress, code string) error {
	set := `state = $3, attempt = $4, retry_count = $5, tries = $6, code = CASE WHEN $7 = '' AND NOT $9 THEN code ELSE $7 END, due_at = now() + $8::interval, updated_at = now(),
		ended_at = CASE WHEN $9 THEN now() END, next_page = $10, cursor_key = $11, center_scanned = $12, local_scanned = $13,
		center_complete = $14, local_complete = $15, fetched = $16, wire_bytes = $17, retire_code = $18, deferred_code = $19,
		waiting_reported_at = NULL`
	args := []any{
		after.State, after.Attempt, after.Retries, after.Tries, code, s.wait(e, w, code), after.State.Ended(),
		p.NextPage, p.CursorKey, p.CenterScanned, p.LocalScanned, p.CenterComplete, p.LocalComplete, p.Fetched, p.WireBytes,
		p.RetireCode, p.DeferredCode,
	}
	if keeps(e, after.State) {
		return Site.Write(ctx, tx, c, set, args...)
	}
	return Site.Leave(ctx, tx, c, set, args...)
}

// wait is how long the row rests after e. A center that has enough to do is not
// asked again at once, though no retry is spent.
func (s *Store) wait(e work.Event, w *Work, code string) time.Duration {
	if e == work.GivenBack && code == string(fault.RateLimited) {
		return s.set.BackoffBase
	}
	if e == work.RoundFailed || e == work.AckLost {
		return work.Backoff(s.set.BackoffBase, s.set.BackoffCap, w.RetryCount)
	}
	return 0
}

// keeps says whether the worker goes on with the row after e.
func keeps(e work.Event, s work.State) bool {
	switch e {
	case work.RoundDone, work.Stale, work.Frozen:
		return s == work.Running || s == work.Reporting
	default:
		return false
	}
}

// Untouched writes an event of a row that nobody holds and that is in state: what
// the center said about one that waits or is parked. changed is false where
// somebody was faster.
func (s *Store) Untouched(ctx context.Context, id uuid.UUID, state work.State, attempt int, e work.Event, code string) (changed bool, err error) {
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		w, err := readWork(ctx, tx, id, "FOR UPDATE")
		if err != nil {
			return err
		}
		// A newer attempt came meanwhile, or a worker holds it: the answer is about the past.
		if changed = w.State == state && w.WantedAttempt == attempt; !changed {
			return nil
		}
		// A waiting row reports under the newest instruction it has.
		row := w.Row()
		row.Attempt = row.Wanted
		after, err := row.On(e, s.set.MaxRetries)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE lockstep.work SET state = $2, attempt = $3, code = $4, updated_at = now(),
			ended_at = CASE WHEN $5 THEN now() END WHERE task_id = $1`, id, after.State, after.Attempt, code, after.State.Ended())
		return err
	})
	if err != nil {
		return false, fmt.Errorf("work of a waiting row: %w", err)
	}
	return changed, nil
}
