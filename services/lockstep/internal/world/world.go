package world

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"

	"lockstep.dev/pkg/canon"
)

// Key is a record's key.
type Key [16]byte

// Answer is a row of the system of record.
type Answer struct {
	TenantID   int64
	Key        Key
	Collection string
	Version    int
	Sequence   int64
	Revision   int64
	Deleted    bool
	Values     []byte // JSON; nil for SQL NULL
}

// Extension is what the host keeps in columns of its own.
type Extension struct{ BizExt, ApplyID, FlowID, LinkState string }

// Projected is a row of the host's projection.
type Projected struct {
	Answer
	Hash canon.Hash
	// Future: created after any manifest of the demo.
	Future bool
	Extension
}

// World is the example data. Rows are made when they are asked for, so that a
// large one needs no memory.
type World struct {
	seed  uint64
	parts []*part
}

// part is one form's share.
type part struct {
	Form
	index  int
	rows   int
	damage map[int]kind
}

// kind of damage done to a row.
type kind int

const (
	intact kind = iota
	missing
	stale
	hashConflict
	tombstone
	localAhead
	revisionZero
	unrepairable
)

// New plans a world of that many answers.
func New(rows int, seed uint64) (*World, error) {
	if err := CheckRows(rows); err != nil {
		return nil, err
	}
	w := &World{seed: seed}
	forms := Forms()
	for i, form := range forms {
		share := rows / len(forms)
		if i < rows%len(forms) {
			share++
		}
		p := &part{Form: form, index: i, rows: share}
		p.damage = w.choose(p)
		w.parts = append(w.parts, p)
	}
	return w, nil
}

// MostRows is the number of rows in the largest form, extras included.
func (w *World) MostRows() int {
	return w.parts[0].rows + w.parts[0].Damage.ExtraOld + w.parts[0].Damage.ExtraNew
}

// choose says which rows are damaged, and how: scattered, by the seed.
func (w *World) choose(p *part) map[int]kind {
	r := rand.New(rand.NewPCG(w.seed, uint64(p.index))) //nolint:gosec // the example has to be the same every time
	chosen := make(map[int]kind, p.Damage.onCenter())
	for _, want := range []struct {
		kind  kind
		count int
	}{
		{missing, p.Damage.Missing},
		{stale, p.Damage.Stale},
		{hashConflict, p.Damage.HashConflict},
		{tombstone, p.Damage.Tombstone},
		{localAhead, p.Damage.LocalAhead},
		{revisionZero, p.Damage.RevisionZero},
		{unrepairable, p.Damage.Unrepairable},
	} {
		for done := 0; done < want.count; {
			if i := r.IntN(p.rows); chosen[i] == intact {
				chosen[i] = want.kind
				done++
			}
		}
	}
	return chosen
}

// random gives row i its own source, whatever order rows are made in.
func (w *World) random(p *part, i int) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed^uint64(p.index+1)<<48, uint64(i))) //nolint:gosec // the example has to be the same every time
}

func newKey(r *rand.Rand) (k Key) {
	binary.BigEndian.PutUint64(k[:8], r.Uint64())
	binary.BigEndian.PutUint64(k[8:], r.Uint64())
	k[6], k[8] = k[6]&0x0f|0x40, k[8]&0x3f|0x80 // a UUID of version 4
	return k
}

// answer makes row i as it was before the damage.
func (w *World) answer(p *part, i int) (Answer, *rand.Rand) {
	r := w.random(p, i)
	a := Answer{
		TenantID: p.TenantID, Key: newKey(r), Collection: p.Collection,
		Version: 1 + r.IntN(3), Sequence: int64(i + 1), Revision: 2 + r.Int64N(7),
	}
	a.Values = content(r, a.Version)
	// A few rows are what older systems leave behind: tombstones with and
	// without content, and rows from before revisions were kept.
	switch i % 97 {
	case 13:
		a.Deleted = true
	case 31:
		a.Deleted, a.Values = true, nil
	case 53:
		a.Revision = 0
	}
	kind := p.damage[i]
	if kind != intact {
		a.Deleted, a.Revision = kind == missing && i%4 == 0, max(a.Revision, 2)
		if a.Values == nil {
			a.Values = content(r, a.Version)
		}
	}
	if kind == revisionZero {
		a.Revision = 0
	}
	return a, r
}

// Answers yields every row of the system of record as it was when both sides were equal.
func (w *World) Answers() iter.Seq[Answer] {
	return func(yield func(Answer) bool) {
		for _, p := range w.parts {
			for i := range p.rows {
				if a, _ := w.answer(p, i); !yield(a) {
					return
				}
			}
		}
	}
}

// Projection yields every row of the projection as it was when both sides were equal.
func (w *World) Projection() iter.Seq2[Projected, error] {
	return func(yield func(Projected, error) bool) {
		var hasher canon.Hasher
		for _, p := range w.parts {
			for i := range p.rows {
				a, r := w.answer(p, i)
				row, err := project(&hasher, a, extension(r))
				if !yield(row, err) || err != nil {
					return
				}
			}
		}
	}
}

func project(hasher *canon.Hasher, a Answer, ext Extension) (Projected, error) {
	hash, err := hasher.Sum(a.Values)
	if err != nil {
		return Projected{}, fmt.Errorf("hash the content of answer %x: %w", a.Key, err)
	}
	return Projected{Answer: a, Hash: hash, Extension: ext}, nil
}
