package projection

import (
	"fmt"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/evidence"
)

// Expected is what a row must still be for a write to change it.
type Expected struct {
	is      is
	row     evidence.Row
	version *int64
}

type is string

const (
	absent  is = "absent"
	live    is = "live"
	retired is = "retired"
)

// Absent expects no live row of the key. A retired row of the same collection is revived.
func Absent() Expected { return Expected{is: absent} }

// Live expects a live row with the stored revision, hash and deleted of row.
func Live(row evidence.Row) Expected { return Expected{is: live, row: row} }

// Expected expects the row as it was read, live or retired, its version included.
func (r *LocalRow) Expected() Expected {
	e := Live(r.Row)
	if r.Retired {
		e.is = retired
	}
	version := r.Version
	e.version = &version
	return e
}

// triples are the columns of a batch's expected rows, as parameters.
type triples struct {
	keys     []string
	is       []string
	revision []int64
	hash     [][]byte
	deleted  []bool
	version  []*int64
}

func (a *triples) add(key string, e Expected) {
	a.keys = append(a.keys, key)
	a.is = append(a.is, string(e.is))
	a.revision = append(a.revision, e.row.Revision)
	a.hash = append(a.hash, e.row.Hash[:])
	a.deleted = append(a.deleted, e.row.Deleted)
	a.version = append(a.version, e.version)
}

// args are the parameters of triplesColumns, in order.
func (a *triples) args(t *dataset.Table) []any {
	return []any{t.KeyArgs(a.keys), a.is, a.revision, a.hash, a.deleted, a.version}
}

// triplesColumns names args in unnest.
const triplesColumns = "key, was, was_revision, was_hash, was_deleted, was_version"

// lockedSQL is a query for the rows of v whose row t is still as expected, in
// this tenant ($1) and collection ($2). It locks those in key order, and gives
// all of v, so that nothing has to look for the rest of it. A row that a
// host transaction holds is passed over, and a row that one changed meanwhile is
// judged again as it is once locked: so neither side ever waits for the other,
// and nothing is written over a value that was not looked at.
func lockedSQL(t *dataset.Table, also string) string {
	return fmt.Sprintf(`SELECT v.* FROM %[1]s AS t JOIN v ON t.%[2]s = v.key
		WHERE t.%[3]s = $1 AND t.%[4]s = $2::%[5]s AND (t.%[6]s IS NULL) = (v.was = 'live')
			AND (v.was = 'absent' OR (COALESCE(t.%[7]s, 0) = v.was_revision AND %[8]s = v.was_hash AND COALESCE(t.%[9]s, false) = v.was_deleted))
			AND (v.was_version IS NULL OR COALESCE(t.%[10]s, 0) = v.was_version)%[11]s
		ORDER BY %[12]s FOR UPDATE OF t SKIP LOCKED`,
		t.Ident, t.Key, t.Tenant, t.Collection, t.CollectionType(), t.Retired,
		t.Revision, storedHashSQL(t), t.Deleted, t.ProjectionVersion, also, t.KeyOrder)
}

// storedHashSQL is what storedHash reads.
func storedHashSQL(t *dataset.Table) string {
	return fmt.Sprintf(`CASE WHEN octet_length(t.%[1]s) = 32 THEN t.%[1]s ELSE '\x%[2]s'::bytea END`, t.ContentHash, canon.Hash{})
}
