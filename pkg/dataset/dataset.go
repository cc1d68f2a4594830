// Package dataset maps a host's own table to the nouns of the protocol.
//
// A mapping names a table and its columns once; everything that reads or
// writes the host's rows builds its SQL from the quoted fragments here. The
// package promises that an identifier from the configuration reaches SQL only
// quoted, and that a resolved mapping's columns exist with types that fit. It
// never touches a column that the mapping does not name.
package dataset

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/protocol"
)

// Side says whose table a mapping describes.
type Side int

// The center's table is only read; the consumer's is repaired.
const (
	Center Side = iota + 1
	Consumer
)

// Config is a mapping as configured.
type Config struct {
	// Name is for people: logs, errors, the console.
	Name string `koanf:"name"`
	// Table is schema.table.
	Table string `koanf:"table"`
	// KeyKind is how keys are spelled and ordered: uuid.
	KeyKind string  `koanf:"key_kind"`
	Columns Columns `koanf:"columns"`
	// Outbox names the changes for ordinary delivery; the center's side only.
	Outbox Outbox `koanf:"outbox"`
}

// Columns names the host's columns. Content is either one jsonb column or a
// list of columns that become one object with their names as keys.
type Columns struct {
	// Key identifies a record within its tenant.
	Key string `koanf:"key"`
	// Tenant is the owner of a record, an integer.
	Tenant string `koanf:"tenant"`
	// Collection is the set a record belongs to; a task is about one.
	Collection string `koanf:"collection"`
	// Revision rises with every change of a record; 0 was never kept.
	Revision string `koanf:"revision"`
	// Deleted marks a record that is there and deleted.
	Deleted string `koanf:"deleted"`
	// SchemaVersion of the content, an integer.
	SchemaVersion string `koanf:"schema_version"`
	// Sequence is an integer that is carried along.
	Sequence string `koanf:"sequence"`
	// Content is one jsonb column; this or content_columns.
	Content string `koanf:"content"`
	// ContentColumns become one object with their names as members.
	ContentColumns []string `koanf:"content_columns"`

	// ContentHash of the content as it was applied, bytea. This and what follows: the
	// consumer's side only.
	ContentHash string `koanf:"content_hash"`
	// ProjectionVersion rises with every change that Lockstep makes to a row; repairs hold by
	// it.
	ProjectionVersion string `koanf:"projection_version"`
	// CreateTime of the row; one younger than the manifest is never retired.
	CreateTime string `koanf:"create_time"`
	// Retired is when a row was retired; NULL while it is live.
	Retired string `koanf:"retired"`
	// RetireHold true keeps a row from being retired. Optional, as all that follow.
	RetireHold string `koanf:"retire_hold"`
	// LastEventID is what changed the row last.
	LastEventID string `koanf:"last_event_id"`
	// ConflictDetail says in words what differed.
	ConflictDetail string `koanf:"conflict_detail"`
	// ProofID names the absence proof that a row was retired by.
	ProofID string `koanf:"proof_id"`
}

// column is one named column and what it must be.
type column struct {
	setting string
	name    string
	types   []string
}

var (
	integers = []string{"int2", "int4", "int8"}
	texts    = []string{"text", "varchar", "bpchar"}
)

// columns lists the mapped columns of a side, required ones whether named or not.
func (c Config) columns(side Side) []column {
	m := c.Columns
	cols := []column{
		{"key", m.Key, append([]string{"uuid"}, texts...)},
		{"tenant", m.Tenant, integers},
		{"collection", m.Collection, append([]string{"uuid"}, append(slices.Clone(texts), integers...)...)},
		{"revision", m.Revision, integers},
		{"deleted", m.Deleted, []string{"bool"}},
		{"schema_version", m.SchemaVersion, integers},
		{"sequence", m.Sequence, integers},
	}
	if m.Content != "" || len(m.ContentColumns) == 0 {
		cols = append(cols, column{"content", m.Content, []string{"jsonb"}})
	}
	for _, name := range m.ContentColumns {
		cols = append(cols, column{"content_columns", name, nil})
	}
	if side == Center {
		return cols
	}
	cols = append(cols,
		column{"content_hash", m.ContentHash, []string{"bytea"}},
		column{"projection_version", m.ProjectionVersion, integers},
		column{"create_time", m.CreateTime, []string{"timestamptz", "timestamp"}},
		column{"retired", m.Retired, []string{"timestamptz"}},
	)
	for _, opt := range []column{
		{"retire_hold", m.RetireHold, []string{"bool"}},
		{"last_event_id", m.LastEventID, texts},
		{"conflict_detail", m.ConflictDetail, texts},
		{"proof_id", m.ProofID, texts},
	} {
		if opt.name != "" {
			cols = append(cols, opt)
		}
	}
	return cols
}

// Validate lists everything that is wrong with the mapping itself.
func (c Config) Validate(side Side) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("dataset."+format, args...)) }
	if _, err := tableIdent(c.Table); err != nil {
		bad("table: %w", err)
	}
	if c.KeyKind != protocol.KeyKindUUID {
		bad("key_kind: %q is not supported; the kinds are: uuid", c.KeyKind)
	}
	if c.Columns.Content != "" && len(c.Columns.ContentColumns) > 0 {
		bad("columns: name content or content_columns, not both")
	}
	seen := map[string]string{}
	for _, col := range c.columns(side) {
		switch {
		case col.name == "":
			bad("columns.%s: name a column", col.setting)
		case seen[col.name] != "":
			bad("columns.%s: column %q is mapped to %s already", col.setting, col.name, seen[col.name])
		default:
			seen[col.name] = col.setting
		}
	}
	errs = append(errs, c.Outbox.validate(side)...)
	return errors.Join(errs...)
}

func tableIdent(table string) (pgx.Identifier, error) {
	parts := strings.Split(table, ".")
	if len(parts) != 2 || parts[0] == "" || parts[1] == "" {
		return nil, fmt.Errorf("%q is not schema.table", table)
	}
	return parts, nil
}
