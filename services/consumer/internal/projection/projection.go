// Package projection is the only part of the consumer that touches the host's
// mapped table.
//
// It promises:
//   - it reads the local image (the live rows of one tenant and collection) in
//     key order, from the covering index alone where the host keeps one, or, to
//     hash all contents, as the table lies; each read is one short statement;
//   - a write names in its own condition what the row must still be; a row that
//     is otherwise, or that a host transaction has locked, is left alone and is
//     absent from the returned keys;
//   - it writes the mapped snapshot and evidence columns and never names any
//     other column of the host.
//
// It never waits long for a host transaction, never decides what a difference
// means, and writes in its caller's transactions only.
package projection

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/evidence"
)

// Projection reads and writes the mapped table. It is safe for concurrent use.
type Projection struct {
	pool *pgxpool.Pool
	// images are read over connections of their own, which repairs can't take away.
	images *pgxpool.Pool
	table  *dataset.Table
}

// New makes the projection of a resolved consumer mapping. images serves the
// reading of whole images and may be the same pool.
func New(pool, images *pgxpool.Pool, table *dataset.Table) *Projection {
	return &Projection{pool: pool, images: images, table: table}
}

// Scope names the rows of a task. The collection is spelled as in the API.
type Scope struct {
	TenantID     int64
	CollectionID string
}

// LocalRow is a row of the tenant as it is stored now, live or retired.
type LocalRow struct {
	// Row holds the stored hash; all zeros where the host stored none.
	evidence.Row
	CollectionID string
	Version      int64
	Created      time.Time // zero for NULL
	Retired      bool
	Hold         bool
	// Content is the hash of the stored content, all zeros where it has none. Set
	// where the read asked for content.
	Content canon.Hash
}

// Holder is a row of another tenant or collection that holds a key.
type Holder struct {
	Key          string
	TenantID     int64
	CollectionID string
	Retired      bool
}

// Chunk is one bounded read of the image.
type Chunk struct {
	Scope
	// After < key <= UpTo, raw; nil is open.
	After, UpTo *string
	// Limit is the most rows of one statement.
	Limit int
	// Content: give hashes recomputed from the stored content instead of the stored ones.
	Content bool
}
