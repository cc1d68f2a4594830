package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/work"
	"lockstep.dev/services/internal/tracing"
)

// Accepted is what became of an instruction.
type Accepted struct {
	New    bool
	Event  work.Event // meaningless where New
	Wanted int        // the newest accepted attempt
}

// Accept stores a verified instruction and the envelope it came in. It touches
// no data. For a known task the coordinates, the window and the manifest must
// be the stored ones.
func (s *Store) Accept(ctx context.Context, in *protocol.Instruction, envelope []byte) (Accepted, error) {
	id, err := protocol.ParseID(in.At.TaskID)
	if err != nil {
		return Accepted{}, fault.Wrap(err, fault.InvalidArgument, "the instruction's task id is malformed")
	}
	manifest, err := protocol.ParseID(in.ManifestID)
	if err != nil {
		return Accepted{}, fault.Wrap(err, fault.InvalidArgument, "the instruction's manifest id is malformed")
	}
	var out Accepted
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		out = Accepted{}
		inserted, err := insertWork(ctx, tx, id, manifest, in, envelope)
		if err != nil {
			return err
		}
		if inserted {
			out = Accepted{New: true, Wanted: in.Attempt}
		} else if out, err = acceptKnown(ctx, tx, id, in, envelope); err != nil {
			return err
		}
		failpoint.Hit(failpoint.ConsumerAcceptBeforeCommit)
		return nil
	})
	if err != nil {
		return Accepted{}, fmt.Errorf("accept instruction of task %s: %w", in.At.TaskID, err)
	}
	failpoint.Hit(failpoint.ConsumerAcceptAfterCommit)
	return out, nil
}

func insertWork(ctx context.Context, tx pgx.Tx, id, manifest uuid.UUID, in *protocol.Instruction, envelope []byte) (bool, error) {
	tag, err := tx.Exec(ctx, `INSERT INTO lockstep.work
		(task_id, source, tenant_id, collection_id, scope, record_key, mode, state, attempt, wanted_attempt, grant_epoch, center_epoch,
		 window_start, manifest_id, manifest_root, row_count, breaker_override, instruction, trace_context)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
		ON CONFLICT (task_id) DO NOTHING`,
		id, in.At.Source, in.At.TenantID, in.At.CollectionID, in.Scope, in.Key, in.Mode, work.Queued, in.Attempt, in.At.GrantEpoch,
		in.At.CenterEpoch, in.WindowStart, manifest, in.ManifestRoot[:], in.RowCount, in.BreakerOverride, envelope, tracing.Parent(ctx))
	if err != nil {
		return false, fmt.Errorf("store it: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

func acceptKnown(ctx context.Context, tx pgx.Tx, id uuid.UUID, in *protocol.Instruction, envelope []byte) (Accepted, error) {
	w, err := readWork(ctx, tx, id, "FOR UPDATE")
	if err != nil {
		return Accepted{}, err
	}
	if err := sameTask(w, in); err != nil {
		return Accepted{}, err
	}
	var held bool
	if err := tx.QueryRow(ctx, `SELECT claim_token IS NOT NULL AND lease_until > now() FROM lockstep.work WHERE task_id = $1`, id).Scan(&held); err != nil {
		return Accepted{}, fmt.Errorf("read its lease: %w", err)
	}
	after, event, err := w.Row().Accept(in.Attempt, held)
	if err != nil {
		return Accepted{}, err
	}
	out := Accepted{Event: event, Wanted: after.Wanted}
	switch event {
	case work.AcceptedHeld:
		_, err = tx.Exec(ctx, `UPDATE lockstep.work SET wanted_attempt = $2, retry_count = $3, tries = $4, instruction = $5, trace_context = $6, updated_at = now()
			WHERE task_id = $1`, id, after.Wanted, after.Retries, after.Tries, envelope, tracing.Parent(ctx))
	case work.AcceptedNewer:
		if w.PurgedAt != nil {
			if err := startOver(ctx, tx, w); err != nil {
				return Accepted{}, err
			}
		}
		// Due now, from its checkpoint; an operator's pause stays.
		_, err = tx.Exec(ctx, `UPDATE lockstep.work SET state = $2, wanted_attempt = $3, retry_count = $4, tries = $5, instruction = $6,
			code = CASE state WHEN 'REPORTING' THEN code ELSE '' END, deferred_code = CASE state WHEN 'REPORTING' THEN deferred_code ELSE '' END, due_at = now(), waiting_reported_at = NULL, ended_at = NULL, updated_at = now(),
			claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL, trace_context = $7
			WHERE task_id = $1`, id, after.State, after.Wanted, after.Retries, after.Tries, envelope, tracing.Parent(ctx))
	default: // nothing changes
	}
	if err != nil {
		return Accepted{}, fmt.Errorf("store the newer attempt: %w", err)
	}
	return out, nil
}

// startOver forgets a checkpoint whose ledger was purged, and what the purge had
// not reached yet: a report counts the ledger, so the scan has to find everything
// again, and nothing may be there before.
func startOver(ctx context.Context, tx pgx.Tx, w *Work) error {
	if _, err := tx.Exec(ctx, `DELETE FROM lockstep.outcome WHERE tenant_id = $1 AND task_id = $2`, w.TenantID, w.TaskID); err != nil {
		return fmt.Errorf("finish the purge of a task: %w", err)
	}
	_, err := tx.Exec(ctx, `UPDATE lockstep.work SET next_page = 0, cursor_key = NULL, center_scanned = 0, local_scanned = 0,
		center_complete = false, local_complete = false, retire_code = '', purged_at = NULL WHERE task_id = $1`, w.TaskID)
	if err != nil {
		return fmt.Errorf("start a purged task over: %w", err)
	}
	return nil
}

// sameTask refuses an instruction that tells another story about a known task.
func sameTask(w *Work, in *protocol.Instruction) error {
	if code := document.Mismatch(in.At, w.Coordinates(in.At.Consumer)); code != "" {
		return fault.New(fault.Reason(code), "task %s is stored with other coordinates", w.ID())
	}
	switch {
	case in.At.CenterEpoch != w.CenterEpoch:
		return fault.New(fault.GrantEpochMismatch, "task %s is stored with center epoch %d", w.ID(), w.CenterEpoch)
	case in.Scope != w.Scope, in.Mode != w.Mode, !in.WindowStart.Equal(w.WindowStart):
		return fault.New(fault.TaskMismatch, "task %s is stored with another scope, mode or window", w.ID())
	case in.Key != w.RecordKey:
		return fault.New(fault.KeyMismatch, "task %s is stored for another record", w.ID())
	case in.ManifestID != protocol.FormatID(w.ManifestID), string(in.ManifestRoot[:]) != string(w.ManifestRoot),
		in.RowCount != w.RowCount, in.BreakerOverride != w.BreakerOverride:
		return fault.New(fault.ManifestMismatch, "task %s is stored with another manifest", w.ID())
	}
	return nil
}
