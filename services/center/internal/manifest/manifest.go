// Package manifest freezes the rows a task is about and serves what it froze.
//
// A Materialiser takes a task, reads one snapshot of the source and writes
// packed pages, their roots and a signed header; a Reader answers from them. The
// package promises that a manifest is complete or does not count, that its
// header's root is the root of exactly the rows in its pages, in key order, and
// that making or serving one takes memory by the parts in work, never by the
// rows.
//
//	            ┌─part─▶ hash ─▶ order ─▶ pages ─▶ COPY ─┐
//	snapshot ───┼─part─▶ …                               ├─▶ roots in order ─▶ signed header, adopted
//	            └─part─▶ …                               ┘
//
// Where a set is large and most of its table, the table is read as it lies
// instead, and a file takes the hashed rows to their parts.
package manifest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/task"
	"lockstep.dev/services/internal/load"
	"lockstep.dev/services/internal/tracing"
)

// Limits refuse a set before it costs anything.
type Limits struct {
	MaxRows  int64 // of one manifest
	MaxPages int64 // of PageSize rows
	PageSize int64 // rows in a page of the row-wise API
	PageRows int   // rows in a packed page, a power of two
}

// rows is the most rows that both limits allow, and the name of the tighter one.
func (l Limits) rows() (limit int64, name string) {
	if pages := l.MaxPages * l.PageSize; pages < l.MaxRows {
		return pages, "max_pages"
	}
	return l.MaxRows, "max_rows"
}

// Materialiser makes manifests. All fields are required but Rate, Guard, Tracer,
// Ready, PartRows and SpillDir.
type Materialiser struct {
	Store  *store.Store
	Frozen *frozen.Store
	Source *source.Source
	Signer *evidence.Signer
	Log    *zap.Logger

	AppKey string // the center's own
	Worker string // the name of this process in claims
	Limits Limits
	Policy task.Policy
	// StallLimit ends the renewals of a worker that shows no sign of life.
	StallLimit time.Duration
	Now        func() time.Time
	Tracer     tracing.Tracer
	// Readers of one manifest at once, each on a connection of the source's pool.
	Readers int
	// PartRows are read and put in order as one, defaultPartRows where 0.
	PartRows int
	// SpillDir is where the rows of large sets are kept until they are in order;
	// the system's temporary folder where empty.
	SpillDir string
	// Rate bounds what is read, Guard says when to read nothing.
	Rate  *load.Rate
	Guard *load.Guard
	// Ready, if set, is told that a manifest became complete.
	Ready func()

	// counted runs between the count and the read; tests change the source there.
	counted func()
	// mayPause is maxPause where it is 0; tests have less time.
	mayPause time.Duration
	// spillInMemory takes a folder in memory too; tests are not told where they run.
	spillInMemory bool
	// longRead says that a long read has the rate.
	longRead atomic.Bool
}

// concludeTimeout bounds the last write of a try whose context may be gone.
const concludeTimeout = 10 * time.Second

// MaterialiseOnce takes one task whose manifest is to be made and makes it.
// worked is false where there was none. An error is one of the store's: what
// goes wrong with a task's own rows is noted on the task.
func (m *Materialiser) MaterialiseOnce(ctx context.Context) (worked bool, err error) {
	if busy, err := m.busy(ctx); busy || err != nil {
		return false, err
	}
	c, tk, ok, err := m.Store.ClaimMaterialise(ctx, m.Worker, m.Policy.ClaimLease)
	if err != nil || !ok {
		return false, err
	}
	set := frozen.Set{ID: uuid.New(), TenantID: tk.TenantID}
	started := m.Now()
	ctx, ended := m.Tracer.Continue(ctx, tk.TraceContext, "materialise", tracing.Task(protocol.FormatID(tk.ID)))
	made, err := m.make(ctx, c, tk, set)
	ended(err)
	log := m.Log.With(zap.Stringer("task", c.ID), zap.Stringer("manifest", set.ID))
	if err == nil {
		log.Info("manifest complete", zap.Int64("rows", made.rows), zap.String("read_by", string(made.way)), zap.Duration("took", m.Now().Sub(started)))
		if m.Ready != nil {
			m.Ready()
		}
		return true, nil
	}
	return true, m.conclude(ctx, log, c, set, err)
}

// make does the work of one try under a kept claim.
func (m *Materialiser) make(ctx context.Context, c claim.Claim, tk *task.Task, set frozen.Set) (made, error) {
	ctx, keeper := claim.Keep(ctx, m.Policy.ClaimLease, m.StallLimit, func(ctx context.Context) error {
		return m.Frozen.Renew(ctx, c, m.Policy.ClaimLease)
	})
	defer keeper.Stop()
	result, err := m.freezeTask(ctx, keeper, c, tk, set)
	if cause := context.Cause(ctx); err != nil && cause != nil && !waits(err) {
		return made{}, cause // the claim's end is why, whatever broke first
	}
	return result, err
}

func (m *Materialiser) freezeTask(ctx context.Context, keeper *claim.Keeper, c claim.Claim, tk *task.Task, set frozen.Set) (made, error) {
	rng, err := rangeOf(tk)
	if err != nil {
		return made{}, err
	}
	result, err := m.freeze(ctx, keeper, c, rng, set)
	if err != nil {
		return made{}, err
	}
	return result, m.adopt(ctx, c, tk, set, result)
}

func rangeOf(tk *task.Task) (source.Range, error) {
	rng := source.Range{TenantID: tk.TenantID, CollectionID: tk.CollectionID}
	if tk.Scope != protocol.Record {
		return rng, nil
	}
	key, err := protocol.ParseKey(tk.Key)
	if err != nil {
		return rng, fmt.Errorf("the record of task %s: %w", tk.ID, err)
	}
	rng.Key = key
	return rng, nil
}

func (m *Materialiser) tooMany(name string) error {
	limit, _ := m.Limits.rows()
	return fault.New(fault.ResourceLimit, "more than %d rows (%s)", limit, name)
}

// adopt signs the header and makes the set the task's manifest.
func (m *Materialiser) adopt(ctx context.Context, c claim.Claim, tk *task.Task, set frozen.Set, made made) error {
	if _, ok := task.Next(tk.State, task.Materialised, tk.Facts(m.Policy, false)); !ok {
		return claim.ErrFenced
	}
	env, err := document.SealHeader(m.Signer, &protocol.Header{
		At: tk.Coordinates(m.AppKey), ManifestID: protocol.FormatID(set.ID),
		Scope: tk.Scope, Key: tk.Key, Mode: tk.Mode, WindowStart: made.windowStart,
		CanonID: canon.ID, KeyKind: protocol.KeyKindUUID,
		RowCount: made.rows, PageRows: m.Limits.PageRows, PageCount: made.pages, Root: made.root,
		IssuedAt: m.Now(), BreakerOverride: tk.BreakerOverride,
	})
	if err != nil {
		return err
	}
	header, err := document.MarshalEnvelope(env)
	if err != nil {
		return fmt.Errorf("serialise the header of manifest %s: %w", set.ID, err)
	}
	return m.Frozen.Adopt(ctx, c, frozen.Adoption{
		Set: set, Root: made.root, Rows: made.rows, PageRows: m.Limits.PageRows, Pages: made.pages,
		WindowStart: made.windowStart, Header: header,
	})
}

// conclude notes why a try made no manifest and lets the claim go.
func (m *Materialiser) conclude(ctx context.Context, log *zap.Logger, c claim.Claim, set frozen.Set, why error) error {
	stopping := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), concludeTimeout)
	defer cancel()
	code := fault.ReasonOf(why)
	var err error
	switch {
	case errors.Is(why, claim.ErrFenced):
		log.Info("fenced: somebody else owns the task now")
	case stopping:
		err = m.Frozen.GiveBack(ctx, c)
	case waits(why):
		log.Info("reading the source has to wait; the manifest is begun again later", zap.String("code", string(code)))
		err = m.Frozen.Defer(ctx, c, code, m.Policy.BackoffBase)
	case code == fault.ResourceLimit, code == fault.OrderViolation:
		log.Warn("manifest refused", zap.String("code", string(code)), zap.Error(why))
		err = m.Store.RefuseMaterialise(ctx, c, code, reasonOf(why))
	default:
		if code == fault.None {
			code = fault.Unavailable
		}
		log.Warn("manifest not made this time", zap.String("code", string(code)), zap.Error(why))
		err = m.Store.RetryMaterialise(ctx, c, m.Policy, code)
	}
	if errors.Is(err, claim.ErrFenced) {
		log.Info("fenced: somebody else owns the task now")
		err = nil
	}
	// What is left over is swept anyway, should this fail.
	return errors.Join(err, m.Frozen.Discard(ctx, set.ID))
}

// waits says that a try ended because the source is not to be read for now,
// which is no trouble of the task's own.
func waits(err error) bool {
	code := fault.ReasonOf(err)
	return code == fault.LoadGuard || code == fault.RateLimited
}

// reasonOf is the sentence of a refusal, which was written for callers.
func reasonOf(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.Message
	}
	return ""
}

// SweepAbandoned deletes the sets that nobody adopted and nobody is making, a
// set a transaction.
func (m *Materialiser) SweepAbandoned(ctx context.Context) error {
	for n := 0; ; n++ {
		found, err := m.Frozen.SweepAbandoned(ctx)
		if err != nil {
			return err
		}
		if !found {
			if n > 0 {
				m.Log.Info("abandoned manifests swept", zap.Int("manifests", n))
			}
			return nil
		}
	}
}
