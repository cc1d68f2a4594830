package dataset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/protocol"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Table is a mapping checked against the live table. Its fields are quoted SQL
// fragments; a name with an alias needs "t.": every fragment is qualified with
// the alias t, so that statements can join the table with arrays of values.
type Table struct {
	Config
	// Ident is the quoted table name, to be used as `Ident AS t`.
	Ident string
	// Key, Tenant, … are quoted column names without alias, for INSERT and SET.
	Key, Tenant, Collection, Revision, Deleted, SchemaVersion, Sequence string
	ContentHash, ProjectionVersion, CreateTime, Retired                 string
	// Empty where the mapping leaves them out.
	RetireHold, LastEventID, ConflictDetail, ProofID string
	// KeyOrder is the expression of t that sorts as the raw key bytes do.
	KeyOrder string
	// Content is the expression of t that gives the content as jsonb.
	Content string
	// ContentTargets are the quoted columns that content is written to.
	ContentTargets []string
	// Changes is the resolved outbox, nil where none is mapped.
	Changes *Changes

	types map[string]string // column name → type name
}

// Resolve reads the live table's columns and checks the mapping against them.
// The error lists every column that is missing or of a type that can't be used.
func Resolve(ctx context.Context, db Querier, cfg Config, side Side) (*Table, error) {
	if err := cfg.Validate(side); err != nil {
		return nil, err
	}
	ident, err := tableIdent(cfg.Table)
	if err != nil {
		return nil, err
	}
	types, err := columnTypes(ctx, db, ident)
	if err != nil {
		return nil, err
	}
	if len(types) == 0 {
		return nil, fmt.Errorf("dataset.table: there is no table %s, or this role may not see it", cfg.Table)
	}
	var errs []error
	for _, col := range cfg.columns(side) {
		got, ok := types[col.name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("dataset.columns.%s: %s has no column %q", col.setting, cfg.Table, col.name))
		case col.types != nil && !slices.Contains(col.types, got):
			errs = append(errs, fmt.Errorf("dataset.columns.%s: column %q is %s; it must be one of %s", col.setting, col.name, got, strings.Join(col.types, ", ")))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	table := newTable(cfg, ident, types)
	if table.Changes, err = cfg.Outbox.resolve(ctx, db); err != nil {
		return nil, err
	}
	return table, nil
}

// columnTypes reads a live table's column names and their types; none where
// there is no such table, or the role may not see it.
func columnTypes(ctx context.Context, db Querier, ident pgx.Identifier) (map[string]string, error) {
	rows, err := db.Query(ctx, `SELECT a.attname, t.typname
		FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
		WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped`, ident.Sanitize())
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", ident.Sanitize(), err)
	}
	types := map[string]string{}
	var name, typ string
	if _, err := pgx.ForEachRow(rows, []any{&name, &typ}, func() error {
		types[name] = typ
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", ident.Sanitize(), err)
	}
	return types, nil
}

func newTable(cfg Config, ident pgx.Identifier, types map[string]string) *Table {
	m := cfg.Columns
	t := &Table{
		Config: cfg, Ident: ident.Sanitize(), types: types,
		Key: quote(m.Key), Tenant: quote(m.Tenant), Collection: quote(m.Collection),
		Revision: quote(m.Revision), Deleted: quote(m.Deleted),
		SchemaVersion: quote(m.SchemaVersion), Sequence: quote(m.Sequence),
		ContentHash: quote(m.ContentHash), ProjectionVersion: quote(m.ProjectionVersion),
		CreateTime: quote(m.CreateTime), Retired: quote(m.Retired),
		RetireHold: quote(m.RetireHold), LastEventID: quote(m.LastEventID),
		ConflictDetail: quote(m.ConflictDetail), ProofID: quote(m.ProofID),
	}
	t.KeyOrder = "t." + t.Key
	if !t.uuidKey() {
		// No collation of the host may bend the order of the bytes.
		t.KeyOrder += ` COLLATE "C"`
	}
	if m.Content != "" {
		t.Content = "t." + quote(m.Content)
		t.ContentTargets = []string{quote(m.Content)}
		return t
	}
	parts := make([]string, 0, len(m.ContentColumns))
	for _, name := range m.ContentColumns {
		parts = append(parts, literal(name)+", t."+quote(name))
		t.ContentTargets = append(t.ContentTargets, quote(name))
	}
	t.Content = "jsonb_build_object(" + strings.Join(parts, ", ") + ")"
	return t
}

// ContentValues gives, for each of ContentTargets, the expression that takes
// its value from the jsonb expression content.
func (t *Table) ContentValues(content string) []string {
	if t.Columns.Content != "" {
		return []string{content}
	}
	out := make([]string, len(t.ContentTargets))
	for i, target := range t.ContentTargets {
		out[i] = fmt.Sprintf("(jsonb_populate_record(NULL::%s, %s)).%s", t.Ident, content, target)
	}
	return out
}

// KeyType is the SQL type a key parameter is cast to; "[]" may follow it.
func (t *Table) KeyType() string {
	if t.uuidKey() {
		return "uuid"
	}
	return "text"
}

// CollectionType is the SQL type a collection parameter is cast to.
func (t *Table) CollectionType() string { return t.types[t.Columns.Collection] }

// CollectionText is the collection of t as the API spells it.
func (t *Table) CollectionText() string {
	if t.CollectionType() == "uuid" {
		return "replace(t." + t.Collection + "::text, '-', '')"
	}
	return "t." + t.Collection + "::text"
}

// KeyArg is the parameter for one raw key.
func (t *Table) KeyArg(raw string) any {
	if t.uuidKey() {
		return [16]byte([]byte(raw))
	}
	return protocol.FormatKey(raw)
}

// KeyArgs is the array parameter for raw keys.
func (t *Table) KeyArgs(raws []string) any {
	if t.uuidKey() {
		out := make([][16]byte, len(raws))
		for i, raw := range raws {
			out[i] = [16]byte([]byte(raw))
		}
		return out
	}
	out := make([]string, len(raws))
	for i, raw := range raws {
		out[i] = protocol.FormatKey(raw)
	}
	return out
}

// DecodeKey turns the key column's value as it came over the wire
// (pgx.Rows.RawValues) into raw key bytes. A text column may hold a spelling
// that is no key: protocol.ErrKey.
func (t *Table) DecodeKey(wire []byte) (string, error) {
	if t.uuidKey() {
		if len(wire) != 16 {
			return "", protocol.ErrKey
		}
		return string(wire), nil
	}
	return protocol.ParseKey(string(wire))
}

// AppendKey is DecodeKey into memory that many keys share.
func (t *Table) AppendKey(dst, wire []byte) ([]byte, error) {
	if t.uuidKey() {
		if len(wire) != 16 {
			return dst, protocol.ErrKey
		}
		return append(dst, wire...), nil
	}
	key, err := protocol.ParseKey(string(wire))
	return append(dst, key...), err
}

func (t *Table) uuidKey() bool { return t.types[t.Columns.Key] == "uuid" }

func quote(name string) string {
	if name == "" {
		return ""
	}
	return pgx.Identifier{name}.Sanitize()
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
