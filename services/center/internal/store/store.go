// Package store is the center's own database: tasks, grants, manifests,
// results, and the audit log.
//
// It promises that a task's state moves only by a verdict of package task and
// only from the state and attempt that the verdict was asked for; that rows are
// locked in the order task, grant, slot, audit; and that what depends on time
// depends on the database's clock. It never decides what a report or an
// instruction means.
package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/pg"
)

// The places where workers of the center take tasks.
var (
	// MaterialiseSite: the manifest is to be made.
	MaterialiseSite = claim.Site{
		Name: "materialise", Table: "lockstep.task", ID: "task_id",
		Held: "state = 'QUEUED' AND manifest_state = 'PENDING'",
	}
	// DispatchSite: the instruction is to be sent.
	DispatchSite = claim.Site{
		Name: "dispatch", Table: "lockstep.task", ID: "task_id",
		Held: "state = 'QUEUED' AND manifest_state = 'COMPLETE'",
	}
)

// Store runs the center's statements on one pool.
type Store struct {
	pool *pgxpool.Pool
}

// New makes a store on a pool of the center's own database.
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

// Pool is the store's pool, for the statements of other packages.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Tx is one transaction of the store.
type Tx struct {
	tx pgx.Tx
}

// maxSlotRaces bounds how often a transaction that lost a unique key to
// another one is run again; each time the winner's row is visible.
const maxSlotRaces = 8

// InTx runs fn in a transaction. A conflict, and the loss of a slot or an open
// task's place to another transaction, runs all of fn again: it must have no
// effect outside.
func (s *Store) InTx(ctx context.Context, fn func(*Tx) error) error {
	for race := 0; ; race++ {
		err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error { return fn(&Tx{tx}) })
		if !lostRace(err) || race == maxSlotRaces {
			return err
		}
	}
}

// errPlaceTaken: the slot that a claim was taken for was gone a moment later.
var errPlaceTaken = errors.New("the slot was taken meanwhile")

// lostRace says whether the database gave a place that fn had seen free to
// another transaction.
func lostRace(err error) bool {
	constraint, ok := pg.IsUniqueViolation(err)
	return errors.Is(err, errPlaceTaken) || ok && (constraint == "task_slot" || constraint == "task_open" || constraint == "task_ahead")
}

// CenterEpoch is the number an operator raises after a restore from a backup.
func (s *Store) CenterEpoch(ctx context.Context) (int64, error) {
	var epoch int64
	if err := s.pool.QueryRow(ctx, `SELECT center_epoch FROM lockstep.center`).Scan(&epoch); err != nil {
		return 0, fmt.Errorf("read the center epoch: %w", err)
	}
	return epoch, nil
}
