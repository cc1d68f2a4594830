package world

import (
	"fmt"
	"maps"
	"slices"

	"lockstep.dev/pkg/canon"
)

// Changes is everything that is done to two equal sides so that they differ.
type Changes struct {
	// Center rows get a newer value that no delivery brought to the projection.
	Center []Answer
	// Deleted rows are lost from the projection.
	Deleted []Ref
	// Updated rows of the projection get another revision, content or mark.
	Updated []Projected
	// Inserted rows of the projection never were at the center.
	Inserted []Projected
	// Open rows still differ after a repair: no center's word mends them.
	Open []Ref
	// Retired rows are the extras a repair retires.
	Retired []Ref
}

// Ref names a row.
type Ref struct {
	TenantID int64
	Key      Key
}

func (r Ref) String() string { return fmt.Sprintf("tenant %d, answer %x", r.TenantID, r.Key[:]) }

// Ref names the row.
func (a Answer) Ref() Ref { return Ref{a.TenantID, a.Key} }

// Damage plans the changes.
func (w *World) Damage() (*Changes, error) {
	c := &Changes{}
	var hasher canon.Hasher
	for _, p := range w.parts {
		for _, i := range slices.Sorted(maps.Keys(p.damage)) {
			if err := w.damageRow(c, &hasher, p, i); err != nil {
				return nil, err
			}
		}
		if err := w.addExtras(c, &hasher, p); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (w *World) damageRow(c *Changes, hasher *canon.Hasher, p *part, i int) error {
	a, r := w.answer(p, i)
	local := a
	switch kind := p.damage[i]; kind {
	case missing:
		c.Deleted = append(c.Deleted, a.Ref())
		return nil
	case stale, unrepairable:
		// The center moved on; the projection stays as it is.
		a.Revision++
		a.Values = content(r, a.Version)
		if kind == unrepairable {
			a.Values = tooLarge(r)
			c.Open = append(c.Open, a.Ref())
		}
		c.Center = append(c.Center, a)
		return nil
	case hashConflict:
		local.Values = content(r, a.Version)
	case tombstone:
		if i%2 == 0 { // deleted at the center, and the projection did not hear of it
			a.Deleted = true
			a.Revision++
			c.Center = append(c.Center, a)
			return nil
		}
		local.Deleted = true
	case localAhead:
		local.Revision += 3
		c.Open = append(c.Open, a.Ref())
	case revisionZero:
		c.Open = append(c.Open, a.Ref())
		if i%2 == 0 {
			c.Deleted = append(c.Deleted, a.Ref())
			return nil
		}
		local.Values = content(r, a.Version)
	case intact:
		return nil
	}
	row, err := project(hasher, local, Extension{})
	if err != nil {
		return err
	}
	c.Updated = append(c.Updated, row)
	return nil
}

// addExtras makes rows that only the projection has.
func (w *World) addExtras(c *Changes, hasher *canon.Hasher, p *part) error {
	for n := range p.Damage.ExtraOld + p.Damage.ExtraNew {
		r := w.random(p, p.rows+n)
		a := Answer{
			TenantID: p.TenantID, Key: newKey(r), Collection: p.Collection,
			Version: 1, Sequence: int64(p.rows + n + 1), Revision: 1 + r.Int64N(5), Values: content(r, 1),
		}
		row, err := project(hasher, a, extension(r))
		if err != nil {
			return err
		}
		row.Future = n >= p.Damage.ExtraOld
		if row.Future {
			c.Open = append(c.Open, a.Ref())
		} else {
			c.Retired = append(c.Retired, a.Ref())
		}
		c.Inserted = append(c.Inserted, row)
	}
	return nil
}
