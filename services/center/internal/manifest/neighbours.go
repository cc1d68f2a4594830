package manifest

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/task"
)

// Place is where a key stands in a manifest: among its rows, or between two of
// them, which is evidence that it is not.
type Place struct {
	Present bool
	Row     *evidence.Neighbour // where Present is true; verified against the root
	Absence evidence.Absence    // where Present is false; verified against the root
}

// seeker finds the places of the keys of one call.
type seeker struct {
	tk     *task.Task
	idx    *index
	places map[string]Place
	// first holds the keys that sort before every row of the page they belong
	// to: their left neighbour is the last row of the page before.
	first map[int][]string
	right map[string]*evidence.Neighbour
}

// Places finds every key. Each page is read and decoded once, one at a time.
func (r *Reader) Places(ctx context.Context, tk *task.Task, keys []string) (map[string]Place, error) {
	set, err := setOf(tk)
	if err != nil {
		return nil, err
	}
	s := &seeker{tk: tk, places: map[string]Place{}, first: map[int][]string{}, right: map[string]*evidence.Neighbour{}}
	if tk.RowCount == 0 {
		for _, key := range keys {
			if err := s.absent(key, nil, nil); err != nil {
				return nil, err
			}
		}
		return s.places, nil
	}
	if s.idx, err = r.index(ctx, tk, set); err != nil {
		return nil, err
	}
	byPage := map[int][]string{}
	for _, key := range keys {
		page := min(sort.SearchStrings(s.idx.lastKeys, key), tk.PageCount-1)
		byPage[page] = append(byPage[page], key)
	}
	if err := r.visit(ctx, s, set, byPage, s.within); err != nil {
		return nil, err
	}
	if err := r.visit(ctx, s, set, s.first, s.before); err != nil {
		return nil, err
	}
	return s.places, nil
}

// visit decodes each named page and hands it to fn with its keys.
func (r *Reader) visit(ctx context.Context, s *seeker, set frozen.Set, byPage map[int][]string, fn func(*openPage, []string) error) error {
	if len(byPage) == 0 {
		return nil
	}
	numbers := make([]int, 0, len(byPage))
	for n := range byPage {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	seen := 0
	err := r.frozen.Pages(ctx, set, numbers, func(number int, body []byte) (bool, error) {
		seen++
		p, err := s.open(number, body)
		if err != nil {
			return false, err
		}
		return true, fn(p, byPage[number])
	})
	if err == nil && seen != len(numbers) {
		err = damaged(s.tk)
	}
	return err
}

// openPage is a decoded page with its part of the tree.
type openPage struct {
	number int
	rows   []evidence.PageRow
	tree   levels
}

func (s *seeker) open(number int, body []byte) (*openPage, error) {
	rows, err := evidence.DecodePage(body, nil, s.tk.PageRows)
	if err != nil {
		return nil, fmt.Errorf("page %d of task %s: %w", number, s.tk.ID, err)
	}
	leaves := make([]evidence.Node, len(rows))
	for i := range rows {
		leaves[i] = evidence.LeafHash(&rows[i].Row)
	}
	p := &openPage{number: number, rows: rows, tree: newLevels(leaves)}
	if len(rows) == 0 || p.tree.root() != s.idx.pages[0][number] {
		return nil, damaged(s.tk)
	}
	return p, nil
}

// within finds the keys whose place is in or behind the page's rows.
func (s *seeker) within(p *openPage, keys []string) error {
	for _, key := range keys {
		at, found := slices.BinarySearchFunc(p.rows, key, func(r evidence.PageRow, key string) int {
			switch {
			case r.Key < key:
				return -1
			case r.Key > key:
				return 1
			}
			return 0
		})
		if found {
			row := s.neighbour(p, at)
			if !evidence.VerifyInclusion(evidence.LeafHash(&row.Row), row.Index, uint64(s.tk.RowCount), row.Path, s.tk.ManifestRoot) { //nolint:gosec // a count
				return damaged(s.tk)
			}
			s.places[key] = Place{Present: true, Row: row}
			continue
		}
		var left, right *evidence.Neighbour
		if at < len(p.rows) {
			right = s.neighbour(p, at)
		}
		if at == 0 && p.number > 0 {
			s.right[key] = right
			s.first[p.number-1] = append(s.first[p.number-1], key)
			continue
		}
		if at > 0 {
			left = s.neighbour(p, at-1)
		}
		if err := s.absent(key, left, right); err != nil {
			return err
		}
	}
	return nil
}

// before completes the keys of first: the page's last row is their left neighbour.
func (s *seeker) before(p *openPage, keys []string) error {
	left := s.neighbour(p, len(p.rows)-1)
	for _, key := range keys {
		if err := s.absent(key, left, s.right[key]); err != nil {
			return err
		}
	}
	return nil
}

// neighbour proves row i of a page into the root.
func (s *seeker) neighbour(p *openPage, i int) *evidence.Neighbour {
	path := p.tree.path(nil, i)
	return &evidence.Neighbour{
		Row:   p.rows[i].Row,
		Index: uint64(p.number)*uint64(s.tk.PageRows) + uint64(i), //nolint:gosec // none is negative
		Path:  s.idx.pages.path(path, p.number),
	}
}

// absent notes evidence, having checked it as its readers will.
func (s *seeker) absent(key string, left, right *evidence.Neighbour) error {
	a := evidence.Absence{Size: uint64(s.tk.RowCount), Left: left, Right: right} //nolint:gosec // a count
	if err := a.Verify(key, a.Size, s.tk.ManifestRoot); err != nil {
		return fmt.Errorf("evidence of task %s: %w", s.tk.ID, err)
	}
	s.places[key] = Place{Absence: a}
	return nil
}
