package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/services/lockstep/internal/store"
)

// privileges: the center only reads, the consumer also inserts and updates; nobody deletes.
func privileges(ctx context.Context, r *Report, pool store.Pool, t *dataset.Table, side dataset.Side) error {
	have, err := pool.Privileges(ctx, t)
	if err != nil {
		return err
	}
	needs := []string{"SELECT"}
	if side == dataset.Consumer {
		needs = append(needs, "INSERT", "UPDATE")
	}
	missing, err := missingPrivileges(ctx, pool, t, needs)
	if err != nil {
		return err
	}
	switch {
	case len(missing) > 0:
		r.add("privileges", Fail, "the role lacks %s", strings.Join(missing, "; "))
	case side == dataset.Center && (have.Insert || have.Update || have.Delete):
		r.add("privileges", Warn, "the role may change the table; SELECT is all it needs")
	case side == dataset.Consumer && have.Delete:
		r.add("privileges", Warn, "the role may delete; SELECT, INSERT and UPDATE are all it needs")
	default:
		r.add("privileges", OK, "%s, and no more", strings.Join(needs, ", "))
	}
	return nil
}

func missingPrivileges(ctx context.Context, pool store.Pool, t *dataset.Table, needs []string) ([]string, error) {
	var missing []string
	for _, need := range needs {
		var columns []string
		for _, column := range mapped(t) {
			may, err := pool.MayUse(ctx, t, column, need)
			if err != nil {
				return nil, err
			}
			if !may {
				columns = append(columns, column)
			}
		}
		if len(columns) > 0 {
			missing = append(missing, need+" on "+strings.Join(columns, ", "))
		}
	}
	return missing, nil
}

// mapped lists the columns that a mapping names.
func mapped(t *dataset.Table) []string {
	m := t.Columns
	names := append([]string{
		m.Key, m.Tenant, m.Collection, m.Revision, m.Deleted, m.SchemaVersion, m.Sequence, m.Content,
		m.ContentHash, m.ProjectionVersion, m.CreateTime, m.Retired, m.RetireHold, m.LastEventID, m.ConflictDetail, m.ProofID,
	}, m.ContentColumns...)
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// inserts: a missing record comes without values for the host's own columns.
func inserts(ctx context.Context, r *Report, pool store.Pool, t *dataset.Table, side dataset.Side) error {
	if side == dataset.Center {
		return nil
	}
	names, err := pool.Demanding(ctx, t)
	if err != nil {
		return err
	}
	known := mapped(t)
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(known, name) })
	if len(names) > 0 {
		r.add("inserts", Fail, "a missing record can't be inserted: %s must have a value, has no default, and is not mapped", strings.Join(names, ", "))
		return nil
	}
	r.add("inserts", OK, "the host's own columns may be empty or have defaults")
	return nil
}

// The longest texts that Lockstep writes into the host's optional columns.
const (
	idLength     = 32  // an event's, and a proof's where the center is Lockstep's
	detailLength = 193 // a revision of 19 digits and two hashes
)

// lengths: a text that does not fit is refused by the table, row by row.
func lengths(ctx context.Context, r *Report, pool store.Pool, t *dataset.Table, side dataset.Side) error {
	if side == dataset.Center {
		return nil
	}
	fit := true
	for _, c := range []struct {
		column string
		needs  int
		level  Level
		then   string
	}{
		{t.Columns.LastEventID, idLength, Fail, "no row can be repaired"},
		{t.Columns.ProofID, idLength, Fail, "no row can be retired"},
		{t.Columns.ConflictDetail, detailLength, Warn, "contradictions are kept in the ledger only, each found out row by row, and such deliveries are refused"},
	} {
		if c.column == "" {
			continue
		}
		n, err := pool.Length(ctx, t, c.column)
		if err != nil {
			return err
		}
		if n > 0 && n < c.needs {
			fit = false
			r.add("lengths", c.level, "%s holds %d characters and needs %d: %s", c.column, n, c.needs, c.then)
		}
	}
	if fit {
		r.add("lengths", OK, "what is written of events, proofs and contradictions fits")
	}
	return nil
}

// indexes: one for the walk in key order, one to find a key wherever it lives,
// and at the consumer a unique one that an insert can collide with.
func indexes(ctx context.Context, r *Report, pool store.Pool, t *dataset.Table, side dataset.Side) error {
	all, err := pool.Indexes(ctx, t)
	if err != nil {
		return err
	}
	r.walkIndex(t, all, side)
	m := t.Columns
	if at := slices.IndexFunc(all, func(i store.Index) bool { return i.Where == "" && i.Keys[0] == m.Key }); at >= 0 {
		r.add("key index", OK, "%s finds a key wherever it lives", all[at].Name)
	} else {
		r.add("key index", Warn, "no index begins with %s: finding out whether a key lives elsewhere reads the whole table; CREATE INDEX ON %s (%s)", m.Key, t.Ident, t.Key)
	}
	if side == dataset.Center {
		return nil
	}
	unique := func(i store.Index) bool {
		return i.Unique && i.Where == "" && len(i.Keys) == 2 && slices.Contains(i.Keys, m.Key) && slices.Contains(i.Keys, m.Tenant)
	}
	if at := slices.IndexFunc(all, unique); at >= 0 {
		r.add("unique key", OK, "%s", all[at].Name)
	} else {
		r.add("unique key", Fail, "no unique index on exactly (%s, %s), which an inserted record would collide with; CREATE UNIQUE INDEX ON %s (%s, %s)", m.Tenant, m.Key, t.Ident, t.Tenant, t.Key)
	}
	return nil
}

// walkIndex judges the index that the scan of a collection in key order uses.
func (r *Report) walkIndex(t *dataset.Table, all []store.Index, side dataset.Side) {
	m := t.Columns
	include := fmt.Sprintf("CREATE INDEX ON %s (%s, %s, %s)", t.Ident, t.Tenant, t.Collection, keyInIndex(t))
	wanted := []string(nil)
	if side == dataset.Consumer {
		include += fmt.Sprintf(" INCLUDE (%s, %s, %s) WHERE %s IS NULL", t.Revision, t.ContentHash, t.Deleted, t.Retired)
		wanted = []string{m.Revision, m.ContentHash, m.Deleted}
	}
	var walks []store.Index
	for _, i := range all {
		if walk(i, m) && (i.Where == "" || i.Where == "("+t.Retired+" IS NULL)" || i.Where == "("+m.Retired+" IS NULL)") && (i.ByBytes || t.KeyType() == "uuid") {
			walks = append(walks, i)
		}
	}
	covers := func(i store.Index) bool {
		return !slices.ContainsFunc(wanted, func(c string) bool { return !slices.Contains(i.Included, c) && !slices.Contains(i.Keys, c) })
	}
	switch at := slices.IndexFunc(walks, covers); {
	case at >= 0:
		r.add("walk index", OK, "%s", walks[at].Name)
	case len(walks) > 0:
		r.add("walk index", Warn, "%s gives the order and not the values, so each row is looked up; %s", walks[0].Name, include)
	default:
		r.add("walk index", Fail, "no index gives a collection in key order; %s", include)
	}
}

// walk: tenant and collection in either order, then the key.
func walk(i store.Index, m dataset.Columns) bool {
	return len(i.Keys) >= 3 && i.Keys[2] == m.Key &&
		(slices.Equal(i.Keys[:2], []string{m.Tenant, m.Collection}) || slices.Equal(i.Keys[:2], []string{m.Collection, m.Tenant}))
}

func keyInIndex(t *dataset.Table) string {
	if t.KeyType() == "uuid" {
		return t.Key
	}
	return t.Key + ` COLLATE "C"`
}

// visibility: pages that VACUUM has not marked cost a look-up for each of their rows.
func visibility(ctx context.Context, r *Report, pool store.Pool, t *dataset.Table, side dataset.Side) error {
	v, err := pool.Visibility(ctx, t)
	if err != nil {
		return err
	}
	percent := int64(100)
	if v.Pages > 0 {
		percent = 100 * v.VisiblePages / v.Pages
	}
	switch {
	case !v.Analyzed:
		r.add("visibility", Warn, "the table was never analyzed; VACUUM (ANALYZE) %s", t.Ident)
	case side == dataset.Consumer && percent < fewVisible && v.Pages > tooFewPages:
		r.add("visibility", Warn, "%d %% of the pages are marked visible to all; the walk looks rows up on the others; VACUUM %s, and let autovacuum come more often", percent, t.Ident)
	default:
		r.add("visibility", OK, "%d %% of %d pages are marked visible to all", percent, v.Pages)
	}
	return nil
}
