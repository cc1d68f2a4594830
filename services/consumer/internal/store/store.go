// Package store is the consumer's own tables: accepted work, the outcome
// ledger, the high-water marks and the audit log.
//
// Every write of a worker names its claim; every transaction with an effect
// ends with the check of that claim; every transition is decided by package
// work inside the transaction that writes it. The claim token never leaves
// package claim. The host's table is package projection's.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/claim"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/consumer/internal/work"
)

// Site is where workers take reconcile work. A claim is held while the row is
// worked and while its report is being sent.
var Site = claim.Site{
	Name: "work", Table: "lockstep.work", ID: "task_id",
	Held: "state IN ('RUNNING', 'REPORTING')",
}

// Settings are the figures that decide how rows move.
type Settings struct {
	Lease       time.Duration
	MaxRetries  int
	BackoffBase time.Duration
	BackoffCap  time.Duration
	// Content says that local hashes are recomputed from the content.
	Content bool
	// Tally may be empty.
	Tally Tally
}

// Store reads and writes the consumer's tables.
type Store struct {
	pool *pgxpool.Pool
	// leases renews claims over connections of its own, which long work can't take away.
	leases *pgxpool.Pool
	set    Settings
	newID  func() uuid.UUID
}

// New makes a store. leases may be small; it serves renewals only.
func New(pool, leases *pgxpool.Pool, set Settings) *Store {
	return &Store{pool: pool, leases: leases, set: set, newID: uuid.New}
}

// Ping says whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	return nil
}

// Work is an accepted instruction and how far it has come.
type Work struct {
	TaskID          uuid.UUID
	Source          string
	TenantID        int64
	CollectionID    string
	Scope           protocol.Scope
	RecordKey       string // as in the API; of a RECORD task
	Mode            protocol.Mode
	State           work.State
	Code            string
	Attempt         int
	WantedAttempt   int
	GrantEpoch      int64
	CenterEpoch     int64
	WindowStart     time.Time
	ManifestID      uuid.UUID
	ManifestRoot    []byte
	RowCount        int64
	BreakerOverride bool

	NextPage       int
	CursorKey      []byte
	CenterScanned  int64
	LocalScanned   int64
	CenterComplete bool
	LocalComplete  bool
	Fetched        int64
	WireBytes      int64
	Resumed        int
	DeferredCode   string
	RetireCode     string
	Verified       protocol.Verified

	Report        []byte
	ReportState   *protocol.State
	ReportAttempt *int

	Paused     bool
	RetryCount int
	Tries      int
	DueAt      time.Time
	LeaseUntil *time.Time
	CreatedAt  time.Time
	StartedAt  *time.Time
	UpdatedAt  time.Time
	EndedAt    *time.Time
	PurgedAt   *time.Time

	TraceContext string // of the newest instruction, a W3C traceparent; "" for none
}

const columns = `task_id, source, tenant_id, collection_id, scope, record_key, mode, state, code, attempt, wanted_attempt,
	grant_epoch, center_epoch, window_start, manifest_id, manifest_root, row_count, breaker_override,
	next_page, cursor_key, center_scanned, local_scanned, center_complete, local_complete, fetched, wire_bytes, resumed,
	deferred_code, retire_code, verified, report, report_state, report_attempt,
	paused, retry_count, tries, due_at, lease_until, created_at, started_at, updated_at, ended_at, purged_at, trace_context`

// Coordinates are what every document of the task must state.
func (w *Work) Coordinates(consumer string) protocol.Coordinates {
	return protocol.Coordinates{
		Source: w.Source, Consumer: consumer, TaskID: protocol.FormatID(w.TaskID), TenantID: w.TenantID,
		CollectionID: w.CollectionID, GrantEpoch: w.GrantEpoch, CenterEpoch: w.CenterEpoch,
	}
}

// ID is the task id as the API spells it.
func (w *Work) ID() string { return protocol.FormatID(w.TaskID) }

// Row is what package work decides from.
func (w *Work) Row() work.Row {
	return work.Row{State: w.State, Attempt: w.Attempt, Wanted: w.WantedAttempt, Retries: w.RetryCount, Tries: w.Tries}
}

// Work reads one row; TASK_NOT_FOUND where there is none.
func (s *Store) Work(ctx context.Context, id uuid.UUID) (*Work, error) {
	return readWork(ctx, s.pool, id, "")
}

func readWork(ctx context.Context, db claim.DB, id uuid.UUID, lock string) (*Work, error) {
	rows, err := db.Query(ctx, `SELECT `+columns+` FROM lockstep.work WHERE task_id = $1 `+lock, id)
	if err != nil {
		return nil, fmt.Errorf("read work %s: %w", protocol.FormatID(id), err)
	}
	w, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[Work])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fault.New(fault.TaskNotFound, "no work of task %s", protocol.FormatID(id))
	}
	if err != nil {
		return nil, fmt.Errorf("read work %s: %w", protocol.FormatID(id), err)
	}
	return w, nil
}

// audit notes a change by an operator or a retirement, in the change's own transaction.
func audit(ctx context.Context, tx pgx.Tx, actor, action, object, decision, reason string) error {
	_, err := tx.Exec(ctx, `INSERT INTO lockstep.audit (actor, action, object, decision, reason) VALUES ($1, $2, $3, $4, $5)`,
		actor, action, object, decision, reason)
	if err != nil {
		return fmt.Errorf("audit %s of %s: %w", action, object, err)
	}
	return nil
}
