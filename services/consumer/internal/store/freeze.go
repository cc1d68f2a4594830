package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/work"
)

// Final is a report ready to be sent: signed once, stored, served as it is.
type Final struct {
	State    protocol.State
	Code     string
	Envelope []byte
}

// Freeze counts the ledger, has the report built and signed, and stores it, in
// one transaction. Build sees the row with its newest attempt adopted and at
// most items open differences; it must only compute.
func (s *Store) Freeze(ctx context.Context, c claim.Claim, p Progress, items int,
	build func(w *Work, counts []protocol.ClassCount, open []Entry) (Final, error),
) (*Work, error) {
	var frozen *Work
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		w, err := readWork(ctx, tx, c.ID, "FOR UPDATE")
		if err != nil {
			return err
		}
		after, err := w.Row().On(work.Frozen, s.set.MaxRetries)
		if err != nil {
			return fmt.Errorf("%w: %w", Site.Fenced(), err)
		}
		w.Advance(p)
		w.State, w.Attempt, w.RetryCount, w.Tries = after.State, after.Attempt, after.Retries, after.Tries
		tally, err := counts(ctx, tx, w.TenantID, w.TaskID)
		if err != nil {
			return err
		}
		open, err := openEntries(ctx, tx, w, items)
		if err != nil {
			return err
		}
		final, err := build(w, tally, open)
		if err != nil {
			return err
		}
		w.Report, w.ReportState, w.ReportAttempt, w.Code = final.Envelope, &final.State, &w.Attempt, final.Code
		frozen = w
		failpoint.Hit(failpoint.ConsumerFreezeBeforeCommit)
		return Site.Write(ctx, tx, c, `state = $3, attempt = $4, retry_count = $5, tries = $6, code = $7, updated_at = now(),
			next_page = $8, cursor_key = $9, center_scanned = $10, local_scanned = $11, center_complete = $12, local_complete = $13,
			fetched = $14, wire_bytes = $15, retire_code = $16, deferred_code = $17, report = $18, report_state = $19, report_attempt = $4`,
			after.State, after.Attempt, after.Retries, after.Tries, final.Code,
			p.NextPage, p.CursorKey, p.CenterScanned, p.LocalScanned, p.CenterComplete, p.LocalComplete,
			p.Fetched, p.WireBytes, p.RetireCode, p.DeferredCode, final.Envelope, final.State)
	})
	if err != nil {
		return nil, fmt.Errorf("freeze the report of %s: %w", c, err)
	}
	failpoint.Hit(failpoint.ConsumerFreezeAfterCommit)
	return frozen, nil
}

// Advance sets the figures of a checkpoint.
func (w *Work) Advance(p Progress) {
	w.NextPage, w.CursorKey = p.NextPage, p.CursorKey
	w.CenterScanned, w.LocalScanned = p.CenterScanned, p.LocalScanned
	w.CenterComplete, w.LocalComplete = p.CenterComplete, p.LocalComplete
	w.Fetched, w.WireBytes, w.RetireCode, w.DeferredCode = p.Fetched, p.WireBytes, p.RetireCode, p.DeferredCode
}

// openEntries reads the first differences that are still open, in key order.
func openEntries(ctx context.Context, tx pgx.Tx, w *Work, limit int) ([]Entry, error) {
	rows, err := tx.Query(ctx, `SELECT record_key, class, outcome, code, center_revision, center_hash, center_deleted,
			local_revision, local_hash, local_deleted
		FROM lockstep.outcome WHERE tenant_id = $1 AND task_id = $2 AND outcome NOT IN ('REPAIRED', 'SETTLED', 'RETIRED')
		ORDER BY record_key LIMIT $3`, w.TenantID, w.TaskID, limit)
	if err != nil {
		return nil, fmt.Errorf("read open differences: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Entry, error) {
		var e Entry
		var key, centerHash, localHash []byte
		var centerRevision, localRevision *int64
		var centerDeleted, localDeleted *bool
		err := row.Scan(&key, &e.Class, &e.Outcome, &e.Code, &centerRevision, &centerHash, &centerDeleted, &localRevision, &localHash, &localDeleted)
		e.Key = string(key)
		e.Center = rowOf(key, centerRevision, centerHash, centerDeleted)
		e.Local = rowOf(key, localRevision, localHash, localDeleted)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("read open differences: %w", err)
	}
	return out, nil
}
