package refresh

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Scope is one unit of refreshing: a station's month of bills, a candidate's
// period of scores.
type Scope struct {
	ID    int64
	Month int32 // yyyyMM
}

// String gives the scope as people read it: "17:202607".
func (s Scope) String() string { return fmt.Sprintf("%d:%06d", s.ID, s.Month) }

// Mode says what a request may write.
type Mode string

const (
	// ReviewCreate inserts and updates, for one review's frozen identity.
	ReviewCreate Mode = "REVIEW_CREATE"
	// ExistingOnly updates rows that exist; payloads without a mode are this.
	ExistingOnly Mode = "EXISTING_ONLY"
)

// Request is a parsed, checked and normalised request.
type Request struct {
	Projection string
	Mode       Mode
	// BusinessKey stands for one range or one review identity. Parse computes
	// it; a caller's own replaces it (CustomKey), for ExistingOnly only.
	BusinessKey string
	// Payload is the normal form as canonical JSON. A generation freezes it.
	Payload []byte
	// Range is what one business key must always mean: canonical bytes, compared
	// with those stored under the key. Things that may differ between two
	// requests for the same key (a trigger, an event id) are not in it.
	Range         []byte
	SourceEventID string
	Trigger       string // who asked, for people: "import", "review", "operator"
	Replace       bool   // the caller means to change the key's range
	CustomKey     bool   // the business key is the caller's own
}

// Counts of one scope, one generation or one run.
type Counts struct {
	Differences, Created, Updated, Unchanged, Missed, LateSkipped, Warnings int64
	// MissedIDs are the rows that had nothing to update, a bounded list
	// (MaxMissedIDs); Missed counts them all.
	MissedIDs []int64
}

// MaxMissedIDs bounds the missed rows listed for one scope: enough to find the
// cause, small enough that a scope of 50 000 misses stays a small row.
const MaxMissedIDs = 100

// Add adds other to c, the list up to MaxMissedIDs.
func (c *Counts) Add(other Counts) {
	c.Differences += other.Differences
	c.Created += other.Created
	c.Updated += other.Updated
	c.Unchanged += other.Unchanged
	c.Missed += other.Missed
	c.LateSkipped += other.LateSkipped
	c.Warnings += other.Warnings
	room := MaxMissedIDs - len(c.MissedIDs)
	c.MissedIDs = append(c.MissedIDs, other.MissedIDs[:min(room, len(other.MissedIDs))]...)
}

// Projection knows what a scope's rows are computed from. The engine knows
// tasks, generations, scopes and claims, and nothing of the rows.
//
// Errors carry fault reasons; a reason becomes the code stored with the scope
// and the task. Messages are masked and cut by the engine before they are
// stored.
type Projection interface {
	Name() string
	// Parse checks a request's JSON strictly (an unknown field or a bad value is
	// INVALID_ARGUMENT with its fields) and gives its normal form, its range and
	// its computed business key. A trigger that is not empty stands for the
	// payload's own one, and is frozen with it where the rows tell who asked.
	Parse(raw []byte, trigger string) (Request, error)
	// Resolve yields the scopes of a generation in their order, each once. It is
	// called once per generation, in one transaction.
	Resolve(ctx context.Context, tx pgx.Tx, payload []byte, yield func(Scope) error) error
	// Check asks whether the stored facts still allow this work. The engine asks
	// after parsing, before each page and before each scope; nil means they do.
	Check(ctx context.Context, tx pgx.Tx, payload []byte) error
	// Refresh computes one scope inside the engine's transaction: the scope's
	// guard is held, so facts read by a statement of this method are newer than
	// the wait for it; the token check and the commit follow. It must not commit.
	Refresh(ctx context.Context, tx pgx.Tx, payload []byte, s Scope) (Counts, error)
}
