package world

import (
	"iter"

	"lockstep.dev/pkg/canon"
)

// The one collection that is measured.
const (
	UniformTenant     = 900
	UniformCollection = "measured"
)

// Uniform yields the projection of that many answers of one collection, without
// oddities: content of about 380 bytes, keys in no order of the rows.
func Uniform(rows int, seed uint64) iter.Seq2[Projected, error] {
	return func(yield func(Projected, error) bool) {
		w := &World{seed: seed}
		p := &part{Form: Form{TenantID: UniformTenant, Collection: UniformCollection}, rows: rows}
		var hasher canon.Hasher
		for i := range rows {
			r := w.random(p, i)
			a := Answer{
				TenantID: p.TenantID, Key: newKey(r), Collection: p.Collection,
				Version: 1, Sequence: int64(i), Revision: 2 + r.Int64N(7), Values: content(r, 1),
			}
			row, err := project(&hasher, a, extension(r))
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}
