package dataset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lockstep.dev/pkg/protocol"
)

// Outbox names a table of the host with one row a change, written by the
// transaction that makes the change. Nothing in it means that there is none.
type Outbox struct {
	// Table is schema.table.
	Table string `koanf:"table"`
	// ID tells the rows of one transaction apart and rises.
	ID string `koanf:"id"`
	// XID is an xid8 column that holds pg_current_xact_id() of the writer. Rows
	// are taken in (xid, id) order below the oldest running transaction, so that
	// one that commits late is not skipped.
	XID string `koanf:"xid"`
	// Tenant of the changed record.
	Tenant string `koanf:"tenant"`
	// Collection of the changed record.
	Collection string `koanf:"collection"`
	// Key of the changed record.
	Key string `koanf:"key"`
}

// Mapped says whether there is an outbox.
func (o Outbox) Mapped() bool { return o != Outbox{} }

func (o Outbox) columns() []column {
	return []column{
		{"id", o.ID, integers},
		{"xid", o.XID, []string{"xid8"}},
		{"tenant", o.Tenant, integers},
		{"collection", o.Collection, append([]string{"uuid"}, append(slices.Clone(texts), integers...)...)},
		{"key", o.Key, append([]string{"uuid"}, texts...)},
	}
}

func (o Outbox) validate(side Side) (errs []error) {
	if !o.Mapped() {
		return nil
	}
	if side != Center {
		return []error{errors.New("dataset.outbox: only the center's side has one")}
	}
	if _, err := tableIdent(o.Table); err != nil {
		errs = append(errs, fmt.Errorf("dataset.outbox.table: %w", err))
	}
	for _, col := range o.columns() {
		if col.name == "" {
			errs = append(errs, fmt.Errorf("dataset.outbox.%s: name a column", col.setting))
		}
	}
	return errs
}

// Changes is an outbox checked against the live table. Its fields are quoted
// SQL fragments of the alias o.
type Changes struct {
	// Name is schema.table as configured.
	Name string
	// Ident is the quoted table name, to be used as `Ident AS o`.
	Ident string
	// ID and XID order the rows.
	ID, XID string
	// Tenant is an int8, Collection and Key are texts as the API spells them.
	Tenant, Collection, Key string
}

// resolve reads the live table's columns and checks the outbox against them.
func (o Outbox) resolve(ctx context.Context, db Querier) (*Changes, error) {
	if !o.Mapped() {
		return nil, nil //nolint:nilnil // having none is an answer
	}
	ident, err := tableIdent(o.Table)
	if err != nil {
		return nil, err
	}
	types, err := columnTypes(ctx, db, ident)
	if err != nil {
		return nil, err
	}
	if len(types) == 0 {
		return nil, fmt.Errorf("dataset.outbox.table: there is no table %s, or this role may not see it", o.Table)
	}
	var errs []error
	for _, col := range o.columns() {
		got, ok := types[col.name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("dataset.outbox.%s: %s has no column %q", col.setting, o.Table, col.name))
		case !slices.Contains(col.types, got):
			errs = append(errs, fmt.Errorf("dataset.outbox.%s: column %q is %s; it must be one of %s", col.setting, col.name, got, strings.Join(col.types, ", ")))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Changes{
		Name: o.Table, Ident: ident.Sanitize(), ID: "o." + quote(o.ID), XID: "o." + quote(o.XID),
		Tenant:     "o." + quote(o.Tenant) + "::int8",
		Collection: spelled(types, o.Collection), Key: spelled(types, o.Key),
	}, nil
}

// spelled is a column of o as the API spells it.
func spelled(types map[string]string, name string) string {
	if types[name] == protocol.KeyKindUUID {
		return "replace(o." + quote(name) + "::text, '-', '')"
	}
	return "o." + quote(name) + "::text"
}

// Order is the condition of the rows behind a position, whose parameters it is
// given, and within reach: below the oldest transaction that may still commit.
func (c *Changes) Order(xid, id string) string {
	return fmt.Sprintf("(%s, %s) > (%s::text::xid8, %s::int8) AND %[1]s < pg_snapshot_xmin(pg_current_snapshot())", c.XID, c.ID, xid, id)
}
