package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/failpoint"
	"lockstep.dev/pkg/protocol"
)

// Run is what one scan of a business day's scheduled run did.
type Run struct {
	Created int
	// Skipped scopes had an open task; known when the run is finished.
	Skipped  int
	Finished bool
	// Already: the day's run was finished before this scan.
	Already bool
}

// ScheduleRun makes at most limit tasks of a business day's run, for the
// scopes that ended least recently, together with its run row. Two centers
// that come at once wait for each other on that row; a unique key holds one
// task a (day, scope) against everything else.
func (s *Store) ScheduleRun(ctx context.Context, day string, limit int, newID func() uuid.UUID) (run Run, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		run = Run{}
		if err := tx.openRun(ctx, day, &run); err != nil || run.Already {
			return err
		}
		grants, err := tx.dueScopes(ctx, day, limit)
		if err != nil {
			return err
		}
		for _, g := range grants {
			_, ok, err := tx.InsertTask(ctx, NewTask{
				ID: newID(), Scope: g.Scope, What: protocol.Collection, Mode: protocol.Repair,
				GrantEpoch: g.Epoch, CreatedBy: "schedule", BusinessDay: day,
			})
			if err != nil {
				return err
			}
			if ok { // an operator may have made one in this very moment
				run.Created++
			}
		}
		run.Finished = len(grants) < limit
		err = tx.closeRun(ctx, day, &run)
		failpoint.Hit(failpoint.CenterScheduleBeforeCommit)
		return err
	})
	if err == nil && !run.Already {
		failpoint.Hit(failpoint.CenterScheduleAfterCommit)
	}
	return run, err
}

func (t *Tx) openRun(ctx context.Context, day string, run *Run) error {
	if _, err := t.tx.Exec(ctx, `INSERT INTO lockstep.schedule_run (business_day) VALUES ($1::text::date) ON CONFLICT DO NOTHING`, day); err != nil {
		return fmt.Errorf("open the run of %s: %w", day, err)
	}
	err := t.tx.QueryRow(ctx, `SELECT finished_at IS NOT NULL, skipped FROM lockstep.schedule_run WHERE business_day = $1::text::date FOR UPDATE`, day).
		Scan(&run.Already, &run.Skipped)
	if err != nil {
		return fmt.Errorf("lock the run of %s: %w", day, err)
	}
	return nil
}

// dueScopes are the effective subscriptions that have no task of the day and
// none open, least recently ended first. They stay as they are until the commit,
// and so do their tenants, which are locked in the order of a removal: a
// statement that waits for one row sees only the rows it locks as they are then.
func (t *Tx) dueScopes(ctx context.Context, day string, limit int) ([]Grant, error) {
	rows, err := t.tx.Query(ctx, `SELECT `+grantColumns+` FROM lockstep.consumer_grant g JOIN lockstep.consumer_tenant n USING (consumer, tenant_id)
		WHERE g.enabled AND g.read_allowed AND g.subscribe_allowed AND NOT EXISTS (SELECT 1 FROM lockstep.task
			WHERE consumer = g.consumer AND tenant_id = g.tenant_id AND collection_id = g.collection_id
			AND (business_day = $1::text::date OR scope = 'COLLECTION' AND `+openStates+`))
		ORDER BY (SELECT max(ended_at) FROM lockstep.task
			WHERE consumer = g.consumer AND tenant_id = g.tenant_id AND collection_id = g.collection_id AND scope = 'COLLECTION') NULLS FIRST,
			g.consumer, g.tenant_id, g.collection_id LIMIT $2 FOR KEY SHARE OF n FOR SHARE OF g`, day, limit)
	if err != nil {
		return nil, fmt.Errorf("list the scopes due on %s: %w", day, err)
	}
	grants, err := pgx.CollectRows(rows, rowToGrant)
	if err != nil {
		return nil, fmt.Errorf("list the scopes due on %s: %w", day, err)
	}
	return grants, nil
}

func (t *Tx) closeRun(ctx context.Context, day string, run *Run) error {
	err := t.tx.QueryRow(ctx, `UPDATE lockstep.schedule_run SET created = created + $2,
			finished_at = CASE WHEN $3 THEN now() END,
			skipped = CASE WHEN $3 THEN (SELECT count(*) FROM lockstep.consumer_grant g JOIN lockstep.consumer_tenant USING (consumer, tenant_id)
				WHERE g.enabled AND g.read_allowed AND g.subscribe_allowed AND NOT EXISTS (SELECT 1 FROM lockstep.task
					WHERE consumer = g.consumer AND tenant_id = g.tenant_id AND collection_id = g.collection_id AND business_day = $1::text::date)) ELSE 0 END
		WHERE business_day = $1::text::date RETURNING skipped`, day, run.Created, run.Finished).Scan(&run.Skipped)
	if err != nil {
		return fmt.Errorf("close the run of %s: %w", day, err)
	}
	if run.Created == 0 && !run.Finished {
		return nil
	}
	return t.Audit(ctx, Audit{
		Actor: "schedule", Action: "schedule.run", Object: "day/" + day, Decision: map[bool]string{true: "FINISHED", false: "GOES_ON"}[run.Finished],
		Reason: fmt.Sprintf("created=%d skipped=%d", run.Created, run.Skipped),
	})
}
