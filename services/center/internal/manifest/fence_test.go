package manifest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/claim/claimtest"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/evidencetest"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/task"
)

func TestFenceMaterialise(t *testing.T) {
	w := evidencetest.New(t)
	policy := w.Materialiser.Policy
	adoption := func(id uuid.UUID) frozen.Adoption {
		return frozen.Adoption{
			Set:  frozen.Set{ID: id, TenantID: evidencetest.Tenant},
			Root: evidence.EmptyRoot(), PageRows: 4, WindowStart: time.Now(), Header: []byte("header"),
		}
	}
	// A set that the old worker has written: what it lacks is only the adoption.
	written := func(ctx context.Context) (uuid.UUID, error) {
		id := uuid.New()
		_, err := w.Store.Pool().Exec(ctx, `INSERT INTO lockstep.manifest (manifest_id, tenant_id, task_id) VALUES ($1, 7, $2)`, id, uuid.New())
		return id, err
	}
	claimtest.Run(t, claimtest.Site{
		Site: store.MaterialiseSite, Pool: w.Store.Pool(),
		NewRow: func(context.Context) (uuid.UUID, error) {
			end(w)
			return w.Task(), nil
		},
		Take: func(ctx context.Context, worker string) (claim.Claim, bool, error) {
			c, _, ok, err := w.Store.ClaimMaterialise(ctx, worker, policy.ClaimLease)
			return c, ok, err
		},
		Sweep: func(ctx context.Context) error {
			_, err := w.Store.SweepClaims(ctx, store.MaterialiseSite, task.MaterialiseTrouble, policy, 10)
			return err
		},
		Ready: "due_at = now()",
		Stale: map[string]func(context.Context, claim.Claim) error{
			"conclusion": func(ctx context.Context, c claim.Claim) error {
				id, err := written(ctx)
				return errors.Join(err, w.Frozen.Adopt(ctx, c, adoption(id)))
			},
			"effect": func(ctx context.Context, c claim.Claim) error {
				return w.Frozen.Begin(ctx, c, frozen.Set{ID: uuid.New(), TenantID: evidencetest.Tenant})
			},
			"refusal": func(ctx context.Context, c claim.Claim) error {
				return w.Store.RefuseMaterialise(ctx, c, fault.ResourceLimit, "too many")
			},
			"failure": func(ctx context.Context, c claim.Claim) error {
				return w.Store.RetryMaterialise(ctx, c, policy, fault.Unavailable)
			},
			"give-back": w.Frozen.GiveBack,
			"deferral": func(ctx context.Context, c claim.Claim) error {
				return w.Frozen.Defer(ctx, c, fault.LoadGuard, time.Hour)
			},
			"note":    func(ctx context.Context, c claim.Claim) error { return w.Frozen.Note(ctx, c, fault.RateLimited) },
			"renewal": func(ctx context.Context, c claim.Claim) error { return w.Frozen.Renew(ctx, c, time.Hour) },
		},
		Effects: func(ctx context.Context, id uuid.UUID) (n int, err error) {
			err = w.Store.Pool().QueryRow(ctx, `SELECT (SELECT count(*) FROM lockstep.manifest WHERE task_id = $1 OR adopted)
				+ (SELECT count(*) FROM lockstep.task_event WHERE task_id = $1) + (SELECT count(*) FROM lockstep.audit)`, id).Scan(&n)
			return n, err
		},
		Conclude: func(ctx context.Context, c claim.Claim) error {
			a := adoption(uuid.New())
			return errors.Join(w.Frozen.Begin(ctx, c, a.Set), w.Frozen.Adopt(ctx, c, a))
		},
	})
}
