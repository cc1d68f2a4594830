package auditlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"lockstep.dev/pkg/audit"
	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pg"
)

// Site is where the processes of a service take turns at sealing.
var Site = claim.Site{Name: "audit", Table: "lockstep.audit_sealer", ID: "sealer_id", Held: "true"}

const (
	// maxSealed rows are hashed in one transaction, which stays far below a second.
	maxSealed = 1000
	// sealLease is far above what one seal takes; a sealer that died costs as much.
	sealLease = 15 * time.Second
	// maxPause between two tries while the database is away.
	maxPause = 30 * time.Second
)

// Sealer chains the rows of the log.
type Sealer struct {
	Pool   *pgxpool.Pool
	AppKey string
	Signer *evidence.Signer
	Worker string
	Every  time.Duration
	Now    func() time.Time
	Log    *zap.Logger

	seen horizon
}

// horizon is an id, and a transaction that began after the id was given.
//
// A row's id is given inside a transaction that has its own id already. So
// whoever holds an id up to the horizon's is older than its transaction, and
// once all older transactions have ended, every id up to it is decided: its row
// can be read, or there will never be one.
type horizon struct{ id, xid int64 }

// Run seals until ctx ends.
func (s *Sealer) Run(ctx context.Context) error {
	timer := time.NewTimer(s.Every)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		more, err := s.SealOnce(ctx)
		wait := s.Every
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if failures == 0 {
				s.Log.Error("the audit log was not sealed; tried again until it works", zap.Error(err))
			}
			wait = min(s.Every<<min(failures, 10), maxPause)
			failures++
		default:
			if failures > 0 {
				s.Log.Info("the audit log is sealed again", zap.Int("failures", failures))
			}
			failures = 0
			if more {
				wait = 0
			}
		}
		timer.Reset(wait)
	}
}

// SealOnce seals at most one batch. more says that there is more to seal now.
// Where nothing is new it writes nothing.
func (s *Sealer) SealOnce(ctx context.Context) (more bool, err error) {
	sealed, newest, err := s.ends(ctx)
	if err != nil || newest <= sealed {
		return false, err
	}
	if s.seen.id <= sealed {
		if s.seen, err = s.observe(ctx); err != nil {
			return false, err
		}
	}
	decided, err := s.decided(ctx)
	if err != nil || !decided {
		return false, err
	}
	c, ok, err := Site.Take(ctx, s.Pool, claim.Taking{
		Worker: s.Worker, Lease: sealLease, Where: "claim_token IS NULL OR lease_until < now()", Order: "sealer_id",
	})
	if err != nil || !ok {
		return false, err
	}
	more, err = s.seal(ctx, c)
	// It is given back whatever happened; if that fails too, its lease ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sealLease)
	defer cancel()
	leaveErr := Site.Leave(ctx, s.Pool, c, "sealer_id = sealer_id")
	if err = errors.Join(err, leaveErr); errors.Is(err, claim.ErrFenced) {
		s.Log.Info("fenced: another process seals the audit log")
		return false, nil
	}
	return more, err
}

// ends gives the last sealed id and the newest one.
func (s *Sealer) ends(ctx context.Context) (sealed, newest int64, err error) {
	err = s.Pool.QueryRow(ctx, `SELECT coalesce((SELECT max(last_id) FROM lockstep.audit_seal), 0), coalesce((SELECT max(audit_id) FROM lockstep.audit), 0)`).
		Scan(&sealed, &newest)
	if err != nil {
		return 0, 0, fmt.Errorf("look for unsealed audit rows: %w", err)
	}
	return sealed, newest, nil
}

// observe reads the newest id first, and only then takes a transaction id.
func (s *Sealer) observe(ctx context.Context) (h horizon, err error) {
	err = pg.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT coalesce(max(audit_id), 0) FROM lockstep.audit`).Scan(&h.id); err != nil {
			return fmt.Errorf("read the newest audit row: %w", err)
		}
		if err := tx.QueryRow(ctx, `SELECT pg_current_xact_id()::text::bigint`).Scan(&h.xid); err != nil {
			return fmt.Errorf("take a transaction id: %w", err)
		}
		return nil
	})
	return h, err
}

// decided says whether every transaction older than the horizon's has ended.
func (s *Sealer) decided(ctx context.Context) (over bool, err error) {
	err = s.Pool.QueryRow(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > $1`, s.seen.xid).Scan(&over)
	if err != nil {
		return false, fmt.Errorf("look for running transactions: %w", err)
	}
	return over, nil
}

// seal writes the seal that follows the last one, up to the horizon.
func (s *Sealer) seal(ctx context.Context, c claim.Claim) (more bool, err error) {
	err = pg.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		more = false
		last, err := lastSeal(ctx, tx)
		if err != nil || last.LastID >= s.seen.id {
			return err
		}
		rows, err := between(ctx, tx, last.LastID, s.seen.id, maxSealed)
		if err != nil {
			return err
		}
		next := s.follow(last, rows)
		if more = next.LastID < s.seen.id; next.Rows == 0 {
			return nil // nothing but ids without a row; the next row's seal covers them
		}
		if err := s.write(ctx, tx, next); err != nil {
			return err
		}
		return Site.Check(ctx, tx, c)
	})
	if _, taken := pg.IsUniqueViolation(err); taken {
		return false, claim.ErrFenced // the same seal was written by somebody else
	}
	return more, err
}

// follow computes the seal over rows. A full batch ends at its last row, any
// other at the horizon.
func (s *Sealer) follow(last audit.Head, rows []audit.Row) audit.Head {
	next := audit.Head{
		AppKey: s.AppKey, Seal: last.Seal + 1, FirstID: last.LastID + 1, LastID: s.seen.id, Previous: last.Hash,
		SealedAt: s.Now().Truncate(time.Microsecond).UTC(),
	}
	if len(rows) == maxSealed {
		next.LastID = rows[len(rows)-1].ID
	}
	if next.SealedAt.Before(last.SealedAt) { // a clock that was put back must not break the chain
		next.SealedAt = last.SealedAt
	}
	h := audit.NewHasher(next.Previous, next.FirstID, next.LastID)
	for _, r := range rows {
		h.Add(r)
	}
	next.Rows, next.Hash = h.Rows(), h.Sum()
	return next
}

func (s *Sealer) write(ctx context.Context, tx pgx.Tx, h audit.Head) error {
	env, err := audit.Sign(s.Signer, h)
	if err != nil {
		return err
	}
	head, err := document.MarshalEnvelope(env)
	if err != nil {
		return fmt.Errorf("serialise the head of audit seal %d: %w", h.Seal, err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO lockstep.audit_seal (seal_id, first_id, last_id, row_count, previous, hash, head, sealed_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, h.Seal, h.FirstID, h.LastID, h.Rows, h.Previous[:], h.Hash[:], head, h.SealedAt)
	if err != nil {
		return fmt.Errorf("write audit seal %d: %w", h.Seal, err)
	}
	return nil
}

func lastSeal(ctx context.Context, tx pgx.Tx) (h audit.Head, err error) {
	var hash []byte
	err = tx.QueryRow(ctx, `SELECT seal_id, last_id, hash, sealed_at FROM lockstep.audit_seal ORDER BY seal_id DESC LIMIT 1`).
		Scan(&h.Seal, &h.LastID, &hash, &h.SealedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return audit.Head{}, nil
	}
	if err != nil || len(hash) != len(h.Hash) {
		return h, errors.Join(errors.New("read the last audit seal"), err)
	}
	h.Hash = audit.Hash(hash)
	return h, nil
}

func between(ctx context.Context, tx pgx.Tx, after, upTo int64, limit int) ([]audit.Row, error) {
	rows, err := tx.Query(ctx, `SELECT audit_id, at, actor, action, object, decision, reason FROM lockstep.audit
		WHERE audit_id > $1 AND audit_id <= $2 ORDER BY audit_id LIMIT $3`, after, upTo, limit)
	if err != nil {
		return nil, fmt.Errorf("read audit rows: %w", err)
	}
	out, err := pgx.CollectRows(rows, rowToRow)
	if err != nil {
		return nil, fmt.Errorf("read audit rows: %w", err)
	}
	return out, nil
}
